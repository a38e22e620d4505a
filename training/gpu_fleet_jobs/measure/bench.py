"""`bench`: overhead over a bare PyTorch loop on one batch, in turns in the same processes, and all-reduce."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gpu_fleet.core import config
from gpu_fleet.core.errors import ParallelError
from gpu_fleet.core.world import World, world
from gpu_fleet.data.loader import Batch
from gpu_fleet.metrics.flops import Utilisation
from gpu_fleet.metrics.profiling import StepTrace
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.preemption.interrupt import Interruption
from gpu_fleet.step import optimization, precision
from gpu_fleet.step.spread import reduced_last
from gpu_fleet.trainer.initial_state import build_model, fresh_state, ready, rehearse
from gpu_fleet.trainer.loop import train_steps
from gpu_fleet.trainer.prepared_run import PreparedRun, opened

MIB = 2**20
SIZES_MIB = (1, 16, 64)  # below, near and above a gradient bucket (25 MiB by default)
REDUCTIONS = 5  # number for each size, after one to warm up


@dataclass
class StepTimes:
    """Seconds per step of both loops, one number for each turn."""

    trainer_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    utilisation: Utilisation | None = None
    samples_per_step: int = 0

    @property
    def ratios(self) -> list[float]:
        """Bare step over the trainer's step, turn by turn: 1 is no overhead."""
        return [bare / trainer for bare, trainer in zip(self.bare_s, self.trainer_s, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def measure(settings: config.Config, turns: int, steps: int) -> None:
    with world(settings.parallel) as where:
        times = measure_steps(settings, where, turns, steps)
        bandwidths = measure_reductions(where, SIZES_MIB)
        if where.leads:
            show(times, bandwidths, where)


def measure_steps(
    settings: config.Config, where: World, turns: int, steps: int, *, beside: bool = True
) -> StepTimes:
    """Time `turns` turns of `steps` steps of both loops, or of the trainer alone; raises ParallelError."""
    if settings.parallel.strategy != "ddp":
        raise ParallelError(f"parallel.strategy = {settings.parallel.strategy!r}: bench compares ddp only")
    with (
        tempfile.TemporaryDirectory() as directory,
        Interruption([], poll_s=1.0) as interruption,
        # the last step ends the last turn: what follows it ends the reader processes
        opened(_quiet(settings, directory, steps * (turns + 1) + 1), where) as run,
    ):
        state = fresh_state(run)
        rehearse(run, state)
        first = next(run.batches(state))
        times = StepTimes(utilisation=state.utilisation, samples_per_step=settings.run.batch_size)
        turn_of_bare = bare_loop(run, first) if beside else lambda _steps: None
        watch = Turns(times, steps, where.device, lambda: turn_of_bare(steps))
        every_s = settings.interrupt.agree_every_s
        stop = Stop(where, interruption, every_s, lambda: False, lambda: None, clock=watch.clock)
        train_steps(replace(run, trace=watch), state, stop)
    return times


def _quiet(settings: config.Config, directory: str, steps: int) -> config.Config:
    """Return the settings without checkpoints, evaluation and optional writers."""
    run = settings.run.model_copy(
        update={"directory": directory, "steps": steps, "epochs": 0.0, "evaluate_every_steps": 0}
    )
    schedule = settings.schedule.model_copy(update={"warmup_steps": 0})  # else it may exceed the few steps
    checkpoint = config.Checkpoint(every_steps=0, every_s=0.0, resume=False)
    metrics = config.Metrics(progress=False)
    kept = {"run": run, "schedule": schedule, "checkpoint": checkpoint, "metrics": metrics}
    return settings.model_copy(update=kept)


class Turns(StepTrace):
    """Timer in place of the trace: times the trainer's steps, and runs the bare loop's turns between them."""

    def __init__(
        self, times: StepTimes, steps: int, device: torch.device, bare_turn: Callable[[], None]
    ) -> None:
        super().__init__((), Path())
        self._times, self._turn_steps, self._device, self._bare_turn = times, steps, device, bare_turn
        self._begin_s = 0.0
        self._away_s = 0.0
        self._warm = False

    def clock(self) -> float:
        """Return seconds of the trainer's turns alone: the pace of steps must not count the bare loop."""
        return time.perf_counter() - self._away_s

    def before_step(self, step: int) -> None:
        if (step - 1) % self._turn_steps == 0:
            self.finish()
            self._begin_s = _now_s(self._device)

    def after_step(self, step: int) -> None:
        """Do nothing: a turn includes the work of the loop after a step."""

    def finish(self) -> None:
        """End the trainer's turn, and run one of the bare loop."""
        trainer_s = _now_s(self._device) - self._begin_s
        begin_s = _now_s(self._device)
        self._bare_turn()
        bare_s = _now_s(self._device) - begin_s
        self._away_s += bare_s
        if self._warm:
            self._times.trainer_s.append(trainer_s / self._turn_steps)
            self._times.bare_s.append(bare_s / self._turn_steps)
        self._warm = self._begin_s > 0  # the first turn of each loop is a warm-up


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def bare_loop(run: PreparedRun, batch: Batch) -> Callable[[int], None]:
    """Return a plain loop over one batch, as in a PyTorch tutorial; call it with a number of steps."""
    settings, where = run.settings, run.where
    model: nn.Module = build_model(run)
    ready(run, model)
    optimizer = optimization.build_optimizer(model, settings.optimizer)
    if where.size > 1:
        ids = [where.device.index] if where.device.type == "cuda" else None
        model = DistributedDataParallel(
            model,
            device_ids=ids,
            gradient_as_bucket_view=True,
            static_graph=settings.run.accumulation
            == 1,  # torch 2.13 fails on no_sync before a first reduction
            forward_sync_buffers=False,
        )
    if settings.precision.compile:
        model.compile()
    scaler = precision.scaler(settings.precision, where.device)
    model.train()

    def train(steps: int) -> None:
        for _ in range(steps):
            for left in reversed(range(settings.run.accumulation)):
                with reduced_last(model, last=left == 0):
                    with precision.autocast(settings.precision, where.device):
                        logits = model(batch.inputs).flatten(0, -2).float()
                        loss = functional.cross_entropy(logits, batch.targets.flatten())
                    scaler.scale(loss / settings.run.accumulation).backward()  # type: ignore[no-untyped-call]  # no hints
            if settings.optimizer.clip_norm:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

    return train


def measure_reductions(where: World, sizes_mib: Sequence[int]) -> dict[int, float]:
    """Return the bus bandwidth in GB/s of a float32 all-reduce, by MiB; empty for one rank.

    It is 2 (n - 1) / n times bytes over time: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    if where.size == 1:
        return {}
    speeds = {}
    for size_mib in sizes_mib:
        tensor = torch.zeros(size_mib * MIB // 4, device=where.device)
        times_s = []
        for _ in range(REDUCTIONS + 1):
            where.barrier()
            begin_s = _now_s(where.device)
            dist.all_reduce(tensor)
            times_s.append(_now_s(where.device) - begin_s)
        slowest_s = max(where.gather(statistics.median(times_s[1:])))
        speeds[size_mib] = 2 * (where.size - 1) / where.size * size_mib * MIB / slowest_s / 1e9
    return speeds


def show(times: StepTimes, bandwidths: dict[int, float], where: World) -> None:
    table = Table(title=f"{where.size} x {where.device.type}")
    for heading in ("measured", "trainer", "bare loop", "ratio"):
        table.add_column(heading, justify="left" if heading == "measured" else "right")
    trainer_s, bare_s = statistics.median(times.trainer_s), statistics.median(times.bare_s)
    spread = f"{times.ratio:.4f} ({min(times.ratios):.3f} to {max(times.ratios):.3f})"
    table.add_row("step, ms", f"{trainer_s * 1e3:.2f}", f"{bare_s * 1e3:.2f}", spread)
    rates = [times.samples_per_step / seconds for seconds in (trainer_s, bare_s)]
    table.add_row("samples per second", *(f"{rate:,.1f}" for rate in rates), "")
    if times.utilisation is not None:
        table.add_row("model FLOPs utilisation", *(f"{times.utilisation.of(rate):.1%}" for rate in rates), "")
    for size_mib, bandwidth in bandwidths.items():
        table.add_row(f"all-reduce {size_mib} MiB, GB/s", f"{bandwidth:.2f}", "", "")
    Console().print(table)
