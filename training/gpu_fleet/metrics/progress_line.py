"""Progress for users: the step, the time left, the newest loss and rate; one line of a terminal, or a log."""

import logging
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gpu_fleet.metrics.records import Record

SOONEST_S, LATEST_S = 10.0, 600.0  # between two lines of a log
MORE_SELDOM = 0.01  # of the time so far: a day has some 500 lines
log = logging.getLogger(__name__)


class ProgressLine:
    """Writer that shows the records in one line of a terminal; log lines appear above it."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console or Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=steps)
        before = sys.stderr
        self._progress.start()
        _move_logging(before, sys.stderr)  # through rich: else the line and the log overwrite each other
        self._before = before

    def write(self, record: Record) -> None:
        if record["kind"] != "train":
            return
        unit = unit_of(record)
        text = f"loss {record['loss']:.4g}  {record[f'{unit}_per_s']:,.0f} {unit}/s"
        if "mfu" in record:
            text += f"  {100 * float(record['mfu']):.1f} % of the peak"
        self._progress.update(self._task, completed=int(record["step"]), description=text)

    def close(self) -> None:
        _move_logging(sys.stderr, self._before)
        self._progress.stop()


class ProgressLog:
    """Writer that logs some of the records where there is no terminal, the longer a run lasts the fewer."""

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._clock = steps, clock
        self._began_s, self._due_s = clock(), 0.0  # the first record is logged

    def write(self, record: Record) -> None:
        so_far_s = self._clock() - self._began_s
        if record["kind"] != "train" or (so_far_s < self._due_s and record["step"] != self._steps):
            return
        self._due_s = so_far_s + min(LATEST_S, max(SOONEST_S, MORE_SELDOM * so_far_s))
        unit = unit_of(record)
        left_s = (self._steps - int(record["step"])) * float(record["step_s"])
        log.info(
            "event=progress step=%d of=%d loss=%.4g %s_per_s=%.4g left=%s",
            record["step"],
            self._steps,
            record["loss"],
            unit,
            record[f"{unit}_per_s"],
            timedelta(seconds=round(left_s)),
        )

    def close(self) -> None:
        return


def unit_of(record: Record) -> str:
    return "tokens" if "tokens_per_s" in record else "samples"


def _move_logging(old: TextIO, new: TextIO) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)
