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
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

from gpu_fleet.checkpoint.manager import Checkpoints
from gpu_fleet.cli import main as training_command
from gpu_fleet.core import config
from gpu_fleet.core.world import world
from gpu_fleet.data.loader import RankShare, training_slices
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.preemption.interrupt import Interruption
from gpu_fleet.step.optimization import build_optimizer, decided
from gpu_fleet.step.spread import Whole, mean_loss
from gpu_fleet.step.state import State
from gpu_fleet.trainer import loop
from gpu_fleet.trainer.initial_state import build_model, fresh_state, ready, rehearse
from gpu_fleet.trainer.prepared_run import PreparedRun, opened
from gpu_fleet_jobs.measure.bench import StepTimes, Turns
from tests.bench import entries
from tests.training.programs import DIGITS, torchrun
from tests.training.ranks import run_ranks

entry = partial(entries.entry, command="python -m tests.bench.bench_trainer")
STEPS_A_TURN = 5  # few, for both loops to have the same share of what else the computer does
STEPS_A_BLOCK = 20  # one log interval
BLOCKS = 200
SAVES = 12
SAMPLES_A_STEP = 64  # of the model whose saves are timed
LAYERS, WIDTH = 25, 1005  # with the moments of AdamW 303 MB
STEPS_A_SAVE = 6  # more than either writes for
MEGABYTE = 10**6
SAMPLES = 10**7  # a large data set: ImageNet-22k has 1.4e7 pictures
POSITION = 10**9 + SAMPLES // 2  # in the middle of an epoch, after a billion samples


def prepared_digits(folder: Path) -> Path:
    """The digits as a data set."""
    done = CliRunner().invoke(training_command, ["prepare", "digits", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def loop_overhead(data: Path, folder: Path) -> dict[str, Any]:
    """Time of a step of the whole loop against a bare DDP loop of the same model on the same batches."""
    whole, bare = run_ranks(measure_loops, 2, str(data), str(folder), deadline_s=600.0)[0]
    ratios = [ratio_of / other for ratio_of, other in zip(whole, bare, strict=True)]
    whole_us, bare_us = statistics.median(whole) * 1e6, statistics.median(bare) * 1e6
    ratio = statistics.median(ratios)
    found = entry(whole_us, "us per step", bare_us, goal="ratio <= 1.02", ratio=ratio)
    return {"trainer_loop_overhead": found}


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
        state = fresh_state(run)
        batches = run.batches(state)
        rehearse(run, state)
        bare, optimizer = bare_model(run)
        times = StepTimes()
        turns = Turns(
            times,
            STEPS_A_TURN,
            where.device,
            lambda: bare_steps(bare, optimizer, islice(batches, STEPS_A_TURN)),
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


def bare_model(run: PreparedRun) -> tuple[nn.Module, torch.optim.Optimizer]:
    """What a page of PyTorch wraps, with the options that the trainer takes too."""
    model = build_model(run)
    ready(run, model)
    called = DistributedDataParallel(
        model, gradient_as_bucket_view=True, static_graph=True, forward_sync_buffers=False
    )
    return called.train(), build_optimizer(model, run.settings.optimizer)


def bare_steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any]) -> None:
    """What a page of PyTorch does: no metrics, no stop, no checkpoints."""
    for batch in batches:
        loss = mean_loss(model(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def checkpoint_stall(folder: Path) -> dict[str, Any]:
    """What a save of 303 MB costs the training in all, against DCP's async_save of the same state."""
    ours, theirs = run_ranks(measure_saves, 1, str(folder), deadline_s=900.0)[0]
    found = entry(statistics.median(ours) * 1e3, "ms", statistics.median(theirs) * 1e3, goal="ratio <= 1.0")
    return {"checkpoint_stall_303mb": found}


def measure_saves(folder: str) -> tuple[list[float], list[float]]:
    """Seconds that each save costs the training, the trainer's and DCP's by turns, without the first ones.

    What a save costs is the time of the call and of the steps after it, until it is on disk, less that of as
    many steps without a save around them. DCP stages into memory that it uses again.
    """
    table = {
        "run": {"directory": folder, "steps": 1},
        "model": {"name": "layers"},
        "data": {"path": folder},
        "checkpoint": {"keep": 1},
    }
    settings = config.from_table(table, "bench")
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=True)
    inputs = torch.randn(SAMPLES_A_STEP, WIDTH)
    with world(settings.parallel) as where:
        state = State(
            model=model,
            spread=Whole(model, model, settings, where.device),
            optimizer=optimizer,
            chosen=decided(optimizer, ()),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            average=None,
            utilisation=None,
            not_finite_at_start=frozenset(),
        )
        checkpoints = Checkpoints(settings, where, identity={})
        stager = DefaultStager(StagingOptions(False, False, False, False))

        def steps() -> float:
            begin = time.perf_counter()
            for _ in range(STEPS_A_SAVE):
                model(inputs).square().mean().backward()
                checkpoints.before_change()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            return time.perf_counter() - begin

        def trainer_saves() -> float:
            state.step += 1
            begin = time.perf_counter()
            checkpoints.save(state)
            stepped_s = steps()
            took_s = time.perf_counter() - begin
            checkpoints.wait()
            assert stepped_s <= took_s
            return took_s

        def dcp_saves() -> float:
            begin = time.perf_counter()
            future: Any = dcp.async_save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                checkpoint_id=f"{folder}/dcp",
                process_group=where.saving,
                async_stager=stager,
            )
            steps()
            took_s = time.perf_counter() - begin
            getattr(future, "upload_completion", future).result()
            shutil.rmtree(f"{folder}/dcp")
            return took_s

        steps()
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        moments = sum(t.nbytes for moment in optimizer.state.values() for t in moment.values())
        assert round((size + moments) / MEGABYTE) == 303
        ours, theirs = [], []
        for _ in range(SAVES):
            around = [steps()]
            with_ours = trainer_saves()
            around.append(steps())
            with_theirs = dcp_saves()
            around.append(steps())
            ours.append(with_ours - statistics.mean(around[:2]))
            theirs.append(with_theirs - statistics.mean(around[1:]))
        checkpoints.flush()
    return ours[1:], theirs[1:]


def resume_position() -> dict[str, Any]:
    """Time to the first indices of a run that resumes at sample 10^9, against skipping in a sampler."""
    share = RankShare(rank=1, world=2, batch_size=256, accumulation=1)
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
        found = {
            **loop_overhead(data, folder / "loops"),
            **checkpoint_stall(folder / "saves"),
            **resume_position(),
            **digits_accuracy(data, folder / "accuracy"),
        }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
