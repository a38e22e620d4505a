"""Models that a measurement trains: ResNet-50 and GPT-2 124M on GPUs, small stand-ins of both elsewhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_fleet.core import config
from gpu_fleet_jobs.measure.synthetic import write_tokens

RESNET50, GPT2_124M = "resnet50", "gpt2_124m"
PICTURES = "gpu_fleet_jobs.measure.synthetic:pictures"
EPOCH = 1 << 20  # samples of the synthetic pictures
TURNS = 3
SEQUENCE, TOKENS, VOCABULARY = 1024, 1 << 24, 50257
SMALL_SEQUENCE, SMALL_TOKENS, SMALL_VOCABULARY = 16, 1 << 15, 64


@dataclass(frozen=True)
class Workload:
    """A model, its data, and how long it is trained.

    Attributes:
        name: `resnet50`, `gpt2_124m`, or the name of a stand-in.
        stands_for: the model in whose place it is trained; empty for the model itself.
        per_rank: samples of a step on each rank: the work of a rank is the same at every size.
        steps: optimizer steps of a turn.
        table: the rest of the configuration.
    """

    name: str
    stands_for: str
    per_rank: int
    steps: int
    table: dict[str, Any]

    def settings(self, ranks: int, directory: Path) -> config.Config:
        """Return the configuration for a number of ranks; writes token files into `directory`."""
        table = {**self.table, "data": dict(self.table["data"])}
        if made := table.pop("tokens", None):
            folder = directory / "tokens"
            write_tokens(folder, **made)
            table["data"]["path"] = str(folder)
        run = {"directory": str(directory / "run"), "steps": 1, "batch_size": self.per_rank * ranks}
        return config.Config.model_validate({**table, "run": run})


def workloads(dtype: str) -> tuple[Workload, ...]:
    """Return the models to train.

    Args:
        dtype: number format of GPUs, `bf16` or `fp16`; empty for processors.
    """
    return _of_gpus(dtype) if dtype else _stand_ins()


def _of_gpus(dtype: str) -> tuple[Workload, ...]:
    """Return both models, as training/examples/ has them, for a GPU of 16 GiB or more."""
    pictures = {"count": EPOCH, "side": 224, "classes": 1000}
    resnet = {
        "model": {"name": "resnet50"},
        "data": {"name": PICTURES, "options": pictures},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "precision": {"dtype": dtype, "channels_last": True, "cudnn_benchmark": True},
    }
    gpt2 = {
        "model": {"name": "gpt2"},
        "tokens": {"tokens": TOKENS, "vocabulary": VOCABULARY},
        "data": {"sequence_length": SEQUENCE},
        "precision": {"dtype": dtype},
    }
    return (Workload(RESNET50, "", 64, 40, resnet), Workload(GPT2_124M, "", 4, 40, gpt2))


def _stand_ins() -> tuple[Workload, ...]:
    resnet = {
        "model": {"name": "resnet_small", "options": {"widths": [8]}},
        "data": {"name": PICTURES, "options": {"count": EPOCH, "side": 16, "classes": 10}, "workers": 0},
    }
    gpt = {
        "model": {
            "name": "gpt",
            "options": {"hidden_size": 32, "layers": 2, "heads": 4, "intermediate_size": 64},
        },
        "tokens": {"tokens": SMALL_TOKENS, "vocabulary": SMALL_VOCABULARY},
        "data": {"sequence_length": SMALL_SEQUENCE, "workers": 0},
    }
    return (
        Workload("resnet_small", RESNET50, 16, 5, resnet),
        Workload("gpt_of_two_layers", GPT2_124M, 16, 5, gpt),
    )
