"""Memory and operations of training, from the model's size. Pure; every formula names its source.

[ZeRO] Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
[Korthikanti] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
[PaLM] Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.
[Chinchilla] Hoffmann et al., "Training Compute-Optimal Large Language Models", 2022.
[Kaplan] Kaplan et al., "Scaling Laws for Neural Language Models", 2020.
"""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["bf16", "fp16", "fp32"]

# [Kaplan], section 2.1: a decoder layer has 12 width^2 parameters; GPT-3 and Llama are about 128 times as
# wide as they are deep.
PARAMETERS_PER_LAYER = 12
WIDTH_PER_LAYER = 128
# [Chinchilla], table 3: the compute-optimal number of tokens.
TOKENS_PER_PARAMETER = 20
# [ZeRO], section 3.1. Mixed precision keeps 16-bit weights and gradients beside 32-bit weights for Adam;
# autocast keeps both in 32 bits. Either takes 16 bytes with Adam's two moments, as fp32 does.
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 4, 4, 8
# [Korthikanti], equation 1 without the attention matrix, which fused attention never stores; and section 5.1.
ACTIVATION_BYTES, CHECKPOINT_BYTES = 34, 2
HALF_BYTES = 2
# [Korthikanti], section 5: full recomputation repeats the forward pass, a third of the whole.
RECOMPUTATION = 4 / 3


@dataclass(frozen=True)
class Work:
    """A training run.

    Attributes:
        batch: sequences of one optimizer step, over all GPUs.
    """

    parameters: float
    precision: Precision
    batch: int
    sequence: int
    tokens: float
    layers: int
    width: int

    @property
    def flops(self) -> float:
        """Operations of the whole run, [PaLM]: 6 N and 12 L H T for a token."""
        attention = 12 * self.layers * self.width * self.sequence
        return (6 * self.parameters + attention) * self.tokens


def shape_of(parameters: float) -> tuple[int, int]:
    """Return layers and width of a decoder of that many parameters, [Kaplan]."""
    layers = max(1, round((parameters / (PARAMETERS_PER_LAYER * WIDTH_PER_LAYER**2)) ** (1 / 3)))
    return layers, layers * WIDTH_PER_LAYER


def state_bytes(parameters: float) -> float:
    """Return the bytes of weights, gradients and Adam's moments, [ZeRO]."""
    return parameters * (WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES)


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of one GPU, in bytes.

    Attributes:
        optimizer: Adam's two moments of each parameter.
        activations: what the backward pass needs of one sequence.
        gathered: the layer that FSDP holds whole at a time, and the next one.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.gathered


@dataclass(frozen=True)
class Layout:
    """Distribution of a run over GPUs.

    Attributes:
        sharded: FSDP: each GPU keeps a part of weights, gradients and moments.
        checkpointed: activations are computed again instead of kept.
    """

    sharded: bool
    checkpointed: bool

    def __str__(self) -> str:
        spread = "FSDP" if self.sharded else "DDP"
        return f"{spread}, recomputing" if self.checkpointed else spread


# From the fastest to the one that needs the least memory.
LAYOUTS = tuple(Layout(sharded, again) for sharded in (False, True) for again in (False, True))


def memory(work: Work, layout: Layout, gpus: int) -> MemoryNeed:
    """Return the memory of one of ``gpus`` GPUs with one sequence at a time; accumulation adds more."""
    parts = gpus if layout.sharded else 1
    element = 2 if work.precision == "fp32" else 1
    each = work.sequence * work.width * element
    kept = (
        CHECKPOINT_BYTES * work.layers + ACTIVATION_BYTES
        if layout.checkpointed
        else ACTIVATION_BYTES * work.layers
    )
    layer = work.parameters / work.layers * HALF_BYTES * element
    return MemoryNeed(
        weights=work.parameters * WEIGHT_BYTES / parts,
        gradients=work.parameters * GRADIENT_BYTES / parts,
        optimizer=work.parameters * OPTIMIZER_BYTES / parts,
        activations=each * kept,
        gathered=2 * layer if layout.sharded else 0,
    )


def seconds(flops: float, layout: Layout, peak_flops_per_s: float, utilisation: float) -> float:
    """Return the time of this many operations on all GPUs together.

    Args:
        flops: of the model, without recomputation.
        layout: recomputing costs another forward pass.
        utilisation: the share of the peak rate that a run reaches, 0 to 1.
    """
    again = RECOMPUTATION if layout.checkpointed else 1
    return flops * again / (peak_flops_per_s * utilisation)
