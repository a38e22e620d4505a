"""Models by name, with definitions of transformers where it has them; nothing is downloaded."""

import errno
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpu_fleet.core.errors import ModelError, suggestion
from gpu_fleet.core.files import DISK_FULL
from gpu_fleet.models import pretrained
from gpu_fleet.models.definitions import Facts, Logits, bert, gpt, gpt2, resnet50, resnet_small


@dataclass(frozen=True)
class ModelEntry:
    data: tuple[str, ...]  # the kinds of data that it takes
    block: str  # the class of its repeated layer: FSDP and activation checkpointing work on each one
    build: Callable[..., nn.Module]  # (facts, **options)


PICTURES = ("images", "shards")
# Keys of config.json that change the result of weights with the same shapes.
DECIDED_BY_NO_SHAPE = (
    *("model_type", "num_attention_heads", "num_key_value_heads", "rope_parameters", "hidden_act"),
    *("activation_function", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
)
OWN_DATA = "own"  # the kind of a user's own data set, which any model may take
REGISTRY = {
    "resnet_small": ModelEntry(PICTURES, "Block", resnet_small),
    "resnet50": ModelEntry(PICTURES, "ResNetBottleNeckLayer", resnet50),
    "bert": ModelEntry(("text",), "BertLayer", bert),
    "gpt": ModelEntry(("tokens",), "LlamaDecoderLayer", gpt),
    "gpt2": ModelEntry(("tokens",), "GPT2Block", gpt2),
}


def build(name: str, options: dict[str, Any], facts: Facts, data_kind: str, weights: str = "") -> nn.Module:
    """Build the model `name` with random weights, or those of a local folder; raises ModelError."""
    if name not in REGISTRY:
        choices = suggestion(name, REGISTRY)
        raise ModelError(f"model.name = {name!r}: unknown{choices}; and AutoModelFor... of transformers")
    entry = REGISTRY[name]
    if data_kind not in (*entry.data, OWN_DATA):
        raise ModelError(f"model.name = {name!r}: takes {' or '.join(entry.data)}, the data is {data_kind}")
    if (facts.classes if "images" in entry.data else facts.vocabulary) < 1:
        raise ModelError(f"model.name = {name!r}: the data set names no classes or no vocabulary")
    known = [key for key in inspect.signature(entry.build).parameters if key != "facts"]
    if key := next((key for key in options if key not in known), ""):
        raise ModelError(f"model.options.{key}: unknown for {name}{suggestion(key, known)}")
    try:
        model = entry.build(facts, **options)
    except Exception as error:  # a definition in transformers may raise anything
        reason = str(error).strip().splitlines()[-1].strip()
        raise ModelError(f"model.options = {options}: {name} cannot be built: {reason}") from error
    if not blocks(model, name):
        raise ModelError(f"model.options = {options}: {name} cannot be built: it would have no layers")
    for part, weight in model.named_parameters():  # torch only warns about a width of 0
        if weight.numel() == 0:
            raise ModelError(
                f"model.options = {options}: {name} cannot be built: {part} is of shape {list(weight.shape)}"
            )
    if weights:
        load_weights(model, Path(weights))
    return model


def blocks(model: nn.Module, name: str) -> list[nn.Module]:
    """Return the repeated layers, in order: in an own model, lists of several layers of one class."""
    if pretrained.is_pretrained(name):
        return pretrained.blocks(model)
    if name in REGISTRY:
        return [module for module in model.modules() if type(module).__name__ == REGISTRY[name].block]
    containers = (nn.ModuleList, nn.Sequential)
    lists = [list(module) for module in model.modules() if isinstance(module, containers)]
    alike = [layers for layers in lists if len({type(layer) for layer in layers}) == 1 < len(layers)]
    return [layer for layers in alike for layer in layers if not isinstance(layer, containers)]


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load FOLDER/model.safetensors, also of `save_pretrained`; raises ModelError naming a misfit."""
    from safetensors.torch import load_file  # noqa: PLC0415 - only runs that start from weights need it

    file = folder / "model.safetensors"
    try:
        weights = load_file(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.weights = {str(folder)!r}: {file} cannot be read: {error}") from error
    inner = next((module for module in model.modules() if isinstance(module, Logits)), None)
    whole = inner is None or any(".network." in f".{key}" for key in weights)
    target = model if inner is None or whole else inner.network
    try:
        target.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(f"model.weights = {str(folder)!r}: does not fit the model: {error}") from error
    if inner is not None and (folder / "config.json").exists():
        _check_computes_alike(inner.network.config, folder)


def _check_computes_alike(ours: Any, folder: Path) -> None:
    """Raise ModelError if the weights fit in shape, but their config.json computes another result."""
    from transformers import AutoConfig  # noqa: PLC0415 - loaded with the model

    try:
        theirs = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"model.weights = {str(folder)!r}: config.json cannot be read: {reason}") from error
    decided = ((key, getattr(theirs, key, None), getattr(ours, key, None)) for key in DECIDED_BY_NO_SHAPE)
    if differing := [f"{key} {saved!r} -> {here!r}" for key, saved, here in decided if saved != here]:
        raise ModelError(
            f"model.weights = {str(folder)!r}: belong to another model than model.options say (its file -> "
            f"here): {', '.join(differing)}; set model.options, or take an AutoModelFor..., which reads "
            "config.json"
        )


def save(model: nn.Module, weights: dict[str, Tensor], folder: Path, source: str = "") -> None:
    """Write a model for `model.weights` or `from_pretrained`; raises ModelError, OSError for a full disk."""
    from safetensors import SafetensorError  # noqa: PLC0415 - once per run
    from safetensors.torch import save_file  # noqa: PLC0415

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not pretrained.save(model, weights, folder, source):
            save_file(weights, folder / "model.safetensors")
    except (OSError, SafetensorError) as error:  # a full disk raises SafetensorError
        if getattr(error, "errno", None) in DISK_FULL or os.strerror(errno.ENOSPC) in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise ModelError(f"{folder}: the model cannot be written: {error}") from error


def recompute_activations(model: nn.Module, name: str) -> None:
    """Make the backward pass compute each repeated layer again instead of keeping its activations."""
    for block in blocks(model, name):
        block.forward = MethodType(_recomputed, block)  # deepcopy of the model binds it anew


def _recomputed(block: nn.Module, *inputs: Any, **options: Any) -> Any:
    forward = MethodType(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*inputs, **options)
    return checkpoint(forward, *inputs, use_reentrant=False, **options)
