"""The controller's record of the time that jobs have on instances, by day, for the stack's chargeback."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, time, timedelta
from typing import Any

from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.job_use import DayUse, RunningJob
from gpu_fleet_image.slurm.answers import ListedJob
from gpu_fleet_image.slurm.job_records import LONGEST_LOOK, RUNNING

# A controller that is lost takes no more than this along; a bucket keeps each version for a while.
WRITE_EVERY = timedelta(minutes=5)


class UseRecord:
    """Count of the time between two polls for the jobs that ran at the first.

    Args:
        kept: returns the record of a day that an earlier controller has written; None for a damaged one,
            which stays: that day is unknown, and nothing of it is taken for idle. Raises CloudError.
        put: writes an object; raises CloudError.
    """

    def __init__(
        self, kept: Callable[[str], DayUse | None], put: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._kept, self._put = kept, put
        # The present day, and earlier ones until they are written; None is not written.
        self._days: dict[str, DayUse | None] = {}
        self._running: tuple[RunningJob, ...] = ()
        self._at: datetime | None = None
        self._written_at: datetime | None = None

    def note(self, jobs: Iterable[ListedJob], now: datetime) -> None:
        """Count the time since the last poll, and write what is due; raises CloudError, and loses nothing."""
        for day in {job_use.day_of(self._at or now), job_use.day_of(now)} - self._days.keys():
            self._days[day] = self._kept(day)
        if self._at is not None and timedelta() < now - self._at <= LONGEST_LOOK:
            turn = max(self._at, datetime.combine(now.astimezone(UTC), time(), UTC))  # of the day
            for begin, end in ((self._at, turn), (turn, now)):
                self._count(begin, (end - begin).total_seconds())
        self._running, self._at = tuple(map(_running, filter(_runs, jobs))), now
        self._write(now)

    def _count(self, begin: datetime, seconds: float) -> None:
        day = job_use.day_of(begin)
        if seconds and (use := self._days[day]) is not None:
            self._days[day] = job_use.after(use, self._running, seconds)

    def _write(self, now: datetime) -> None:
        today = job_use.day_of(now)
        for day in sorted(self._days.keys() - {today}):
            self._put_day(day)
            del self._days[day]
        if self._written_at is None or not timedelta() <= now - self._written_at < WRITE_EVERY:
            self._put_day(today)
            self._written_at = now

    def _put_day(self, day: str) -> None:
        if (use := self._days[day]) is not None:
            self._put(job_use.key_of(day), job_use.to_json(use))


def _runs(job: ListedJob) -> bool:
    return job.job.state == RUNNING


def _running(listed: ListedJob) -> RunningJob:
    job = listed.job
    account = job.account or f"uid-{listed.uid}"
    return RunningJob(f"{account}/{job.name}", job_use.instances(job.on), -(-listed.gpus // job.nodes))
