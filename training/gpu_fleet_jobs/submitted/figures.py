"""Progress of a run, from the records in its directory."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_fleet.core.outcome import FAILURE, RESULT
from gpu_fleet.metrics.goodput import goodput
from gpu_fleet.metrics.records import JSON_LINES, parsed, tokens_per_sample

ETTR_EVERY_S = 120.0  # computing ETTR reads all records
TAIL_BYTES = 64 << 10


@dataclass
class RunFigures:
    """Step, loss, samples and ETTR, from the records that rank 0 writes.

    Earlier records of the directory are counted apart: a run may go on where another one stopped.
    """

    directory: Path
    clock: Callable[[], float]
    _ettr_at_s: float = float("-inf")
    _ettr: float | None = None
    _samples_before: int = field(init=False)

    def __post_init__(self) -> None:
        self._samples_before = int(self._newest_step().get("samples", 0))

    def newest(self) -> dict[str, Any]:
        """Return the newest step, loss, samples and ETTR; None for a value that does not exist yet."""
        newest = self._newest_step()
        if self.clock() - self._ettr_at_s >= ETTR_EVERY_S:
            self._ettr_at_s = self.clock()
            measured = goodput(_records(self.directory / JSON_LINES))
            self._ettr = measured.ettr if measured else None
        return {
            "step": newest.get("step"),
            "loss": newest.get("loss"),
            "ettr": self._ettr,
            "samples": newest.get("samples"),
            "samples_before": self._samples_before,
            "tokens_per_sample": tokens_per_sample(newest),
        }

    def _newest_step(self) -> dict[str, Any]:
        records = _tail(self.directory / JSON_LINES)
        return next((record for record in records if record.get("kind") == "train"), {})

    def forget_ettr(self) -> None:
        """Make the next call of `newest` compute ETTR anew, for the last report."""
        self._ettr_at_s = float("-inf")


def why_failed(directory: Path, status: int) -> str:
    """Return the error that the trainer wrote, or else the exit status."""
    return str(_table(directory / FAILURE).get("error") or f"ended with {status}")


def why_ended(directory: Path) -> str:
    """Return why a run ended that did not fail; empty if its result does not say."""
    table = _table(directory / RESULT)
    return str(table.get("detail") or table.get("reason") or "")


def _table(file: Path) -> dict[str, Any]:
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _tail(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records at the end of a file, newest first."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - TAIL_BYTES))
            lines = opened.read().splitlines()
    except OSError:
        return
    yield from parsed(reversed(lines))


def _records(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open("rb") as opened:
            yield from parsed(opened)
    except OSError:
        return
