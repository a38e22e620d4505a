"""A progress line for users at a terminal: the step, the time left, the newest loss and rate."""

import logging
import sys
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gpu_fleet.metrics.records import Record


class ProgressLine:
    """Writer that shows the records in one line of a terminal; log lines appear above it."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        """Show the line; `steps` is the number of the last step of the run."""
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
        unit = "tokens" if "tokens_per_s" in record else "samples"
        text = f"loss {record['loss']:.4g}  {record[f'{unit}_per_s']:,.0f} {unit}/s"
        if "mfu" in record:
            text += f"  {100 * float(record['mfu']):.1f} % of the peak"
        self._progress.update(self._task, completed=int(record["step"]), description=text)

    def close(self) -> None:
        _move_logging(sys.stderr, self._before)
        self._progress.stop()


def _move_logging(old: TextIO, new: TextIO) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)
