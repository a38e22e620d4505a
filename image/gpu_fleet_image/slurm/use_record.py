"""The controller's record of the time that jobs have on instances, by day, for the stack's chargeback."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.job_use import WRITE_EVERY, DayUse, RunningJob
from gpu_fleet_image.slurm.answers import ListedJob
from gpu_fleet_image.slurm.exclusion import named
from gpu_fleet_image.slurm.job_records import LONGEST_LOOK, RUNNING


class UseRecord:
    """Count of the time between two polls for the jobs that ran at the first.

    What is counted stays in memory until the bucket takes it.

    Args:
        kept: returns the record of a day that an earlier controller has written; None for a damaged one,
            which stays: that day is unknown, and nothing of it is taken for idle. Raises CloudError.
        put: writes an object; raises CloudError.
    """

    def __init__(
        self, kept: Callable[[str], DayUse | None], put: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._kept, self._put = kept, put
        self._counted: dict[str, DayUse] = {}  # day -> what its record in the bucket lacks
        self._written: dict[str, DayUse | None] = {}  # day -> its record in the bucket, once that was read
        self._running: tuple[RunningJob, ...] = ()
        self._instances: tuple[str, ...] = ()
        self._at: datetime | None = None
        self._written_at: datetime | None = None

    def note(self, jobs: Iterable[ListedJob], instances: Sequence[str], now: datetime) -> None:
        """Count the time since the last poll, and write what is due; raises CloudError, and loses nothing."""
        if self._at is not None and timedelta() < now - self._at <= LONGEST_LOOK:
            turn = max(self._at, datetime.combine(now.astimezone(UTC), time(), UTC))  # of the day
            for begin, end in ((self._at, turn), (turn, now)):
                self._count(job_use.day_of(begin), (end - begin).total_seconds())
        self._running = tuple(_running(job, instances) for job in jobs if job.job.state == RUNNING)
        self._instances, self._at = tuple(instances), now
        self._write(now)

    def _count(self, day: str, seconds: float) -> None:
        if seconds:
            before = self._counted.get(day, DayUse(day))
            self._counted[day] = job_use.after(before, self._running, seconds, self._instances)

    def _write(self, now: datetime) -> None:
        today = job_use.day_of(now)
        for day in sorted({*self._counted, *self._written} - {today}):
            self._put_day(day)
            self._written.pop(day)
        if self._written_at is None or not timedelta() <= now - self._written_at < WRITE_EVERY:
            self._put_day(today)
            self._written_at = now

    def _put_day(self, day: str) -> None:
        if day not in self._written:
            self._written[day] = self._kept(day)
        if (before := self._written[day]) is not None:
            whole = job_use.together(before, self._counted.get(day, DayUse(day)))
            self._put(job_use.key_of(day), whole.to_json())
            self._written[day] = whole
        self._counted.pop(day, None)


def _running(listed: ListedJob, instances: Iterable[str]) -> RunningJob:
    job = listed.job
    account = job.account or f"uid-{listed.uid}"
    return RunningJob(f"{account}/{job.name}", named(job.on, instances), -(-listed.gpus // job.nodes))
