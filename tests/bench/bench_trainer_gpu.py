"""ResNet-50 and GPT-2 on a GPU: the trainer beside a bare PyTorch loop, with and without compile.

Data is made on the spot: noise has the arithmetic of pictures and text. Without a GPU there is nothing to
measure, and the bench says so with an empty set of entries.
"""

import gc
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from click.testing import CliRunner
from PIL import Image

from gpu_fleet import cli
from gpu_fleet.core import config
from gpu_fleet.core.world import world
from gpu_fleet.data.dataset import Description, write_description
from gpu_fleet_jobs.measure.bench import StepTimes, measure_steps
from tests.bench.entries import entry

COMMAND = "python -m tests.bench.bench_trainer_gpu"
GOAL_RATIO = 0.99  # bare step over trainer's step, at least
TURNS, STEPS = 5, 40
PICTURES, SIDE, CLASSES = 2048, 224, 8
TOKENS, VOCABULARY, LENGTH = 1_000_000, 50257, 1024
NANOGPT_MFU = 0.30  # GPT-2 124M on eight A100, https://github.com/karpathy/nanoGPT


def main() -> None:
    """Prints the entries."""
    if not torch.cuda.is_available():
        click.echo("no GPU: nothing to measure", err=True)
        click.echo(json.dumps({}))
        return
    with tempfile.TemporaryDirectory() as folder:
        click.echo(json.dumps(entries(tables(Path(folder)), TURNS, STEPS), indent=2))


def tables(folder: Path) -> dict[str, dict[str, Any]]:
    """Both models at their usual sizes, by name."""
    return {
        "resnet50": resnet50_table(write_pictures(folder / "pictures"), folder / "run"),
        "gpt2": gpt2_table(write_tokens(folder / "tokens"), folder / "run"),
    }


def entries(tables: dict[str, dict[str, Any]], turns: int, steps: int) -> dict[str, dict[str, Any]]:
    """Every model eager and compiled, one after the other on this process's device."""
    found: dict[str, dict[str, Any]] = {}
    for model, table in tables.items():
        for compiled in (False, True):
            table["precision"]["compile"] = compiled
            name = f"{model}_compiled" if compiled else model
            found |= entries_of(name, measure(table, turns, steps))
            torch.compiler.reset()  # the graphs hold the models, and their memory
            gc.collect()
            torch.cuda.empty_cache()
    return found


def measure(table: dict[str, Any], turns: int, steps: int) -> StepTimes:
    """Both loops on this process's device."""
    settings = config.from_table(table, COMMAND)
    with world(settings.parallel) as where:
        return measure_steps(settings, where, turns, steps)


def entries_of(name: str, times: StepTimes) -> dict[str, dict[str, Any]]:
    """The ratio of the steps, and the part of the GPU's peak where it is known."""
    trainer_s, bare_s = statistics.median(times.trainer_s), statistics.median(times.bare_s)
    rate = times.samples_per_step / trainer_s
    peer_rate, goal = times.samples_per_step / bare_s, f">= {GOAL_RATIO} of a bare PyTorch loop"
    steps = entry(rate, "samples/s", peer_rate, goal, command=COMMAND, ratio=times.ratio)
    found = {f"{name}_step_ratio": steps}
    if times.utilisation is not None:
        mfu = times.utilisation.of(rate)
        peer = NANOGPT_MFU if name.startswith("gpt2") else None
        unit = f"of {times.utilisation.peak_flops_per_s / 1e12:g} TFLOP/s"
        goal = "> nanoGPT on A100" if peer else "stated"
        found[f"{name}_mfu"] = entry(mfu, unit, peer, goal, command=COMMAND)
    return found


def resnet50_table(data: Path, run: Path) -> dict[str, Any]:
    """ResNet-50 v1.5 as it is usually measured: 224 pixels, 256 pictures a step, bf16, channels last."""
    return {
        "run": {"directory": str(run), "steps": 1, "batch_size": 256},
        "model": {"name": "resnet50"},
        "data": {"path": str(data), "workers": 14, "prefetch": 4},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "precision": {"dtype": "bf16", "channels_last": True},
    }


def gpt2_table(data: Path, run: Path) -> dict[str, Any]:
    """GPT-2 124M at 1,024 tokens, 16 sequences a step, bf16."""
    return {
        "run": {"directory": str(run), "steps": 1, "batch_size": 16},
        "model": {"name": "gpt2"},
        "data": {"path": str(data), "workers": 4, "sequence_length": LENGTH},
        "precision": {"dtype": "bf16"},
    }


def write_pictures(folder: Path, count: int = PICTURES, side: int = SIDE) -> Path:
    """Shards of JPEG pictures of smooth noise, about as large as photographs of that size."""
    chance = np.random.default_rng(0)
    source = folder.with_name(f"{folder.name}-source")
    for split, pictures in (("train", count), ("val", CLASSES)):
        for number in range(pictures):
            coarse = chance.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
            file = source / split / f"{number % CLASSES}" / f"{number:05d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(coarse).resize((side, side)).save(file, quality=90)
    packed = ["prepare", "shards", str(source), str(folder), "--samples", str(max(1, count // 32))]
    result = CliRunner().invoke(cli.main, packed)
    if result.exit_code:
        raise SystemExit(result.output)
    return folder


def write_tokens(folder: Path, count: int = TOKENS, vocabulary: int = VOCABULARY) -> Path:
    """Token files of noise."""
    chance = np.random.default_rng(0)
    for split, tokens in (("train", count), ("val", count // 10)):
        (folder / split).mkdir(parents=True)
        ids = chance.integers(0, vocabulary, tokens)
        ids.astype("<u2").tofile(folder / split / "tokens.bin")
    write_description(folder, Description("tokens", vocabulary=vocabulary))
    return folder


if __name__ == "__main__":
    main()
