"""Choice of the heterogeneous jobs that Slurm should not try for now, so that others can start. Pure.

Slurm's second scheduler keeps nodes for those parts that would fit now, also where the others do not, and
its first one starts nothing behind such a job (22.05, ``backfill.c`` and ``job_scheduler.c``): one that
never starts would keep whole pools from all others. So it gets a StartTime in the near future, again and
again, until there is room. Without a controller Slurm looks at it again by itself.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_fleet_image.slurm.answers import OURS, ListedJob

FOR = timedelta(minutes=10)
AGAIN = timedelta(minutes=5)  # before its end
MARK = f"({OURS} has set its StartTime)"  # at the end of what is said of such a job
WAITS = "waits until there is room for all its parts"


def is_kept_back(job: ListedJob, now: datetime) -> bool:
    """Return whether the queue has set the StartTime of a job, and not its user."""
    return job.admin_comment.endswith(MARK) and job.eligible_s <= (now + FOR + AGAIN).timestamp()


@dataclass(frozen=True)
class Outlook:
    """State of the parts of heterogeneous jobs, and of the pools.

    Attributes:
        due: parts that wait for room alone.
        placed: parts of jobs for all of which there is room, or instances are asked for.
        hopeless: parts that no instance more would start.
        busy: pools that have not all their instances yet, or some that jobs which wait are to have.
    """

    due: Collection[str]
    placed: Collection[str]
    hopeless: Collection[str]
    busy: Collection[str]

    def kept_back(self, groups: Iterable[Sequence[ListedJob]]) -> frozenset[str]:
        """Return the parts that are due, of jobs without room.

        Where others get nothing either Slurm may gather for it what those leave that run.
        """
        parts_of = (parts for parts in groups if self._is_kept_back(parts))
        return frozenset(part.job.id for parts in parts_of for part in parts if part.job.id in self.due)

    def _is_kept_back(self, parts: Sequence[ListedJob]) -> bool:
        ids = {part.job.id for part in parts}
        in_vain = bool(ids.difference(self.due) or ids.intersection(self.hopeless))
        is_busy = any(part.job.pool in self.busy for part in parts)
        return in_vain or (is_busy and bool(ids.difference(self.placed)))
