"""The trainer against what one would write or take instead, each pair measured in one run, on this CPU."""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

from gpu_fleet import config, loop
from gpu_fleet.bench import StepTimes, Turns
from gpu_fleet.checkpoint.manager import Checkpoints
from gpu_fleet.cli import main as training_command
from gpu_fleet.data.loader import Share, training_slices
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.evaluation import mean_loss
from gpu_fleet.parallel.spread import Whole
from gpu_fleet.parallel.world import world
from gpu_fleet.run import fresh_state, opened, rehearse
from gpu_fleet.state import State
from gpu_fleet.stopping.interrupt import Interruption
from gpu_fleet.stopping.stop import Stop
from tests.training.programs import DIGITS, torchrun
from tests.training.ranks import run_ranks

COMMAND = "python -m tests.bench.bench_trainer"
STEPS_A_TURN = 5  # few, for both loops to have the same share of what else the machine does
STEPS_A_BLOCK = 20  # one log interval
BLOCKS = 200
SAVES = 12
SAMPLES_A_STEP = 64  # of the model whose saves are timed
MEGABYTE = 10**6
SAMPLES = 10**7  # a large data set: ImageNet-22k has 1.4e7 pictures
POSITION = 10**9 + SAMPLES // 2  # in the middle of an epoch, after a billion samples


def entry(value: float, unit: str, peer: float, goal: str) -> dict[str, Any]:
    """One figure beside its peer."""
    return {
        "value": round(value, 4),
        "unit": unit,
        "peer": round(peer, 4),
        "ratio": round(value / peer, 6),
        "goal": goal,
        "command": COMMAND,
    }


def prepared_digits(folder: Path) -> Path:
    """The digits as a data set."""
    done = CliRunner().invoke(training_command, ["prepare", "digits", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def loop_overhead(data: Path, folder: Path) -> dict[str, Any]:
    """Time of a step of the whole loop against a bare DDP loop of the same model on the same batches."""
    whole, bare = run_ranks(measure_loops, 2, str(data), str(folder), deadline_s=600.0)[0]
    ratios = [one / other for one, other in zip(whole, bare, strict=True)]
    whole_us, bare_us = statistics.median(whole) * 1e6, statistics.median(bare) * 1e6
    found = entry(whole_us, "us per step", bare_us, goal="ratio <= 1.02")
    return {"trainer_loop_overhead": {**found, "ratio": round(statistics.median(ratios), 4)}}


def measure_loops(data: str, folder: str) -> tuple[list[float], list[float]]:
    """Seconds per step of trainer and bare loop, one number for each block, on this rank of two."""
    overrides = {
        "--data.path": data,
        "--run.directory": folder,
        "--run.epochs": "0.0",
        "--run.steps": str(STEPS_A_BLOCK * BLOCKS + STEPS_A_TURN),  # the first turn warms up
        "--run.log_every_steps": str(STEPS_A_BLOCK),
        "--checkpoint.every_steps": "0",
    }
    settings = config.load(DIGITS, [part for pair in overrides.items() for part in pair])
    with world(settings.parallel) as where, opened(settings, where) as run:
        state, bare = fresh_state(run), fresh_state(run)
        rehearse(run, state)
        called, batches = bare_model(bare), run.batches(bare)
        times = StepTimes()
        turns = Turns(
            times,
            STEPS_A_TURN,
            where.device,
            lambda: bare_steps(called, bare.optimizer, islice(batches, STEPS_A_TURN)),
        )
        every_s, due = settings.interrupt.agree_every_s, run.checkpoints.due_by_time
        stop = Stop(where, Interruption([], 1.0), every_s, due, lambda: None, clock=turns.clock)
        loop.train_steps(replace(run, trace=turns), state, stop)
        turns.finish()
        return by_block(times.trainer_s), by_block(times.bare_s)


def by_block(seconds: list[float]) -> list[float]:
    """The means of as many turns as a block has."""
    turns = STEPS_A_BLOCK // STEPS_A_TURN
    return [statistics.mean(seconds[i : i + turns]) for i in range(0, len(seconds), turns)]


def bare_model(state: State) -> nn.Module:
    """The DistributedDataParallel inside, with the same options for both."""
    assert isinstance(state.spread, Whole)
    called = state.spread._called
    assert isinstance(called, DistributedDataParallel)
    return called.train()


def bare_steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any]) -> None:
    """What a page of PyTorch does: no metrics, no stop, no checkpoints."""
    for batch in batches:
        loss = mean_loss(model(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def checkpoint_stall(folder: Path) -> dict[str, Any]:
    """How long the training waits for a save of 200 MB, against DCP's async_save of the same state."""
    ours, theirs = run_ranks(measure_saves, 1, str(folder))[0]
    found = entry(statistics.median(ours) * 1e3, "ms", statistics.median(theirs) * 1e3, goal="ratio <= 0.25")
    return {"checkpoint_stall_200mb": found}


def measure_saves(folder: str) -> tuple[list[float], list[float]]:
    """Seconds that a training waits for the trainer's saves and for DCP's, in turns, without the first ones.

    After each save follow a forward and a backward pass, beside which the trainer still copies; the wait for
    the rest of the copy before the update counts. DCP has its copy when `async_save` returns.
    """
    table = {
        "run": {"directory": folder, "steps": 1},
        "model": {"name": "layers"},
        "data": {"path": folder},
        "checkpoint": {"keep": 1},
    }
    settings = config.from_table(table, "bench")
    model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(50)))
    assert sum(p.numel() * p.element_size() for p in model.parameters()) == 200 * MEGABYTE
    inputs = torch.randn(SAMPLES_A_STEP, 1000)
    with world(settings.parallel) as where:
        state = State(
            model=model,
            spread=Whole(model, model, settings, where.device),
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            average=None,
            utilisation=None,
        )
        checkpoints = Checkpoints(settings, where, samples=1, identity={})
        ours, theirs = [], []
        for step in range(1, SAVES + 1):
            state.step = step
            begun_s = checkpoints.save(state)
            model(inputs).sum().backward()
            ours.append(begun_s + checkpoints.before_change())
            checkpoints.wait()
            begin = time.perf_counter()
            future: Any = dcp.async_save(
                {"model": model.state_dict()},
                checkpoint_id=f"{folder}/dcp-{step}",
                process_group=where.saving,
            )
            theirs.append(time.perf_counter() - begin)
            model(inputs).sum().backward()
            future.result()
            shutil.rmtree(f"{folder}/dcp-{step}")
        checkpoints.flush()
    return ours[1:], theirs[1:]


def resume_position() -> dict[str, Any]:
    """Time to the first indices of a run that resumes at sample 10^9, against skipping in a sampler."""
    share = Share(rank=1, world=2, batch_size=256, accumulation=1)
    begin = time.perf_counter()
    part = next(training_slices(SampleOrder(SAMPLES, seed=1), share, POSITION))
    ours = time.perf_counter() - begin
    assert len(part.indices) == share.micro_batch

    begin = time.perf_counter()
    sampler = DistributedSampler(TensorDataset(torch.empty(SAMPLES, 0)), num_replicas=2, rank=1, seed=1)
    sampler.set_epoch(POSITION // SAMPLES)
    first = next(islice(sampler, POSITION % SAMPLES // 2, None))
    theirs = time.perf_counter() - begin
    assert 0 <= first < SAMPLES
    return {"resume_position_ms": entry(ours * 1e3, "ms", theirs * 1e3, goal="< 50 ms")}


def digits_accuracy(data: Path, folder: Path) -> dict[str, Any]:
    """Accuracy of the example run on held-out digits, against the nearest centroid."""
    with torchrun(DIGITS, "--data.path", data, "--run.directory", folder) as program:
        assert program.finish() == 0, program.said
    result = json.loads((folder / "result.json").read_text())
    found = entry(result["metric"], "held-out accuracy", result["baseline"], goal="> 0.97")
    return {"digits_accuracy": found}


def main() -> None:
    """Prints all entries as one JSON object."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = prepared_digits(folder / "digits")
        entries = {
            **loop_overhead(data, folder / "loops"),
            **checkpoint_stall(folder / "saves"),
            **resume_position(),
            **digits_accuracy(data, folder / "accuracy"),
        }
    sys.stdout.write(json.dumps(entries, indent=2) + "\n")


if __name__ == "__main__":
    main()
