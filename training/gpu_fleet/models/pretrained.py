"""Models of transformers by class (AutoModelFor...): defined without memory, spread, filled by weights.py."""

import json
import math
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from gpu_fleet.core.errors import DataError, ModelError, ParallelError, suggestion
from gpu_fleet.core.world import divisors
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


def is_pretrained(name: str) -> bool:
    return name.startswith(PREFIX)


def build(
    name: str, options: dict[str, Any], facts: Facts, kind: str, *, weights: str, config: str
) -> nn.Module:
    """Build the model without memory from the folder `weights` or `config`; raises ModelError."""
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
                "not run: use a model that transformers knows, or import the code by model.name = "
                "'FILE.py:NAME'"
            ) from error
        raise ModelError(f"{folder / 'config.json'}: cannot be read: {first_line(error)}") from error
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
            f"model.options: {type(error).__name__}: {first_line(error)}"
        ) from error


def _without_memory(network: Any) -> Any:
    """Move every parameter to the meta device: `torch.FloatTensor(...)` ignores the default device."""
    moved: dict[int, Tensor] = {}
    for module in network.modules():
        for name, tensor in list(module._parameters.items()):
            if tensor is not None and not tensor.is_meta:
                empty = nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
                put(module, name, moved.setdefault(id(tensor), empty))
    return network


def _pixels(folder: Path) -> Pixels:
    """Return the normalisation that a published model expects; ImageNet's if its folder names none."""
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        return Pixels()
    try:
        return _as_said(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ModelError(f"{file}: cannot be read: {first_line(error)}") from error


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
        raise ValueError(f"{value!r} must be three numbers, for red, green and blue")
    return values


def network_of(model: nn.Module) -> Any | None:
    """Return the model of transformers inside a built one, or None."""
    library = sys.modules.get("transformers.modeling_utils")  # an import would take seconds
    kinds = library.PreTrainedModel if library else ()
    return next((module for module in model.modules() if isinstance(module, kinds)), None)


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
                f"{self.vocabulary - 1} are allowed; use the model's own tokenizer"
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
    heads = math.gcd(settings.num_attention_heads, getattr(settings, "num_key_value_heads", None) or 0)
    if heads % mesh.size():
        raise ParallelError(
            f"parallel.tensor = {mesh.size()} does not divide {heads} heads; these do: {divisors(heads)}"
        )
    plan = network._expand_parallel_plan(network.tp_plan)
    apply_tensor_parallelism(network, mesh, {name: plan[name] for name in plan.keys() - tied_names(network)})
    network.tie_weights(recompute_mapping=False)


def tied_names(network: Any) -> set[str]:
    """Return the names of tensors that share another tensor of the model, as a head shares its embedding."""
    return set(network.all_tied_weights_keys)


def put(module: nn.Module, name: str, tensor: Tensor) -> None:
    tensors: Any = module._parameters if name in module._parameters else module._buffers
    tensors[name] = tensor


def save(model: nn.Module, weights: dict[str, Tensor], folder: Path, source: str) -> bool:
    """Write a folder for `from_pretrained`, with the tokenizer of `source`; False for models of others."""
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


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
