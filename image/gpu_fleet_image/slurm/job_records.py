"""``queue/jobs.json``: the controller's record of all jobs, for users anywhere. Pure.

Slurm forgets a job minutes after its end, and a laptop cannot ask Slurm at all. So the controller keeps the
last state of each job, and the time that instances have worked on it, over all its tries.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import Record, named
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.slurm.answers import ENDED, Job

JOBS = keys.QUEUE_JOBS
SCHEMA = 1
MOST_ENDED = 200
LONGEST = 4 << 20  # bytes of the object
HEAD = 1024  # bytes before the entries
BESIDE_TEXTS = 1024  # bytes of an entry without its texts, at most
LONGEST_LETTER = 12  # bytes of a character in JSON, at most: two escapes
INDENT = 4  # at least the store's indentation of an entry, and the comma after it
RUNNING = "RUNNING"
UNSEEN = "UNSEEN"  # no state of Slurm's
OVER = frozenset({*ENDED, UNSEEN})
# After a longer gap the controller does not know what ran meanwhile.
LONGEST_LOOK = timedelta(minutes=5)


@dataclass(frozen=True)
class JobRecord(Record):
    """Last known state of a job.

    Attributes:
        seen: time at which it was first seen, ISO 8601.
        instance_s: instance seconds of its runs: the seconds of each instance, added up.
        run_s: seconds that it has run.
    """

    job: Job
    seen: str
    instance_s: float = 0.0
    run_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """True if the job has ended and will not run again."""
        return self.job.state in OVER


@dataclass(frozen=True)
class JobRecords(Record):
    """Record of all jobs, the newest last."""

    at: datetime
    entries: tuple[JobRecord, ...] = field(metadata=named("jobs"))


def after(before: JobRecords | None, jobs: Iterable[Job], now: datetime) -> JobRecords:
    """Return the records after a poll.

    A job that ran at the previous poll has run since. A job that Slurm no longer knows has ended: in its last
    state, or unseen.
    """
    known = {entry.job.id: entry for entry in before.entries} if before else {}
    passed = now - before.at if before else timedelta()
    passed_s = passed.total_seconds() if timedelta() <= passed <= LONGEST_LOOK else 0.0
    entries = []
    for job in jobs:
        old = known.pop(job.id, None)
        old = old if old and old.job.name == job.name else None  # numbers start again when a state was lost
        ran_s = passed_s if old and old.job.state == RUNNING else 0.0
        entry = old or JobRecord(job, format_time(now))
        entries.append(
            replace(
                entry,
                job=job,
                run_s=entry.run_s + ran_s,
                instance_s=entry.instance_s + ran_s * (old.job.nodes if old else 0),
            )
        )
    forgotten = [
        entry if entry.is_over else replace(entry, job=replace(entry.job, state=UNSEEN))
        for entry in known.values()
    ]
    living = [entry for entry in entries if not entry.is_over]
    ended = [*forgotten, *(entry for entry in entries if entry.is_over)]
    ended.sort(key=lambda entry: entry.seen)
    return JobRecords(now, (*ended[-MOST_ENDED:], *living))


def to_json(records: JobRecords) -> dict[str, Any]:
    """Return the record as the bucket holds it, within its readers' limit, whatever users write into jobs."""
    return {"schema_version": SCHEMA, "at": format_time(records.at), "jobs": _fitting(records.entries)}


def _fitting(entries: Iterable[JobRecord]) -> list[dict[str, Any]]:
    """Return the entries in their order; if they are too many, without those that have the longest texts."""
    items = list(map(asdict, entries))
    if sum(BESIDE_TEXTS + LONGEST_LETTER * _letters(item) for item in items) <= LONGEST - HEAD:
        return items  # nearly always: no entry is serialised twice
    sizes = [len(json.dumps(item, indent=INDENT)) for item in items]
    kept, room = set(), LONGEST - HEAD
    for place in sorted(range(len(items)), key=sizes.__getitem__):
        room -= sizes[place]
        if room < 0:
            break
        kept.add(place)
    return [item for place, item in enumerate(items) if place in kept]


def _letters(item: dict[str, Any]) -> int:
    """Return the number of characters in its texts."""
    return sum(len(value) for value in item["job"].values() if isinstance(value, str))
