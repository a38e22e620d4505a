"""Definitions of the models in the registry, from transformers where it has them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PADDING = 0  # token id of padding in kind "text"
IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of RGB in [0, 1]; published image weights expect it
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Facts:
    """Facts about the data that a model needs."""

    classes: int = 0
    vocabulary: int = 0
    sequence_length: int = 0
    class_names: tuple[str, ...] = ()


class Pixels(nn.Module):
    """Layer from uint8 (batch, 3, height, width) to normalised float32; mean and std are for [0, 1]."""

    def __init__(
        self,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        *,
        bgr: bool = False,
    ) -> None:
        super().__init__()
        self._bgr = bgr
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("deviation", torch.tensor(std).view(3, 1, 1) * 255, persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        normalised = (pictures - self.mean) / self.deviation
        return normalised.flip(1) if self._bgr else normalised


class Block(nn.Module):
    """Basic residual block of He et al., 2015: two 3x3 convolutions beside a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)
        same = stride == 1 and width_in == width
        self.shortcut = nn.Identity() if same else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(inputs)))
        return functional.relu(self.second_norm(self.second(self.dropout(hidden))) + self.shortcut(inputs))


def resnet_small(
    facts: Facts, widths: tuple[int, ...] = (16, 32, 64), blocks: int = 1, dropout: float = 0.0
) -> nn.Module:
    """Build a residual network for small pictures (8 to 64 pixels a side), as He et al. did for CIFAR-10."""
    layers: list[nn.Module] = [
        Pixels(),
        nn.Conv2d(3, widths[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    width_in = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Block(width_in, width, 2 if stage > 0 and block == 0 else 1, dropout))
            width_in = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(width_in, facts.classes)]
    return nn.Sequential(*layers)


class Logits(nn.Module):
    """Model of transformers that takes one tensor and returns only its logits."""

    def __init__(self, network: nn.Module, masks_padding: bool = False) -> None:
        super().__init__()
        self.network = network
        self._masks_padding = masks_padding

    def forward(self, inputs: Tensor) -> Tensor:
        """Map tokens (batch, sequence) or pictures (batch, 3, height, width) to logits (..., classes)."""
        mask = {"attention_mask": (inputs != PADDING).long()} if self._masks_padding else {}
        logits = self.network(inputs, **mask).logits
        assert isinstance(logits, Tensor)
        return logits


def resnet50(facts: Facts) -> nn.Module:
    """Build ResNet-50 v1.5 (stride in the 3x3 convolution), for pictures of about 224 pixels a side."""
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415 - seconds to load

    return nn.Sequential(Pixels(), Logits(ResNetForImageClassification(ResNetConfig(**_labels(facts)))))


def _labels(facts: Facts) -> dict[str, Any]:
    return {"num_labels": facts.classes}  # every configuration accepts it, but the type hints lack it


def bert(
    facts: Facts,
    *,
    hidden_size: int = 768,
    layers: int = 12,
    heads: int = 12,
    intermediate_size: int = 3072,
    dropout: float = 0.1,
) -> nn.Module:
    """Build BERT with a classification head (Devlin et al., 2018); the defaults are those of bert-base."""
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
    """Build a Llama decoder; published weights need their rope_theta and norm_eps too."""
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
    """Build GPT-2 (Radford et al., 2019); the defaults are those of the 124 M model."""
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
