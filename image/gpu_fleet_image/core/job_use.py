"""Time of the queue's jobs on instances, ``queue/use/DAY.json``: written by the controller, read by reports.

Jobs that share an instance share its time by their GPUs. So the jobs of an instance never have more time than
the clock, and what they lack is time in which it ran none.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from gpu_fleet_image.core import keys
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
NODES = re.compile(r"([^,\[]+)(?:\[([0-9,-]+)\])?(?:,|$)")  # a part of Slurm's notation: i-0a[01-03,7]

Used = Mapping[str, Mapping[str, float]]  # instance id -> ACCOUNT/JOB -> seconds


@dataclass(frozen=True)
class RunningJob:
    """A job that runs.

    Attributes:
        name: ``ACCOUNT/JOB``; an account has no slash.
        on: its instances.
        gpus: of one of its instances.
    """

    name: str
    on: tuple[str, ...]
    gpus: int


@dataclass(frozen=True)
class DayUse:
    """Jobs of a day in UTC.

    Attributes:
        day: ``2026-11-26``.
    """

    day: str
    used: Used = field(default_factory=dict)


def key_of(day: str) -> str:
    """Return the key of a day's object in the store."""
    return f"{keys.QUEUE_USE}/{day}.json"


def day_of(now: datetime) -> str:
    """Return the name of the day in UTC."""
    return f"{now.astimezone(UTC):%Y-%m-%d}"


def account_of(name: str) -> str:
    """Return the account of ``ACCOUNT/JOB``."""
    return name.partition("/")[0]


def instances(nodes: str) -> tuple[str, ...]:
    """Return the names in Slurm's notation of nodes, ``i-0a[01-03,7],i-0b``."""
    names: list[str] = []
    for prefix, ranges in NODES.findall(nodes):
        if not ranges:
            names.append(prefix)
        for part in filter(None, ranges.split(",")):
            first, _, last = part.partition("-")
            names += [
                f"{prefix}{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)
            ]
    return tuple(names)


def after(before: DayUse, jobs: Iterable[RunningJob], seconds: float) -> DayUse:
    """Return the day after a time in which these jobs ran; no instance has more than a day, by no clock."""
    on: dict[str, list[RunningJob]] = defaultdict(list)
    for job in jobs:
        for instance in job.on:
            on[instance].append(job)
    used = {instance: dict(spent) for instance, spent in before.used.items()}
    names = {name for spent in used.values() for name in spent}
    size = sum(_size(name) for spent in used.values() for name in spent)
    for instance, sharing in on.items():
        spent = used.setdefault(instance, {})
        whole = sum(max(job.gpus, 1) for job in sharing)
        passed = max(0.0, min(seconds, SECONDS_OF_DAY - sum(spent.values())))
        for job in sharing:
            name = job.name
            is_over = size >= MOST_BYTES or (name not in names and len(names) >= MOST_NAMES)
            if name not in spent and is_over:
                name = f"{account_of(name)}/{OTHERS}"
            names.add(name)
            size += 0 if name in spent else _size(name)
            part = passed * max(job.gpus, 1) / whole
            spent[name] = round(spent.get(name, 0.0) + part, 3)
    return replace(before, used=used)


@lru_cache(maxsize=2 * MOST_NAMES)  # asked at each poll for each instance's jobs
def _size(name: str) -> int:
    return len(json.dumps(name)) + BESIDE_NAME


def to_json(use: DayUse) -> dict[str, Any]:
    """Return a day as the bucket holds it."""
    return {"schema_version": SCHEMA, "day": use.day, "instances": use.used}


def from_json(raw: Mapping[str, Any]) -> DayUse:
    """Parse what ``to_json`` wrote. Raises CloudError if it is damaged."""
    try:
        used = {
            str(instance): {str(name): float(seconds) for name, seconds in spent.items()}
            for instance, spent in raw["instances"].items()
        }
        wrong = [
            name
            for spent in used.values()
            for name, seconds in spent.items()
            if not 0 <= seconds <= SECONDS_OF_DAY or not account_of(name)
        ]
        if wrong or raw["schema_version"] != SCHEMA:
            raise ValueError(wrong[0] if wrong else f"schema_version {raw['schema_version']!r}")
        return DayUse(str(raw["day"]), used)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CloudError(f"{keys.QUEUE_USE}: {error!r}", "Malformed") from error


def load(store: Store, day: str) -> Used | None:
    """Return a day's use; None if there is no record of it. Raises CloudError."""
    stored = store.newest(key_of(day), LONGEST)
    return None if stored is None else from_json(stored.content).used
