"""Time of the queue's jobs on instances, ``queue/use/DAY.json``: written by the controller, read by reports.

Jobs that share an instance share its time by their GPUs. So the jobs of an instance never have more time than
the clock, and what they lack is time in which it ran none.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import DATE, Contradictory, Form, Record, named, number, one_of
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import Store

SCHEMA = 1
LONGEST = 8 << 20  # bytes of the object
# Names of jobs in a day, and bytes of their entries; later ones count for their account alone.
MOST_NAMES = 2_000
MOST_BYTES = LONGEST // 2
BESIDE_NAME = 32  # bytes of an entry without its name, at most
OTHERS = "(other jobs)"
SECONDS_OF_DAY = 86_400
# A controller that is lost takes no more than this along; a bucket keeps each version for a while.
WRITE_EVERY = timedelta(minutes=5)

_SECONDS = number(0, SECONDS_OF_DAY)
Used = Mapping[str, Mapping[str, Annotated[float, _SECONDS]]]  # instance id -> ACCOUNT/JOB -> seconds


@dataclass(frozen=True)
class RunningJob:
    """A job that runs.

    Attributes:
        name: ``ACCOUNT/JOB``; an account has no slash.
    """

    name: str
    on: tuple[str, ...]
    gpus: int


@dataclass(frozen=True)
class DayUse(Record, Contradictory):
    """Jobs of a day in UTC.

    Attributes:
        day: ``2026-11-26``.
        used: with the queue's instances that had no job.
        seen_s: seconds of it in which a controller saw which jobs ran.
    """

    day: Annotated[str, Form(DATE.allowed, lambda day: DATE.write(DATE.read(day)))]
    used: Used = field(default_factory=dict, metadata=named("instances"))
    seen_s: Annotated[float, _SECONDS] = 0.0
    schema_version: Annotated[int, one_of(SCHEMA)] = SCHEMA

    def unseen_s(self, until: datetime) -> float:
        """Return the seconds that no controller saw, without the last ones, which it has yet to write."""
        begin = datetime.fromisoformat(self.day).replace(tzinfo=UTC)
        passed_s = (until - 2 * WRITE_EVERY - begin).total_seconds()
        return max(0.0, min(passed_s, SECONDS_OF_DAY) - self.seen_s)

    def contradictions(self) -> Iterator[tuple[str, object, str]]:
        """Refuse jobs without an account."""
        for spent in self.used.values():
            yield from (("instances", name, "ACCOUNT/JOB") for name in spent if not account_of(name))


def key_of(day: str) -> str:
    """Return the key of a day's object in the store."""
    return f"{keys.QUEUE_USE}/{day}.json"


def day_of(now: datetime) -> str:
    """Return the name of the day in UTC."""
    return f"{now.astimezone(UTC):%Y-%m-%d}"


def account_of(name: str) -> str:
    """Return the account of ``ACCOUNT/JOB``."""
    return name.partition("/")[0]


def after(
    before: DayUse, jobs: Iterable[RunningJob], seconds: float, instances: Iterable[str] = ()
) -> DayUse:
    """Return the day after a time in which these jobs ran on the queue's instances."""
    on: dict[str, list[RunningJob]] = defaultdict(list)
    for job in jobs:
        for instance in job.on:
            on[instance].append(job)
    used: dict[str, dict[str, float]] = {instance: {} for instance in instances}
    for instance, sharing in on.items():
        whole, spent = sum(max(job.gpus, 1) for job in sharing), used.setdefault(instance, {})
        for job in sharing:
            spent[job.name] = spent.get(job.name, 0.0) + seconds * max(job.gpus, 1) / whole
    return together(before, DayUse(before.day, used, seconds))


def together(before: DayUse, more: DayUse) -> DayUse:
    """Return a day with what was counted later; no instance has more than a day, by no clock."""
    used = {instance: dict(spent) for instance, spent in before.used.items()}
    names = {name for spent in used.values() for name in spent}
    size = sum(_size(name) for spent in used.values() for name in spent)
    for instance, counted in more.used.items():
        spent = used.setdefault(instance, {})
        whole = sum(counted.values())
        share = max(0.0, min(1.0, (SECONDS_OF_DAY - sum(spent.values())) / whole)) if whole else 0.0
        for full_name, seconds in counted.items():
            name = full_name
            is_over = size >= MOST_BYTES or (name not in names and len(names) >= MOST_NAMES)
            if name not in spent and is_over:
                name = f"{account_of(name)}/{OTHERS}"
            names.add(name)
            size += 0 if name in spent else _size(name)
            spent[name] = round(spent.get(name, 0.0) + seconds * share, 3)
    return DayUse(before.day, used, round(min(before.seen_s + more.seen_s, SECONDS_OF_DAY), 3))


@lru_cache(maxsize=2 * MOST_NAMES)  # asked at each poll for each instance's jobs
def _size(name: str) -> int:
    return len(json.dumps(name)) + BESIDE_NAME


def load(store: Store, day: str) -> DayUse | None:
    """Return a day's use; None if there is no record of it. Raises CloudError."""
    stored = store.newest(key_of(day), LONGEST)
    return None if stored is None else DayUse.from_json(stored.content, keys.QUEUE_USE)


def load_readable(store: Store, day: str) -> DayUse | None:
    """Return a day's use; None if its record is missing or damaged. Raises CloudError."""
    try:
        return load(store, day)
    except CloudError as error:
        if error.code != "Malformed":
            raise
        return None
