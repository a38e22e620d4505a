"""Published training speeds, and the advice for the same runs."""

import math
from dataclasses import dataclass

from gpu_fleet_stacks.advise.offers import of_type
from gpu_fleet_stacks.advise.plan import facts, peak
from gpu_fleet_stacks.advise.work import Layout, Work, seconds
from gpu_fleet_stacks.catalog import load

PLAIN = Layout(sharded=False, checkpointed=False)


@dataclass(frozen=True)
class Published:
    """One figure: samples (tokens for a decoder) a second of all GPUs, and its source."""

    name: str
    instance: str
    gpus: int
    flops_per_sample: float
    samples_per_s: float
    kind: str
    source: str

    @property
    def model(self) -> str:
        """Return the model that was trained."""
        return self.name.partition("_")[0]

    @property
    def error(self) -> float:
        """Return the advised time over the published one, less 1."""
        instance = peak(of_type(load().get(self.instance)), "fp16")
        assert instance is not None
        advised = seconds(
            self.flops_per_sample, PLAIN, instance * self.gpus, facts()["utilisation"][self.kind]
        )
        return advised * self.samples_per_s - 1


def held_out_errors() -> list[float]:
    """Return for each published run its error, if the utilisation were fitted on the others of its kind.

    A run that is compiled or not, or on more GPUs, counts as the same run: none of them fits another.
    """
    errors = []
    for run in PUBLISHED:
        others = [1 + each.error for each in PUBLISHED if each.kind == run.kind and each.model != run.model]
        if others:
            fitted = math.prod(others) ** (1 / len(others))
            errors.append((1 + run.error) / fitted - 1)
    return errors


def per_token(parameters: float, layers: int, width: int, sequence: int) -> float:
    return Work(parameters, "bf16", 1, sequence, 1, layers, width).flops


# 8.03e9 less the 0.53e9 of the input table, which is only looked up in; torchtitan counts it so.
LLAMA_8B = per_token(7.5e9, 32, 4096, 8192)
# Encoder of BERT-large; one sample is a sequence of 384 tokens.
BERT = per_token(302e6, 24, 1024, 384) * 384
# 4.1e9 multiply-adds forward (He et al. 2015), two operations each, and twice that backward.
RESNET_50 = 4.1e9 * 2 * 3
TORCHTITAN = "github.com/pytorch/torchtitan, benchmarks"
EXAMPLES = "github.com/NVIDIA/DeepLearningExamples"

PUBLISHED = (
    # README: 600,000 steps of 491,520 tokens in about four days
    Published(
        "nanogpt_124m_8_a100",
        "p4d.24xlarge",
        8,
        per_token(124e6, 12, 768, 1024),
        600_000 * 491_520 / (4 * 86_400),
        "decoder",
        "github.com/karpathy/nanoGPT",
    ),
    Published("llama_8b_8_h100", "p5.48xlarge", 8, LLAMA_8B, 8 * 5762, "decoder", TORCHTITAN),
    Published("llama_8b_8_h100_compiled", "p5.48xlarge", 8, LLAMA_8B, 8 * 6667, "decoder", TORCHTITAN),
    Published("bert_large_a100", "p4de.24xlarge", 1, BERT, 110.5, "decoder", EXAMPLES),
    Published("resnet_50_a100", "p4de.24xlarge", 1, RESNET_50, 2470, "convolution", EXAMPLES),
    Published("resnet_50_8_a100", "p4de.24xlarge", 8, RESNET_50, 16_621, "convolution", EXAMPLES),
)
