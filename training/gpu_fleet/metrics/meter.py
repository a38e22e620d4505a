"""Measurements of training: losses stay on the device, and are read from it only every log interval."""

import math
import resource
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gpu_fleet.core.errors import DivergenceError
from gpu_fleet.core.world import World
from gpu_fleet.data.loader import Batch, CorruptionCounter
from gpu_fleet.metrics.flops import Utilisation
from gpu_fleet.metrics.goodput import STALL, WAITING, Book
from gpu_fleet.metrics.records import Record

Clock = Callable[[], float]
BYTES_PER_GIB = 2**30
MOST_UNREAD = 1024  # losses kept on the device between two reports
GOOD = math.inf  # value of the first step with a bad loss if there is none
KIB_PER_GIB = 2**20  # Linux counts the resident memory of a process in KiB


class Meter:
    """Sums of losses, samples and waits between two reports. All ranks call `report` and `check`."""

    def __init__(
        self,
        where: World,
        readers: int,
        corrupt: CorruptionCounter,
        book: Book,
        *,
        utilisation: Utilisation | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._where, self._readers, self._corrupt = where, readers, corrupt
        self._book, self._utilisation = book, utilisation
        self.clock = clock
        self._losses: list[Tensor] = []  # () each, on the device: the host waits for them only at the report
        self._loss_steps: list[int] = []  # the step of each
        self._bad_step = GOOD  # the first step whose loss was not finite
        self._folded = 0.0, 0  # sum and number of losses that were read before
        self._reset()

    def add_batches(self, batches: Iterable[Batch], waited_s: float) -> None:
        """Count micro-batches for which training has waited `waited_s` seconds."""
        for batch in batches:
            self._corrupt.add(batch.corrupt)
            self._samples += batch.targets.shape[0]
            self._tokens += batch.targets.numel()
        self._data_wait_s += waited_s
        self._book.shift(WAITING, waited_s)

    def add_step(self, step: int, loss: Tensor | None) -> None:
        """Count optimizer step `step` with the mean loss () of its micro-batches; None if not known."""
        self._steps += 1
        if loss is not None:
            self._losses.append(loss)
            self._loss_steps.append(step)
            if len(self._losses) >= MOST_UNREAD:
                self._read()

    def _read(self) -> tuple[float, int]:
        """Return the sum and the number of the losses since the last report."""
        if self._losses:
            values = torch.stack(self._losses).tolist()
            losses = zip(self._loss_steps, values, strict=True)
            bad = next((step for step, value in losses if not math.isfinite(value)), GOOD)
            self._bad_step = min(self._bad_step, bad)
            self._folded = self._folded[0] + sum(values), self._folded[1] + len(values)
            self._losses.clear()
            self._loss_steps.clear()
        return self._folded

    def add_stall(self, seconds: float) -> None:
        """Count `seconds` in which training stood still for a checkpoint."""
        self._stall_s += seconds
        self._book.shift(STALL, seconds)

    def pause(self) -> float:
        """Return the time; `go_on` takes it, to leave the time between (an evaluation) out of the rates."""
        return self.clock()

    def go_on(self, paused_at: float) -> None:
        self._begin += self.clock() - paused_at

    def check(self) -> float:
        """Return the mean loss over all ranks; raises DivergenceError or CorruptLimitError."""
        total, count = self._read()
        everyone = self._where.gather_numbers(total, count, len(self._corrupt.unshared), self._bad_step)
        first, rank = min((bad, rank) for rank, (_, _, _, bad) in enumerate(everyone))
        if first < GOOD:  # after that step the weights are bad on every rank
            raise _diverged(rank, everyone[rank][0], int(first))
        if any(new for _, _, new, _ in everyone):
            self._corrupt.check(self._where)
        losses = [total / count for total, count, _, _ in everyone if count]
        return sum(losses) / max(1, len(losses))

    def report(
        self, step: int, samples: int, epoch: float, learning_rate: float, gradient_norm: Tensor | None
    ) -> Record:
        """Return the record of the steps since the last report, and reset the sums."""
        loss = self.check()
        seconds = max(self.clock() - self._begin, 1e-9)
        record: dict[str, float | int | str] = {
            "kind": "train",
            "step": step,
            "epoch": round(epoch, 6),
            "samples": samples,
            "loss": loss,
            "learning_rate": learning_rate,
            "samples_per_s": self._samples * self._readers / seconds,
            "step_s": seconds / max(1, self._steps),
            "data_wait_s": self._data_wait_s,
            "checkpoint_stall_s": self._stall_s,
        }
        if self._tokens > self._samples:
            record["tokens_per_s"] = self._tokens * self._readers / seconds
        if gradient_norm is not None:
            record["gradient_norm"] = float(gradient_norm)
        if self._where.device.type == "cuda":
            record["memory_gib"] = torch.cuda.max_memory_allocated(self._where.device) / BYTES_PER_GIB
        else:
            record["memory_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_GIB
        if self._utilisation is not None:
            record["mfu"] = self._utilisation.of(float(record["samples_per_s"]))
        self._reset()
        return record

    def _reset(self) -> None:
        self._folded = 0.0, 0
        self._steps = self._samples = self._tokens = 0
        self._data_wait_s = self._stall_s = 0.0
        self._begin = self.clock()


def _diverged(rank: int, loss: float, step: int) -> DivergenceError:
    return DivergenceError(
        f"the loss of rank {rank} is {'nan' if math.isnan(loss) else 'infinite'} at step {step}; lower "
        "optimizer.learning_rate, set optimizer.clip_norm or schedule.warmup_steps, or use precision.dtype "
        "bf16, not fp16"
    )
