"""What is measured while training: summed on the device, read from it only every log interval."""

import math
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

from training.data.loader import Batch, CorruptionCounter
from training.errors import DivergenceError
from training.metrics.writers import Record
from training.parallel import World
from training.state import State

Clock = Callable[[], float]
BYTES_PER_GIB = 2**30
KIB_PER_GIB = 2**20  # Linux counts the resident memory of a process in KiB


class Meter:
    """Sums losses, samples and waits between two reports. `report` and `check` are called by all ranks."""

    def __init__(
        self, where: World, readers: int, corrupt: CorruptionCounter, clock: Clock = time.perf_counter
    ) -> None:
        self._where, self._readers, self._corrupt = where, readers, corrupt
        self.clock = clock
        self._loss = torch.zeros((), device=where.device)
        self._losses = 0
        self._steps = 0
        self._samples = 0
        self._tokens = 0
        self._data_wait_s = 0.0
        self._stall_s = 0.0
        self._begin = clock()

    def add_batch(self, batch: Batch, waited_s: float) -> None:
        """A micro-batch that came after `waited_s` seconds."""
        self._corrupt.add(batch.corrupt)
        self._samples += batch.targets.shape[0]
        self._tokens += batch.targets.numel()
        self._data_wait_s += waited_s

    def add_step(self, loss: Tensor | None) -> None:
        """One optimizer step with the mean loss () of its micro-batches; None where it is not known."""
        self._steps += 1
        if loss is not None:
            self._loss += loss
            self._losses += 1

    def add_stall(self, seconds: float) -> None:
        """The training stood still for a checkpoint."""
        self._stall_s += seconds

    def pause(self) -> float:
        """Now; hand it to `go_on` to leave what lies between (an evaluation) out of the rates."""
        return self.clock()

    def go_on(self, paused_at: float) -> None:
        self._begin += self.clock() - paused_at

    def check(self, step: int) -> float:
        """The mean loss since the last report over all ranks.

        Raises DivergenceError naming rank and step, DataError where a rank has too many corrupt samples.
        """
        everyone = self._where.gather_numbers(float(self._loss), self._losses, self._corrupt.excess)
        if any(excess > 0 for _, _, excess in everyone):
            self._where.together(self._corrupt.check)
        losses = {rank: total / count for rank, (total, count, _) in enumerate(everyone) if count}
        for rank, loss in losses.items():
            if not math.isfinite(loss):
                error = DivergenceError(
                    f"the loss of rank {rank} is {loss} at step {step}; lower optimizer.learning_rate, set "
                    "optimizer.clip_norm or schedule.warmup_steps, or use precision.dtype bf16, not fp16"
                )
                error.shared = True
                raise error
        return sum(losses.values()) / max(1, len(losses))

    def report(
        self, state: State, epoch: float, learning_rate: float, gradient_norm: Tensor | None
    ) -> Record:
        """The record of the steps since the last report; afterwards the sums are zero."""
        loss = self.check(state.step)
        seconds = max(self.clock() - self._begin, 1e-9)
        record: dict[str, float | int | str] = {
            "kind": "train",
            "step": state.step,
            "epoch": round(epoch, 6),
            "samples": state.position,
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
        if state.utilisation is not None:
            record["mfu"] = state.utilisation.of(float(record["samples_per_s"]))
        self._reset()
        return record

    def _reset(self) -> None:
        self._loss.zero_()
        self._losses = self._steps = self._samples = self._tokens = 0
        self._data_wait_s = self._stall_s = 0.0
        self._begin = self.clock()
