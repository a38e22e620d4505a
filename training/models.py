"""The models by name. Definitions come from transformers where it has them; nothing is downloaded.

A new model is a function that builds it and a line in REGISTRY.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from training.errors import ModelError, suggestion
from training.resnet import resnet_small, with_pixels

PADDING = 0  # token id of kind "text" that holds nothing


@dataclass(frozen=True)
class Facts:
    """What a model has to know of the data."""

    classes: int = 0
    vocabulary: int = 0
    sequence_length: int = 0


class Logits(nn.Module):
    """A model of transformers that takes one tensor and gives its logits alone."""

    def __init__(self, network: nn.Module, masks_padding: bool = False) -> None:
        super().__init__()
        self.network = network
        self._masks_padding = masks_padding

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens (batch, sequence) int64 or pictures (batch, 3, height, width) to logits (..., classes)."""
        mask = {"attention_mask": (inputs != PADDING).long()} if self._masks_padding else {}
        logits = self.network(inputs, **mask).logits
        assert isinstance(logits, Tensor)
        return logits


def resnet50(facts: Facts) -> nn.Module:
    """ResNet-50 v1.5 (stride in the 3x3 convolution), for pictures of about 224 pixels a side."""
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415 - seconds to load

    network = ResNetForImageClassification(ResNetConfig(**_labels(facts)))
    return with_pixels(Logits(network))


def _labels(facts: Facts) -> dict[str, Any]:
    return {"num_labels": facts.classes}  # taken by every configuration, and missing from their hints


def bert(
    facts: Facts,
    *,
    hidden_size: int = 768,
    layers: int = 12,
    heads: int = 12,
    intermediate_size: int = 3072,
    dropout: float = 0.1,
) -> nn.Module:
    """BERT with a classification head (Devlin et al., 2018); the defaults are those of bert-base."""
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415 - seconds to load

    configuration = BertConfig(
        vocab_size=facts.vocabulary,
        **_labels(facts),
        max_position_embeddings=max(512, facts.sequence_length),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate_size,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return Logits(BertForSequenceClassification(configuration), masks_padding=True)


def gpt(
    facts: Facts,
    *,
    hidden_size: int = 768,
    layers: int = 12,
    heads: int = 12,
    key_value_heads: int = 0,
    intermediate_size: int = 2048,
    attention_dropout: float = 0.0,
    rope_theta: float = 10_000.0,
    norm_eps: float = 1e-6,
) -> nn.Module:
    """A Llama decoder: the one model that every strategy can spread. key_value_heads 0: as many as heads.

    rope_theta and norm_eps belong to published weights as much as the sizes do: Llama 3 has 500,000 and 1e-5
    (config.json of meta-llama/Llama-3.1-8B).
    """
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - seconds to load

    configuration = LlamaConfig(
        vocab_size=facts.vocabulary,
        max_position_embeddings=facts.sequence_length,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads or heads,
        intermediate_size=intermediate_size,
        attention_dropout=attention_dropout,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        rms_norm_eps=norm_eps,
        tie_word_embeddings=False,  # the first and the last stage of a pipeline share nothing
        use_cache=False,
    )
    return Logits(LlamaForCausalLM(configuration))


def gpt2(
    facts: Facts, hidden_size: int = 768, layers: int = 12, heads: int = 12, dropout: float = 0.0
) -> nn.Module:
    """GPT-2 (Radford et al., 2019); the defaults are those of the 124 M model."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - seconds to load

    configuration = GPT2Config(
        vocab_size=facts.vocabulary,
        n_positions=facts.sequence_length,
        n_embd=hidden_size,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,
    )
    return Logits(GPT2LMHeadModel(configuration))


@dataclass(frozen=True)
class Entry:
    """One model of the registry."""

    data: tuple[str, ...]  # the kinds of data it takes
    block: str  # the class of its repeated layer: what FSDP shards and checkpointing recomputes one by one
    build: Callable[..., nn.Module]  # (facts, **options)


PICTURES = ("images", "shards")
REGISTRY = {
    "resnet_small": Entry(PICTURES, "Block", resnet_small),
    "resnet50": Entry(PICTURES, "ResNetBottleNeckLayer", resnet50),
    "bert": Entry(("text",), "BertLayer", bert),
    "gpt": Entry(("tokens",), "LlamaDecoderLayer", gpt),
    "gpt2": Entry(("tokens",), "GPT2Block", gpt2),
}


def build(name: str, options: dict[str, Any], facts: Facts, data_kind: str, weights: str = "") -> nn.Module:
    """The model `name` with random weights, or those of a local folder; raises ModelError."""
    if name not in REGISTRY:
        raise ModelError(f"model.name = {name!r}: unknown{suggestion(name, REGISTRY)}")
    entry = REGISTRY[name]
    if data_kind not in entry.data:
        raise ModelError(f"model.name = {name!r}: takes {' or '.join(entry.data)}, the data is {data_kind}")
    known = [key for key in inspect.signature(entry.build).parameters if key != "facts"]
    for key in options:
        if key not in known:
            raise ModelError(f"model.options.{key}: unknown for {name}{suggestion(key, known)}")
    try:
        model = entry.build(_input_facts(name, facts), **options)
    except Exception as error:  # the definitions of others raise what they like
        reason = str(error).strip().splitlines()[-1].strip()
        raise ModelError(f"model.options = {options}: {name} cannot be built: {reason}") from error
    if weights:
        load_weights(model, Path(weights))
    return model


def _input_facts(name: str, facts: Facts) -> Facts:
    """The facts, when the data has what the model needs; raises ModelError."""
    needed = facts.classes if "images" in REGISTRY[name].data else facts.vocabulary
    if needed < 1:
        raise ModelError(f"model.name = {name!r}: the data set names no classes or no vocabulary")
    return facts


def blocks(model: nn.Module, name: str) -> list[nn.Module]:
    """The repeated layers of a built model, in order."""
    return [module for module in model.modules() if type(module).__name__ == REGISTRY[name].block]


def load_weights(model: nn.Module, folder: Path) -> None:
    """Fills the model from FOLDER/model.safetensors; raises ModelError naming what does not fit.

    Takes both what this trainer writes after a run and what `save_pretrained` of transformers writes.
    """
    from safetensors.torch import load_file  # noqa: PLC0415 - only runs that start from weights need it

    file = folder / "model.safetensors"
    try:
        weights = load_file(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.weights = {str(folder)!r}: {file} cannot be read: {error}") from error
    target = model
    if isinstance(model, Logits) and not any(key.startswith("network.") for key in weights):
        target = model.network
    try:
        target.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelError(f"model.weights = {str(folder)!r}: does not fit the model: {error}") from error


def save_weights(weights: dict[str, Tensor], folder: Path) -> None:
    """Writes FOLDER/model.safetensors, which `model.weights` of a later run reads; raises ModelError."""
    from safetensors import SafetensorError  # noqa: PLC0415 - once per run
    from safetensors.torch import save_file  # noqa: PLC0415

    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors")
    except (OSError, SafetensorError) as error:  # the second is what a full disk raises
        raise ModelError(f"{folder}: the model cannot be written: {error}") from error


def recompute_activations(model: nn.Module, name: str) -> None:
    """Lets the backward pass compute each repeated layer again instead of keeping its activations."""
    for block in blocks(model, name):
        block.forward = MethodType(_recomputed, block)  # a copy of the model binds anew


def _recomputed(block: nn.Module, *inputs: Any, **options: Any) -> Any:
    forward = MethodType(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*inputs, **options)
    return checkpoint(forward, *inputs, use_reentrant=False, **options)
