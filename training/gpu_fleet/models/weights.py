"""Values of a model of transformers that was built without memory: read from safetensors files, or drawn.

A rank holds its part and the slice that it reads, or the layer that it draws; or all outside of layers.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_fleet.core.errors import ModelError
from gpu_fleet.models.pretrained import FILE, INDEX, blocks, first_line, network_of, put, tied_names

MAY_BE_NEW = "pooler"  # a layer above the pretrained ones, which few published files have
log = logging.getLogger(__name__)


def fill(model: nn.Module, weights: str, device: torch.device, seed: int) -> None:
    """Set every value on `device`: from files, or drawn by seed and place alone. Raises ModelError."""
    network = network_of(model)
    assert network is not None
    if weights:
        _read(network, Path(weights), device)
    drawing = _Drawing(network, device, seed)
    for owner, modules in _units(network).items():
        drawing.draw(owner, modules)
    network.tie_weights(recompute_mapping=False)


def _read(network: Any, folder: Path, device: torch.device) -> None:
    from safetensors import safe_open  # noqa: PLC0415 - only runs that start from weights need it
    from transformers.conversion_mapping import get_model_conversion_mapping  # noqa: PLC0415
    from transformers.core_model_loading import convert_and_load_state_dict_in_model  # noqa: PLC0415
    from transformers.modeling_utils import LoadStateDictConfig  # noqa: PLC0415

    settings = LoadStateDictConfig(
        device_map={"": device},
        dtype=torch.float32,
        weight_mapping=get_model_conversion_mapping(network),  # type: ignore[arg-type]  # of its own making
        ignore_mismatched_sizes=True,  # reported below, by name
    )
    try:
        with ExitStack() as files:
            slices = {}
            for file in weight_files(folder):
                opened = files.enter_context(safe_open(file, framework="pt"))
                names = opened.keys()
                slices.update({name: _Copied(opened.get_slice(name)) for name in names})
            loading, _ = convert_and_load_state_dict_in_model(network, slices, settings)
    except ModelError:
        raise
    except Exception as error:  # safetensors and the library's conversions may raise anything
        raise ModelError(f"model.weights = {str(folder)!r}: cannot be read: {first_line(error)}") from error
    if loading.conversion_errors or loading.error_msgs:
        problem = [*loading.conversion_errors.values(), *loading.error_msgs][0]
        raise ModelError(f"model.weights = {str(folder)!r}: cannot be read: {problem}")
    network._adjust_missing_and_unexpected_keys(loading)
    _check(network, folder, loading)


class _Copied:
    """Slice of a file that copies each part: safetensors returns views of the mapped file."""

    def __init__(self, lent: Any) -> None:
        self._lent = lent
        self.get_shape, self.get_dtype = lent.get_shape, lent.get_dtype

    def __getitem__(self, key: Any) -> Tensor:
        part: Tensor = self._lent[key].clone()
        return part


def _check(network: Any, folder: Path, loading: Any) -> None:
    """Raise ModelError unless the files hold all but the head, which may be new or of other classes."""
    missing = sorted(set(loading.missing_keys) - tied_names(network))
    other = sorted(entry[0] for entry in loading.mismatched_keys)
    inner = network.base_model_prefix if network.base_model is not network else ""
    wrong = [
        name for name in (*missing, *other) if name.startswith(inner) and MAY_BE_NEW not in name.split(".")
    ]
    if wrong:
        raise ModelError(
            f"model.weights = {str(folder)!r}: does not fit the model: {len(wrong)} of its tensors are "
            f"missing there or have another shape, such as {wrong[0]}"
        )
    if missing or other or loading.unexpected_keys:
        unused = sorted(loading.unexpected_keys)
        log.warning("event=weights folder=%s new=%s unused=%s", folder, [*missing, *other], unused)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder: one, or those in its index. Raises ModelError."""
    if (folder / FILE).is_file():
        return [folder / FILE]
    try:
        table = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        files = sorted({folder / name for name in table["weight_map"].values()})
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(
            f"model.weights = {str(folder)!r}: {folder / FILE} cannot be read, nor {INDEX}: "
            f"{first_line(error)}"
        ) from error
    for file in files:
        if not file.is_file():
            raise ModelError(f"model.weights = {str(folder)!r}: {file.name} is missing, which {INDEX} names")
    return files


def _units(network: Any) -> dict[str, list[nn.Module]]:
    """Return the modules to draw together, children first: each repeated layer, and all the rest under ""."""
    inside = {id(block) for block in blocks(network)}
    units: dict[str, list[nn.Module]] = {}
    owner = ""
    for name, module in network.named_modules():
        if not (owner and name.startswith(f"{owner}.")):
            owner = name if id(module) in inside else ""
        units.setdefault(owner, []).insert(0, module)
    return units


def _constructed(network: Any, seed: int) -> nn.Module:
    """Construct the model on the CPU, by the seed; what the constructor does not write is NaN."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(_as_seed(f"{seed}/constructed"))
            made: nn.Module = type(network)._from_config(network.config, dtype=torch.float32)
            return made
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _as_seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class _Drawing:
    """Initialisation of tensors that the files do not hold."""

    def __init__(self, network: Any, device: torch.device, seed: int) -> None:
        self._network, self._device, self._seed = network, device, seed
        self._names = {module: name for name, module in network.named_modules()}
        self._constructed = cache(lambda: _constructed(network, seed))

    def draw(self, owner: str, modules: list[nn.Module]) -> None:
        """Draw missing values at full size on the CPU, and cut this rank's part; raises ModelError."""
        kept = {(module, name): tensor for module in modules for name, tensor in _own_tensors(module)}
        if not any(tensor.is_meta for tensor in kept.values()):
            return
        drawn = {id(tensor): _empty_like(tensor) for tensor in kept.values()}  # tied tensors stay shared
        for (module, name), tensor in kept.items():
            put(module, name, drawn[id(tensor)])
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(_as_seed(f"{self._seed}/{owner}"))
                for module in modules:
                    self._network._init_weights(module)
            for (module, name), tensor in kept.items():
                if tensor.is_meta:
                    self._complete(module, name, drawn[id(tensor)])
        finally:
            ready: dict[int, Tensor] = {}
            for (module, name), tensor in kept.items():
                if tensor.is_meta and id(tensor) not in ready:
                    ready[id(tensor)] = _part(drawn[id(tensor)], tensor, self._device)
                put(module, name, ready.get(id(tensor), tensor))

    def _complete(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        """Copy a value that `_init_weights` left out, such as a scale; raises ModelError if it has none."""
        if not tensor.is_floating_point() or not tensor.isnan().any():
            return
        path = ".".join(filter(None, (self._names[module], name)))
        owner = self._constructed().get_submodule(self._names[module])
        value = dict(_own_tensors(owner))[name].detach()
        if value.isnan().any():
            raise ModelError(f"{type(self._network).__name__}: transformers gives {path} no initial value")
        tensor.data.copy_(value)


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for tensors in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in tensors.items() if tensor is not None)


def _empty_like(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape, filled with NaN, which shows values that nothing draws."""
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
    if empty.is_floating_point():
        empty.fill_(torch.nan)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _part(whole: Tensor, like: Tensor, device: torch.device) -> Tensor:
    """Return this rank's part of a tensor, in the layout of `like`."""
    from transformers.distributed.sharding_utils import DtensorShardOperation  # noqa: PLC0415

    if isinstance(like, DTensor):
        local = DtensorShardOperation(like).shard_tensor(whole.detach(), device=device, dtype=like.dtype)
        assert local is not None  # it is None only for a tensor that another rank reads
        part: Tensor = DTensor.from_local(
            local.clone(),  # a view would keep the whole tensor in memory
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )
    else:
        part = whole.detach().to(device)
    return nn.Parameter(part, like.requires_grad) if isinstance(like, nn.Parameter) else part
