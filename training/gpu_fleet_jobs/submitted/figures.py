"""Progress of a run, from the records in its directory."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_fleet.core.outcome import FAILURE, RESULT
from gpu_fleet.metrics.goodput import goodput
from gpu_fleet.metrics.records import JSON_LINES, parsed

ETTR_EVERY_S = 120.0  # computing ETTR reads all records
TAIL_BYTES = 64 << 10


@dataclass
class RunFigures:
    """Step, loss and ETTR, from the records that rank 0 writes."""

    directory: Path
    clock: Callable[[], float]
    _ettr_at_s: float = float("-inf")
    _ettr: float | None = None

    def newest(self) -> dict[str, Any]:
        """Return the newest step, loss and ETTR; None for a value that does not exist yet."""
        metrics = self.directory / JSON_LINES
        newest = next((record for record in _tail(metrics) if record.get("kind") == "train"), {})
        if self.clock() - self._ettr_at_s >= ETTR_EVERY_S:
            self._ettr_at_s = self.clock()
            measured = goodput(_records(metrics))
            self._ettr = measured.ettr if measured else None
        return {"step": newest.get("step"), "loss": newest.get("loss"), "ettr": self._ettr}

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
