"""Models of transformers by the name of their class (AutoModelFor...), from a folder with a config.json.

Nothing is downloaded. A model is defined without memory first. Then it is spread, and last each rank reads
its own slices of the safetensors files: beside its part of the model a rank holds one slice being read, or,
where weights are missing, one repeated layer (or all outside of those) being drawn.
"""

import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gpu_fleet.errors import ModelError, ParallelError, suggestion
from gpu_fleet.models.definitions import Facts, Logits, Pixels

PREFIX = "AutoModel"
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
# The heads that fit a kind of prepared data; data of a user's own, by column, fit all.
HEADS = {
    "tokens": ("AutoModelForCausalLM",),
    "text": ("AutoModelForSequenceClassification",),
    "images": ("AutoModelForImageClassification",),
    "shards": ("AutoModelForImageClassification",),
}
# What belongs to a model beside weights and configuration; an export has the same.
COMPANIONS = ("*token*.json", "vocab.*", "merges.txt", "*.model", "*processor_config.json", "*.jinja")
MAY_BE_NEW = "pooler"  # above the pretrained layers, and in few published files
log = logging.getLogger(__name__)


def is_pretrained(name: str) -> bool:
    """Whether model.name is a class of transformers."""
    return name.startswith(PREFIX)


def build(
    name: str, options: dict[str, Any], facts: Facts, kind: str, *, weights: str, config: str
) -> nn.Module:
    """The model, without memory: `fill` gives it values. Raises ModelError.

    Args:
        name: a class of transformers, such as AutoModelForCausalLM.
        options: keys of config.json to be changed.
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
        settings = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises what its files' readers do
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
    """A model of transformers on the meta device, which has shapes and no memory."""
    import transformers  # noqa: PLC0415 - seconds to load

    family = getattr(transformers, name, None)
    if family is None:
        known = [known for known in dir(transformers) if known.startswith(PREFIX)]
        raise ModelError(f"model.name = {name!r}: unknown{suggestion(name, known)}")
    try:
        with torch.device("meta"):
            return family.from_config(settings, dtype=torch.float32)
    except Exception as error:  # the definitions of others raise what they like
        raise ModelError(
            f"model.name = {name!r}: cannot be built of {settings.model_type}'s config.json and "
            f"model.options: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _pixels(folder: Path) -> Pixels:
    """The normalisation that a published model expects; that of ImageNet where it does not say."""
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        return Pixels()
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        return Pixels(
            **{key: tuple(table[f"image_{key}"]) for key in ("mean", "std") if f"image_{key}" in table}
        )
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{file}: cannot be read: {_first_line(error)}") from error


def network_of(model: nn.Module) -> Any | None:
    """The model of transformers inside a built one, or None."""
    library = sys.modules.get("transformers.modeling_utils")  # seconds to load, so only looked up
    if library is None:
        return None
    kind = library.PreTrainedModel
    return next((module for module in model.modules() if isinstance(module, kind)), None)


def shifts_labels(model: nn.Module) -> bool:
    """Whether its own loss holds each label against the place before, and so never looks at the first."""
    network = network_of(model)
    if network is None or network.config.is_encoder_decoder:
        return False
    return getattr(network.loss_function, "__name__", "") == "ForCausalLMLoss"


def leaves_out_parameters(model: nn.Module) -> bool:
    """Whether steps may do without some parameters, by its config.json: it drops layers or has experts."""
    network = network_of(model)
    return network is not None and says_left_out(network.config.to_dict())


def says_left_out(table: Mapping[str, Any]) -> bool:
    """The same of a config.json alone, with what is nested in it."""
    return any(
        says_left_out(value)
        if isinstance(value, Mapping)
        else isinstance(value, int | float)
        and (("layerdrop" in key and value > 0) or ("expert" in key and value > 1))
        for key, value in table.items()
        if isinstance(key, str)
    )


def blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated layers: those that transformers never splits between devices."""
    network = network_of(model)
    names = set() if network is None else set(network._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__.removeprefix("FSDP") in names]


def cut_layers(network: Any, mesh: DeviceMesh) -> None:
    """Tensor parallelism by the model's own plan in transformers, in place; raises ParallelError."""
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
    """Gives every parameter and buffer its value on `device`: this rank's slices of the files, or random.

    What is random depends on seed and place in the model alone, so that any number of ranks, however the
    model is spread, begins with the same. Raises ModelError where the files are not of this model.
    """
    network = network_of(model)
    assert network is not None
    if weights:
        _read(network, Path(weights), device)
    for owner, modules in _units(network).items():
        _draw(network, modules, device, f"{seed}/{owner}")
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
    except Exception as error:  # of safetensors and of the library's conversions
        raise ModelError(f"model.weights = {str(folder)!r}: cannot be read: {_first_line(error)}") from error
    if loading.conversion_errors or loading.error_msgs:
        problem = [*loading.conversion_errors.values(), *loading.error_msgs][0]
        raise ModelError(f"model.weights = {str(folder)!r}: cannot be read: {problem}")
    network._adjust_missing_and_unexpected_keys(loading)
    _check(network, folder, loading)


class _Copied:
    """A slice of a file whose parts have memory of their own: safetensors lends that of the mapped file."""

    def __init__(self, lent: Any) -> None:
        self._lent = lent
        self.get_shape, self.get_dtype = lent.get_shape, lent.get_dtype

    def __getitem__(self, key: Any) -> Tensor:
        part: Tensor = self._lent[key].clone()
        return part


def _check(network: Any, folder: Path, loading: Any) -> None:
    """A head may be new or of other classes; the rest must be in the files."""
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
    """The safetensors files of a folder: one, or those that its index names. Raises ModelError."""
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
    """The names of tensors that are another one of the model, such as a head that is its embedding."""
    return set(network.all_tied_weights_keys)


def _units(network: Any) -> dict[str, list[nn.Module]]:
    """What is drawn together, children before parents: each repeated layer, and under "" all the rest."""
    inside = {id(block) for block in blocks(network)}
    units: dict[str, list[nn.Module]] = {}
    owner = ""
    for name, module in network.named_modules():
        if not (owner and name.startswith(f"{owner}.")):
            owner = name if id(module) in inside else ""
        units.setdefault(owner, []).insert(0, module)
    return units


def _draw(network: Any, modules: list[nn.Module], device: torch.device, seed: str) -> None:
    """Values for what has none, as the model draws them, of full size on the CPU and cut afterwards."""
    kept = {(module, name): tensor for module in modules for name, tensor in _own_tensors(module)}
    if not any(tensor.is_meta for tensor in kept.values()):
        return
    drawn = {id(tensor): _empty_like(tensor) for tensor in kept.values()}  # tied ones stay one
    for (module, name), tensor in kept.items():
        _put(module, name, drawn[id(tensor)])
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big"))
            for module in modules:
                network._init_weights(module)
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
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    tensors: Any = module._parameters if name in module._parameters else module._buffers
    tensors[name] = tensor


def _part(whole: Tensor, like: Tensor, device: torch.device) -> Tensor:
    """What this rank holds of a tensor, laid out as `like`."""
    from transformers.distributed.sharding_utils import DtensorShardOperation  # noqa: PLC0415

    if isinstance(like, DTensor):
        local = DtensorShardOperation(like).shard_tensor(whole.detach(), device=device, dtype=like.dtype)
        assert local is not None  # as it would be of a tensor that another rank reads
        part: Tensor = DTensor.from_local(
            local.clone(),  # or the whole would stay in memory
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
    """Writes a folder that `from_pretrained` reads, where the model is one of transformers; else gives False.

    Args:
        model: the trained one; only its configuration and names count.
        weights: all its tensors, on the CPU.
        source: folder of what goes along, such as the tokenizer.
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
