"""An instance's heartbeats as one character a period, as a sweep reads them, for users. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from gpu_fleet_image.core.metrics import CODE_HUNG, HEARTBEAT

PERIODS_S = (900, 1800, 3600, 7200, 14_400)  # CloudWatch keeps each of them for the 14 days of a window
MOST_CELLS = 168
_ROW_CELLS = 24


class Cell(StrEnum):
    """State of a period, for users."""

    ACTIVE = "█"
    IDLE = "·"
    UNKNOWN = "?"
    HUNG = "!"
    SILENT = " "


LEGEND = {
    Cell.ACTIVE: "active",
    Cell.IDLE: "idle",
    Cell.UNKNOWN: "a sensor failed",
    Cell.HUNG: "suspect-hung",
    Cell.SILENT: "no heartbeat",
}


@dataclass(frozen=True)
class PeriodRow:
    """Consecutive periods in a row."""

    start: datetime
    cells: tuple[Cell, ...]


def period_s(window: timedelta) -> int:
    """Return the shortest period with which a window fits the picture."""
    fits = (period for period in PERIODS_S if window.total_seconds() / period <= MOST_CELLS)
    return next(fits, PERIODS_S[-1])


def start_of(now: datetime, window: timedelta, period: int) -> datetime:
    """Return the start of the period in which a window before ``now`` begins."""
    return datetime.fromtimestamp((now - window).timestamp() // period * period, UTC)


def cell(value: float | None) -> Cell:
    """Return the state for the smallest ``SecondsSinceActivity`` of a period."""
    if value is None:
        return Cell.SILENT
    if value < 0:
        return Cell.HUNG if value == CODE_HUNG else Cell.UNKNOWN
    return Cell.ACTIVE if value < HEARTBEAT.total_seconds() else Cell.IDLE


def rows(
    points: Iterable[tuple[datetime, float]], start: datetime, now: datetime, period: int
) -> Iterator[PeriodRow]:
    """Yield the rows of the picture, oldest first.

    Args:
        points: (start of the period, smallest value), in any order; of repetitions the smallest counts.
        now: nothing after it is shown.
        period: length in seconds.
    """
    values: dict[datetime, float] = {}
    for at, value in points:
        values[at] = min(value, values.get(at, value))
    step = timedelta(seconds=period)
    while start <= now:
        moments = [start + step * index for index in range(_ROW_CELLS) if start + step * index <= now]
        yield PeriodRow(start, tuple(cell(values.get(moment)) for moment in moments))
        start += step * _ROW_CELLS


def counts(shown: Iterable[PeriodRow]) -> Mapping[Cell, int]:
    """Return the number of periods in each state."""
    count = dict.fromkeys(Cell, 0)
    for row in shown:
        for cell in row.cells:
            count[cell] += 1
    return count
