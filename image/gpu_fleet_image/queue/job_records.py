"""``queue/jobs.json``: what the controller says of all jobs, for users wherever they are. Pure.

Slurm forgets a job minutes after its end, and a laptop cannot ask Slurm at all. So the controller keeps what
it saw last of each job, and how long instances have worked on it, over all its tries.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import format_time, parse_time
from gpu_fleet_image.queue.answers import Job

JOBS = "queue/jobs.json"
SCHEMA = 1
MOST_ENDED = 200
LONGEST = 4 << 20  # bytes of the object
HEAD = 1024  # bytes of what stands before the entries
BESIDE_TEXTS = 1024  # bytes of an entry without its texts, at most
LONGEST_LETTER = 12  # bytes of a letter in JSON, at most: two escapes
INDENT = 4  # at least what the store indents an entry by, and the comma behind it
RUNNING = "RUNNING"
# squeue(1), "JOB STATE CODES"; UNSEEN is ours
UNSEEN = "UNSEEN"
OVER = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", UNSEEN),
    }
)
# A controller that looked away for longer does not know what ran meanwhile.
LONGEST_LOOK = timedelta(minutes=5)


@dataclass(frozen=True)
class JobRecord:
    """A job as the controller saw it last.

    Attributes:
        seen: when it was first seen, ISO 8601.
        instance_s: how many seconds instances have worked on it, each counted.
        run_s: how many seconds it has run.
    """

    job: Job
    seen: str
    instance_s: float = 0.0
    run_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it has ended and comes back no more."""
        return self.job.state in OVER


@dataclass(frozen=True)
class JobRecords:
    """All entries, the newest last.

    Attributes:
        at: when the controller looked.
    """

    at: datetime
    entries: tuple[JobRecord, ...]


def after(before: JobRecords | None, jobs: Iterable[Job], now: datetime) -> JobRecords:
    """The records after a look.

    A job that ran at the look before has run meanwhile. What Slurm knows no more has ended: as it was
    seen, or unseen.
    """
    known = {entry.job.id: entry for entry in before.entries} if before else {}
    passed = now - before.at if before else timedelta()
    passed_s = passed.total_seconds() if timedelta() <= passed <= LONGEST_LOOK else 0.0
    entries = []
    for job in jobs:
        old = known.pop(job.id, None)
        old = old if old and old.job.name == job.name else None  # numbers begin anew where a state was lost
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
    """As the bucket holds it: never more than its readers take, whatever users write into their jobs."""
    return {"schema_version": SCHEMA, "at": format_time(records.at), "jobs": _fitting(records.entries)}


def _fitting(entries: Iterable[JobRecord]) -> list[dict[str, Any]]:
    """The entries in their order; where they are too many, those with the longest texts are left out."""
    items = list(map(asdict, entries))
    if sum(BESIDE_TEXTS + LONGEST_LETTER * _letters(item) for item in items) <= LONGEST - HEAD:
        return items  # as nearly always: nothing is written twice at each look
    sizes = [len(json.dumps(item, indent=INDENT)) for item in items]
    kept, room = set(), LONGEST - HEAD
    for place in sorted(range(len(items)), key=sizes.__getitem__):
        room -= sizes[place]
        if room < 0:
            break
        kept.add(place)
    return [item for place, item in enumerate(items) if place in kept]


def _letters(item: dict[str, Any]) -> int:
    """In its texts."""
    return sum(len(value) for value in item["job"].values() if isinstance(value, str))


def records_of(raw: Mapping[str, Any]) -> JobRecords:
    """What ``to_json`` wrote.

    Raises:
        CloudError: it is damaged.
    """
    try:
        entries = tuple(
            JobRecord(Job(**item["job"]), str(item["seen"]), float(item["instance_s"]), float(item["run_s"]))
            for item in raw["jobs"]
        )
        return JobRecords(parse_time(raw["at"]), entries)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CloudError(f"{JOBS}: {error!r}", "Malformed") from error
