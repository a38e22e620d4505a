"""Models of transformers by the name of their class (AutoModelFor...), from a folder with a config.json.

Nothing is downloaded. A model is first defined without memory. Then it is spread over the ranks. Last, each
rank reads its own slices of the safetensors files. In addition to its part of the model, a rank holds only
the slice that it reads. For missing weights it holds the repeated layer that it draws, or all layers outside
of those.
"""

import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gpu_fleet.errors import DataError, ModelError, ParallelError, suggestion
from gpu_fleet.models.definitions import IMAGENET_MEAN, IMAGENET_STD, Facts, Logits, Pixels

PREFIX = "AutoModel"
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
# The heads that fit a kind of prepared data; a user's own data, with named columns, fit all heads.
HEADS = {
    "tokens": ("AutoModelForCausalLM",),
    "text": ("AutoModelForSequenceClassification",),
    "images": ("AutoModelForImageClassification",),
    "shards": ("AutoModelForImageClassification",),
}
# Files of a model beside weights and configuration; an export copies them.
COMPANIONS = ("*token*.json", "vocab.*", "merges.txt", "*.model", "*processor_config.json", "*.jinja")
# Names of position tables; a sequence cannot be longer than its table.
POSITIONS = ("position_embeddings", "position_embedding", "embed_positions", "positions_embed", "wpe")
WHITE = 255  # the highest value of a byte
MAY_BE_NEW = "pooler"  # a layer above the pretrained ones, which few published files have
log = logging.getLogger(__name__)


def is_pretrained(name: str) -> bool:
    """Return whether model.name is a class of transformers."""
    return name.startswith(PREFIX)


def build(
    name: str, options: dict[str, Any], facts: Facts, kind: str, *, weights: str, config: str
) -> nn.Module:
    """Build the model without memory; `fill` gives it values later. Raises ModelError.

    Args:
        name: a class of transformers, such as AutoModelForCausalLM.
        options: keys of config.json to change.
        facts: facts about the data.
        kind: kind of the data.
        weights: folder of config.json and safetensors.
        config: folder of config.json alone; the weights are random.
    """
    if bool(weights) == bool(config):
        raise ModelError(
            f"model.name = {name!r}: set one of model.weights (now {weights!r}), a folder of config.json and "
            f"safetensors, and model.config (now {config!r}), for random weights"
        )
    heads = HEADS.get(kind, (name,))
    if name not in heads:
        raise ModelError(f"model.name = {name!r}: the data is {kind}, which {' or '.join(heads)} takes")
    folder = Path(weights or config)
    settings = _configuration(name, folder, options, facts, kind)
    network = _defined(name, settings)
    most = limits_of(network).positions
    if kind in ("tokens", "text") and 0 < most < facts.sequence_length:
        raise ModelError(
            f"data.sequence_length = {facts.sequence_length}: {settings.model_type} of {folder} has a table "
            f"of {most} positions: 1 to {most} are allowed"
        )
    if kind in ("images", "shards"):
        return nn.Sequential(_pixels(folder), Logits(network))
    return Logits(network, masks_padding=kind == "text") if kind in HEADS else network


def _configuration(name: str, folder: Path, options: dict[str, Any], facts: Facts, kind: str) -> Any:
    from transformers import AutoConfig  # noqa: PLC0415 - seconds to load

    if not (folder / "config.json").is_file():
        raise ModelError(
            f"model.name = {name!r}: {folder / 'config.json'} is missing; `save_pretrained` of transformers "
            "and `hf download` write such folders"
        )
    try:
        settings = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library passes on errors of the readers of its files
        if code := sorted(file.name for file in folder.glob("*.py")):
            raise ModelError(
                f"{folder / 'config.json'}: is of a model with code of its own ({', '.join(code)}), which is "
                "not run: a model that transformers knows does, or import the code by model.name = "
                "'FILE.py:NAME'"
            ) from error
        raise ModelError(f"{folder / 'config.json'}: cannot be read: {_first_line(error)}") from error
    for key, value in options.items():
        if not hasattr(settings, key):
            known = [known for known in settings.to_dict() if known[0] != "_"]
            raise ModelError(
                f"model.options.{key}: unknown for {settings.model_type}{suggestion(key, known)}"
            )
        setattr(settings, key, value)
    if hasattr(settings, "use_cache"):
        settings.use_cache = False
    if kind in ("tokens", "text") and facts.vocabulary > settings.vocab_size:
        raise ModelError(
            f"model.name = {name!r}: knows {settings.vocab_size} token ids, the data {facts.vocabulary}; "
            "prepare them with this model's tokenizer.json (--tokenizer, and --end-token for tokens)"
        )
    if kind == "text" and (pad := getattr(settings, "pad_token_id", 0)):
        raise ModelError(f"model.name = {name!r}: pads with id {pad}, data of kind text with 0")
    if kind in HEADS and facts.classes and "num_labels" not in options:
        settings.num_labels = facts.classes
        settings.id2label = dict(enumerate(facts.class_names)) or settings.id2label
        settings.label2id = {label: number for number, label in settings.id2label.items()}
    return settings


def _defined(name: str, settings: Any) -> Any:
    """Define a model of transformers on the meta device, with shapes but no memory."""
    import transformers  # noqa: PLC0415 - seconds to load

    family = getattr(transformers, name, None)
    if family is None:
        known = [known for known in dir(transformers) if known.startswith(PREFIX)]
        raise ModelError(f"model.name = {name!r}: unknown{suggestion(name, known)}")
    try:
        with torch.device("meta"):
            return _without_memory(family.from_config(settings, dtype=torch.float32, trust_remote_code=False))
    except Exception as error:  # a definition in transformers may raise anything
        raise ModelError(
            f"model.name = {name!r}: cannot be built of {settings.model_type}'s config.json and "
            f"model.options: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _without_memory(network: Any) -> Any:
    """Move every parameter to the meta device: `torch.FloatTensor(...)` ignores the default device."""
    moved: dict[int, Tensor] = {}
    for module in network.modules():
        for name, tensor in list(module._parameters.items()):
            if tensor is not None and not tensor.is_meta:
                empty = nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
                _put(module, name, moved.setdefault(id(tensor), empty))
    return network


def _pixels(folder: Path) -> Pixels:
    """Return the normalisation that a published model expects; ImageNet's if its folder names none."""
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        return Pixels()
    try:
        return _as_said(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ModelError(f"{file}: cannot be read: {_first_line(error)}") from error


def _as_said(table: Mapping[str, Any]) -> Pixels:
    """Return the normalisation of transformers' image processors: (x * rescale_factor - mean) / std.

    `rescale_offset` subtracts 1 after the rescaling. `include_top` divides by image_std once more
    (EfficientNet). `do_flip_channel_order` puts blue first (MobileViT, which does not normalise).
    Raises ValueError, TypeError.
    """
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bgr = bool(table.get("do_flip_channel_order", False))
    normalised = bool(table.get("do_normalize", not bgr))
    mean, std = (
        tuple(float(value) for value in _of_channels(table.get(f"image_{key}"), otherwise))
        for key, otherwise in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD))
    )
    rescaled = table.get("do_rescale") is not False
    factor = float(table.get("rescale_factor", 1 / WHITE)) * WHITE if rescaled else float(WHITE)
    offset = float(rescaled and bool(table.get("rescale_offset", False)))
    deviation = std
    if not normalised:
        mean, deviation = (0.0,) * len(mean), (1.0,) * len(std)
    if table.get("include_top"):
        deviation = tuple(value * again for value, again in zip(deviation, std, strict=True))
    return Pixels(
        tuple((value + offset) / factor for value in mean),
        tuple(value / factor for value in deviation),
        bgr=bgr,
    )


def _of_channels(value: Any, otherwise: tuple[float, ...]) -> tuple[float, ...]:
    """Return three numbers, from three or from one for all channels; raises ValueError."""
    if value is None:
        return otherwise
    values = (value,) * 3 if isinstance(value, int | float) else tuple(value)
    if len(values) != 3 or not all(isinstance(number, int | float) for number in values):  # noqa: PLR2004 - RGB
        raise ValueError(f"{value!r} where three numbers are wanted: those of red, green and blue")
    return values


def network_of(model: nn.Module) -> Any | None:
    """Return the model of transformers inside a built one, or None."""
    library = sys.modules.get("transformers.modeling_utils")  # an import would take seconds
    if library is None:
        return None
    kind = library.PreTrainedModel
    return next((module for module in model.modules() if isinstance(module, kind)), None)


@dataclass(frozen=True)
class TableLimits:
    """Sizes of the tables of a model: token ids are below `vocabulary`, at most `positions`; 0: no limit."""

    vocabulary: int = 0
    positions: int = 0

    def check(self, batch: Any) -> None:
        """Raise DataError for a batch of named columns whose ids or length exceed the tables; on the CPU."""
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if not isinstance(ids, Tensor) or ids.is_floating_point() or not ids.numel():
            return
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if self.vocabulary and not 0 <= low <= high < self.vocabulary:
            raise DataError(
                f"input_ids = {low if low < 0 else high}: the model has {self.vocabulary} token ids: 0 to "
                f"{self.vocabulary - 1} are allowed; the tokenizer is to be the model's own"
            )
        if ids.ndim > 1 and 0 < self.positions < ids.shape[-1]:
            raise DataError(
                f"input_ids: has {ids.shape[-1]} tokens in a row, the model a table of {self.positions} "
                f"positions: 1 to {self.positions} are allowed"
            )


def limits_of(model: nn.Module) -> TableLimits:
    """Return the sizes of a model's tables; no limits for a model that is not of transformers."""
    network = network_of(model)
    if network is None:
        return TableLimits()
    sizes = [
        module.num_embeddings
        - int(getattr(module, "offset", 0))  # OPT and BART have rows before the first position
        - (0 if module.padding_idx is None else module.padding_idx + 1)  # RoBERTa too
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in POSITIONS
    ]
    try:
        tokens = network.get_input_embeddings()
    except (NotImplementedError, AttributeError):  # a model that takes no tokens
        tokens = None
    return TableLimits(
        tokens.num_embeddings if isinstance(tokens, nn.Embedding) else 0, min(sizes, default=0)
    )


def shifts_labels(model: nn.Module) -> bool:
    """Return whether the model's own loss compares labels with the positions before, and skips the first."""
    network = network_of(model)
    if network is None or network.config.is_encoder_decoder:
        return False
    return getattr(network.loss_function, "__name__", "") == "ForCausalLMLoss"


def leaves_out_parameters(model: nn.Module) -> bool:
    """Return whether a step may skip parameters: the config.json has layer drop or experts."""
    network = network_of(model)
    return network is not None and says_left_out(network.config.to_dict())


def says_left_out(table: Mapping[str, Any]) -> bool:
    """Return whether a config.json, or a table inside it, has layer drop or experts."""
    return any(
        says_left_out(value)
        if isinstance(value, Mapping)
        else isinstance(value, int | float)
        and (("layerdrop" in key and value > 0) or ("expert" in key and value > 1))
        for key, value in table.items()
        if isinstance(key, str)
    )


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated layers: those that transformers never splits between devices."""
    network = network_of(model)
    names = set() if network is None else set(network._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__.removeprefix("FSDP") in names]


def cut_layers(network: Any, mesh: DeviceMesh) -> None:
    """Apply tensor parallelism by the model's own plan in transformers, in place; raises ParallelError."""
    from transformers.distributed.tensor_parallel import (  # noqa: PLC0415 - seconds to load
        apply_tensor_parallelism,
    )

    if not network.tp_plan:
        raise ParallelError(
            f"parallel.strategy = 'tensor': transformers has no tp_plan for {type(network).__name__}; "
            "ddp and fsdp take every model"
        )
    settings = network.config.get_text_config()
    heads = [settings.num_attention_heads, getattr(settings, "num_key_value_heads", None) or 0]
    if any(count % mesh.size() for count in heads):
        raise ParallelError(
            f"parallel.tensor = {mesh.size()} does not divide {min(filter(None, heads))} heads"
        )
    plan = network._expand_parallel_plan(network.tp_plan)
    apply_tensor_parallelism(network, mesh, {name: plan[name] for name in plan.keys() - tied_names(network)})
    network.tie_weights(recompute_mapping=False)


def fill(model: nn.Module, weights: str, device: torch.device, seed: int) -> None:
    """Set every parameter and buffer on `device`: from this rank's slices of the files, or at random.

    Random values depend only on the seed and the place in the model. So a run begins with the same values for
    any number of ranks and any strategy. Raises ModelError if the files do not fit this model.
    """
    network = network_of(model)
    assert network is not None
    if weights:
        _read(network, Path(weights), device)
    names = {module: name for name, module in network.named_modules()}
    how = _Drawing(network, names, cache(lambda: _constructed(network, seed)))
    for owner, modules in _units(network).items():
        _draw(how, modules, device, f"{seed}/{owner}")
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
        raise ModelError(f"model.weights = {str(folder)!r}: cannot be read: {_first_line(error)}") from error
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
            f"{_first_line(error)}"
        ) from error
    for file in files:
        if not file.is_file():
            raise ModelError(f"model.weights = {str(folder)!r}: {file.name} is missing, which {INDEX} names")
    return files


def tied_names(network: Any) -> set[str]:
    """Return the names of tensors that share another tensor of the model, as a head shares its embedding."""
    return set(network.all_tied_weights_keys)


def _units(network: Any) -> dict[str, list[nn.Module]]:
    """Return the modules to draw together: each repeated layer, and all the rest under "".

    Children come before parents.
    """
    inside = {id(block) for block in blocks(network)}
    units: dict[str, list[nn.Module]] = {}
    owner = ""
    for name, module in network.named_modules():
        if not (owner and name.startswith(f"{owner}.")):
            owner = name if id(module) in inside else ""
        units.setdefault(owner, []).insert(0, module)
    return units


def _constructed(network: Any, seed: int) -> nn.Module:
    """Construct the whole model on the CPU; the seed alone decides its values.

    Memory that the constructor does not write is NaN: torch fills it so with deterministic algorithms.
    """
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


@dataclass(frozen=True)
class _Drawing:
    """Initialisation of tensors that the files do not hold."""

    network: Any
    names: Mapping[nn.Module, str]
    constructed: Callable[[], nn.Module]

    def draw(self, modules: list[nn.Module], seed: str) -> None:
        """Run the model's own initialisation of modules that have memory."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_as_seed(seed))
            for module in modules:
                self.network._init_weights(module)

    def complete(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        """Copy a value that `_init_weights` left out from the constructor; raises ModelError if it has none.

        Examples are the factors of a weight norm, or a scale that is a constant.
        """
        if not tensor.is_floating_point() or not tensor.isnan().any():
            return
        path = ".".join(filter(None, (self.names[module], name)))
        owner = self.constructed().get_submodule(self.names[module])
        value = dict(_own_tensors(owner))[name].detach()
        if value.isnan().any():
            raise ModelError(
                f"{type(self.network).__name__}: transformers gives {path} no value to begin with"
            )
        tensor.data.copy_(value)


def _draw(how: _Drawing, modules: list[nn.Module], device: torch.device, seed: str) -> None:
    """Draw missing values at full size on the CPU, and cut this rank's part; raises ModelError."""
    kept = {(module, name): tensor for module in modules for name, tensor in _own_tensors(module)}
    if not any(tensor.is_meta for tensor in kept.values()):
        return
    drawn = {id(tensor): _empty_like(tensor) for tensor in kept.values()}  # tied tensors stay shared
    for (module, name), tensor in kept.items():
        _put(module, name, drawn[id(tensor)])
    try:
        how.draw(modules, seed)
        for (module, name), tensor in kept.items():
            if tensor.is_meta:
                how.complete(module, name, drawn[id(tensor)])
    finally:
        ready: dict[int, Tensor] = {}
        for (module, name), tensor in kept.items():
            if tensor.is_meta:
                if id(tensor) not in ready:
                    ready[id(tensor)] = _part(drawn[id(tensor)], tensor, device)
                _put(module, name, ready[id(tensor)])
            else:
                _put(module, name, tensor)


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for tensors in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in tensors.items() if tensor is not None)


def _empty_like(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape, filled with NaN, which shows values that nothing draws."""
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
    if empty.is_floating_point():
        empty.fill_(torch.nan)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    tensors: Any = module._parameters if name in module._parameters else module._buffers
    tensors[name] = tensor


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


def save(model: nn.Module, weights: dict[str, Tensor], folder: Path, source: str) -> bool:
    """Write a folder for `from_pretrained`. Return whether the model is one of transformers.

    Args:
        model: the trained model; only its configuration and names count.
        weights: all its tensors, on the CPU.
        folder: the folder to write.
        source: folder of companion files, such as the tokenizer; empty for none.
    """
    network = network_of(model)
    if network is None:
        return False
    place = next(name for name, module in model.named_modules() if module is network)
    prefix = f"{place}." if place else ""
    own = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
    kept = {name: weight for name, weight in own.items() if name not in tied_names(network)}
    network.save_pretrained(folder, state_dict=kept)
    for pattern in COMPANIONS if source else ():
        for file in sorted(Path(source).glob(pattern)):
            if not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
    return True


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
