"""Small data sets and configurations for tests."""

import os
import shutil
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_fleet.checkpoint import local
from gpu_fleet.core import config
from gpu_fleet.core.world import world
from gpu_fleet.data.dataset import Description, write_description
from gpu_fleet.metrics.records import read_json_lines
from gpu_fleet.preemption.interrupt import Interruption, Reason
from gpu_fleet.step.spread import mean_loss
from gpu_fleet.trainer import loop
from tests.training.ranks import run_ranks

# From a good configuration and a folder of the test to a changed configuration.
Change = Callable[[dict[str, Any], Path], dict[str, Any]]

VOCABULARY = 32
NUMBERED_LENGTH = 4


def few_digits(digits: Path, folder: Path, count: int = 512) -> Path:
    """Copy the first `count` training pictures of the digits into a data set, for both splits."""
    for split in ("train", "val"):
        for picture in sorted((digits / "train").glob("*/*.png"), key=lambda file: file.name)[:count]:
            copy = folder / split / picture.parent.name / picture.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, copy)
    return folder


def write_tokens(folder: Path, tokens: int = 4000) -> Path:
    """Write token files of a text that repeats itself with a few errors, so that it can be learned."""
    chance = np.random.default_rng(7)
    text = np.tile(chance.integers(0, VOCABULARY, 97), tokens // 97 + 1)[:tokens]
    slips = chance.random(tokens) < 0.05
    text[slips] = chance.integers(0, VOCABULARY, slips.sum())
    for split, part in (("train", text), ("val", text[: tokens // 8])):
        (folder / split).mkdir(parents=True)
        part.astype("<u2").tofile(folder / split / "tokens.bin")
    write_description(folder, Description("tokens", vocabulary=VOCABULARY, bytes_per_token=1.0))
    return folder


def write_numbered(folder: Path, samples: int) -> Path:
    """Write token files whose sample n has NUMBERED_LENGTH tokens, all equal to n."""
    for split in ("train", "val"):
        (folder / split).mkdir(parents=True)
        tokens = np.append(np.repeat(np.arange(samples), NUMBERED_LENGTH), 0)
        tokens.astype("<u2").tofile(folder / split / "tokens.bin")
    write_description(folder, Description("tokens", vocabulary=samples))
    return folder


def gpt_table(data: Path, directory: Path, steps: int = 6) -> dict[str, Any]:
    """Return the configuration of a decoder of a few thousand parameters."""
    sizes = {"hidden_size": 32, "layers": 2, "heads": 4, "intermediate_size": 64}
    return {
        **_run_of(directory, steps, batch_size=8),
        "model": {"name": "gpt", "options": sizes},
        "data": {"path": str(data), "sequence_length": 16},
        "optimizer": {"learning_rate": 0.01, "clip_norm": 1.0},
    }


def resnet_table(data: Path, directory: Path, steps: int = 12) -> dict[str, Any]:
    """Return the configuration of a residual network with dropout, augmentation and accumulation."""
    return {
        **_run_of(directory, steps, batch_size=128),
        "model": {"name": "resnet_small", "options": {"widths": [8], "dropout": 0.2}},
        "data": {"path": str(data), "augmentation": "shift"},
    }


def _run_of(directory: Path, steps: int, batch_size: int) -> dict[str, Any]:
    run = {"directory": str(directory), "steps": steps, "batch_size": batch_size, "accumulation": 2}
    return {
        "run": {**run, "log_every_steps": 1},
        "checkpoint": {"every_steps": 0, "every_s": 0.0},
        "interrupt": {"agree_every_s": 0.0},  # a test knows at which step a run stops
        "metrics": {"progress": False},
    }


def changed(table: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a configuration with some keys set."""
    result = deepcopy(table)
    for section, keys in sections.items():
        result.setdefault(section, {}).update(keys)
    return result


def train_on(size: int, table: dict[str, Any], stop_at: int = 0) -> dict[str, Any]:
    """Train on `size` ranks and return rank 0's outcome; see `train_rank` for stop_at."""
    return run_ranks(train_rank, size, table, stop_at)[0]


def interrupted(
    size: int,
    table: Callable[[str], dict[str, Any]],
    stop_at: int,
    straight: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train `table("straight")`, and `table("broken")` that is stopped after so many steps and resumed.

    Check that both end with the same bits; return the resumed outcome. The straight one may be known.
    """
    undisturbed = straight or train_on(size, table("straight"))
    stopped, resumed = train_on(size, table("broken"), stop_at), train_on(size, table("broken"))
    assert (stopped["outcome"], stopped["reason"], stopped["step"]) == ("stopped", "stop-file", stop_at)
    assert resumed["resumed_from_step"] == stop_at
    assert resumed["parameters_sha256"] == undisturbed["parameters_sha256"] != stopped["parameters_sha256"]
    assert resumed["metric"] == undisturbed["metric"]
    return resumed


def train_rank(table: dict[str, Any], stop_at: int = 0) -> dict[str, Any]:
    """Train on this rank. With `stop_at`, the last rank gets a notice after so many steps."""
    settings = config.from_table(table, "test")
    with world(settings.parallel) as where:
        last = stop_at + 1 if stop_at and where.size == 1 else stop_at  # who is alone stops at once
        interruption = CountingInterruption(last if where.rank == where.size - 1 else 0)
        return asdict(loop.train(settings, where, interruption))


def killed_rank(table: dict[str, Any], micro_batches: int) -> None:
    """Train on this rank, and kill it in the backward pass after so many micro-batches, as kill -9 does."""
    seen = 0

    def fatal_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        if seen == micro_batches:
            if table["checkpoint"]["every_steps"]:
                await_checkpoint(Path(table["run"]["directory"]))
            os._exit(137)
        return mean_loss(outputs, targets)

    loop.mean_loss = fatal_loss
    train_rank(table)


def await_checkpoint(directory: Path) -> None:
    """Wait until a save beside the training is on disk, also on a busy computer."""
    for _ in range(3000):
        if local.steps(directory / "checkpoints"):
            return
        time.sleep(0.01)


class CountingInterruption(Interruption):
    """Interruption after `stop_at` requests for its reason; the loop asks once before the first step."""

    def __init__(self, stop_at: int) -> None:
        super().__init__([], poll_s=1.0)
        self.asked, self._stop_at = 0, stop_at

    @property
    def reason(self) -> Reason:
        self.asked += 1
        return Reason.STOP_FILE if 0 < self._stop_at < self.asked else Reason.NONE

    @property
    def detail(self) -> str:
        return f"after {self._stop_at} questions"


def losses(directory: str | Path) -> list[float]:
    """Return the loss of every logged step."""
    records = read_json_lines(Path(directory) / "metrics.jsonl")
    return [float(record["loss"]) for record in records if record["kind"] == "train"]


def compile_without_code() -> None:
    """Make this process capture, differentiate and split graphs, but run them by torch, from now on.

    The code that the default backend generates for a model takes most of a minute to compile.
    """
    nn.Module.compile = partialmethod(nn.Module.compile, backend="aot_eager")  # type: ignore[assignment,method-assign]  # for this process
    torch.compile = partial(torch.compile, backend="aot_eager")


def section(name: str, /, **keys: Any) -> Change:
    """Return a change that sets keys of a section."""
    return lambda table, _: changed(table, **{name: keys})


def without_pictures(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a configuration whose data set has empty folders."""
    data = folder / "empty"
    for split in ("train", "val"):
        (data / split / "7").mkdir(parents=True)
    return changed(table, data={"path": str(data)})
