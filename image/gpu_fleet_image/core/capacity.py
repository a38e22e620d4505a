"""Requests for instances, instances on their way, and the mover's state between passes.

All of it lies below ``capacity/`` of the stack's records:

- ``requests/DAY/KIND/CALLER/NAME.json``: one request, written by the user who asks. KIND is ``users`` or
  ``sessions``. CALLER is the cloud's name of the credentials: on AWS nobody else can write below it.
- ``state.json``: the state of each request. Only the mover writes it; users read it.
- ``ledger/YYYY/MM/DD/...json``: every decision, written before it is carried out, never overwritten.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import KEY, LEFT_OUT, MAY_LACK, AsList, Record, named

PREFIX = "capacity"
REQUESTS = f"{PREFIX}/requests"
STATE = keys.MOVER_STATE
LEDGER = f"{PREFIX}/ledger"
SCHEMA = 1
# Tag of an instance: the key of the request that it was started for, or one of the three words below.
TAG_TAKEN = "gpu-fleet:taken"
SPARE, SHARED, QUEUED = "spare", "shared", "queued"
LONGEST_HOURS = 14 * 24
# A session's id has a colon, a user's has none: an IAM user's own id cannot be a second name of that user.
REQUEST_KEY = re.compile(
    r"[0-9]{4}(?:-[0-9]{2}){2}/(?:users/([^/:]{1,64})|sessions/([^/:]{1,64}:[^/:]{1,64}))/[0-9TZ]{1,20}-[0-9a-f]{1,16}"
)
POOL_NAME = re.compile(r"[a-z0-9-]{1,64}")
REMEMBERED = timedelta(days=2)
# Older requests are of nobody who still waits, and are not read.
STALE = timedelta(hours=1)
# Of one caller; with more the state, which every pass and every user reads, would grow as one of them wants.
MOST_REFUSED = 100


class Fate(StrEnum):
    """State of a request."""

    OPEN = "open"
    FILLED = "filled"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Request(Record):
    """A user's request for instances, and its state.

    Attributes:
        key: ``DAY/KIND/CALLER/NAME``.
        hours: how long they are kept, used or not; None if only the idle rules apply.
        at: when the mover first saw it.
        instances: ids of the instances that were started for it, in order.
        tried: groups without capacity, and the cloud's error of each.
        withdraws: key of an earlier request of the same user that this one withdraws; else empty.
    """

    key: str = field(metadata=KEY)
    pool: str
    count: int
    hours: float | None
    at: datetime
    fate: Fate = field(default=Fate.OPEN, metadata=named("state"))
    reason: str = ""
    instances: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    withdraws: str = ""

    @property
    def is_refused(self) -> bool:
        """True if nothing starts for it, as for a withdrawal."""
        return self.fate is Fate.REFUSED or bool(self.withdraws)

    @property
    def owner(self) -> str:
        """Name of the requester: a user, or a session, which counts only if the role fixes session names."""
        return owner_of(self.key)


def caller_in(key: str) -> str:
    """Return the requester in a request's key: ``users/NAME`` or ``sessions/ID:NAME``."""
    return key.partition("/")[2].rpartition("/")[0]


def owner_of(key: str) -> str:
    """Return the owner's name in a request's key."""
    match = REQUEST_KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{key}: no key of a request")
    return (match[1] or match[2]).rpartition(":")[2]


@dataclass(frozen=True)
class Coming(Record):
    """An instance that is being started, or waits for a group with capacity.

    Attributes:
        purpose: the key of a request, ``spare``, ``shared`` or ``queued``.
        asked_at: time of the request for it.
        group: the group that is starting it; empty while it waits.
        since: when that group was chosen.
        goal: desired capacity of that group once it was raised for this instance.
        started: the group's capacity was raised.
        activity: the cloud's id of the activity that raised it, if it returns one.
    """

    id: str
    pool: str
    purpose: str
    asked_at: datetime
    group: str = ""
    since: datetime | None = None
    goal: int = 0
    started: bool = False
    activity: str = ""

    def back(self) -> "Coming":
        """Return a copy without a group."""
        return replace(self, group="", since=None, goal=0, started=False, activity="")


@dataclass(frozen=True)
class Trouble(AsList):
    """A group's latest failure to start an instance: when, and the cloud's error."""

    at: datetime
    why: str


@dataclass(frozen=True)
class MoverState(Record):
    """State that one pass hands to the next.

    Attributes:
        requests: key -> request, open ones and those of the last two days.
        coming: instances on their way, oldest first.
        trouble: group -> its last failure.
        raised_for_load: pool -> when its load last brought it an instance.
        held: pool -> why it gets neither spares nor instances for its load.
        gifts: instance -> what its pool started it for, until its tag shows it.
        unheard: since when no report of the queue's controller could be read; None if one could.
    """

    requests: Mapping[str, Request] = field(default_factory=dict)
    coming: tuple[Coming, ...] = ()
    trouble: Mapping[str, Trouble] = field(default_factory=dict)
    raised_for_load: Mapping[str, datetime] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    gifts: Mapping[str, str] = field(default_factory=dict, metadata=MAY_LACK)
    unheard: datetime | None = field(default=None, metadata=LEFT_OUT)
    schema_version: int = field(default=SCHEMA, metadata=MAY_LACK)

    def to_json(self) -> dict[str, Any]:
        """Return the state as the bucket holds it, with the owner of each request for its readers."""
        content = super().to_json()
        for key, request in content["requests"].items():
            request["owner"] = owner_of(key)
        return content


def asked(key: str, raw: Mapping[str, Any], now: datetime) -> Request:
    """Parse a request as a user wrote it.

    A malformed one is returned as refused, with the reason for the user.
    """
    if "withdraws" in raw:
        return _withdrawal(key, raw["withdraws"], now)
    pool, count, hours = raw.get("pool"), raw.get("count"), raw.get("hours")
    problems = []
    if not isinstance(pool, str) or POOL_NAME.fullmatch(pool) is None:
        problems.append(f"pool = {str(pool)[:64]!r}; allowed: the name of a pool")
        pool = "unknown"
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        problems.append(f"count = {str(count)[:64]!r}; allowed: a whole number of at least 1")
    in_range = isinstance(hours, int | float) and not isinstance(hours, bool) and 0 < hours <= LONGEST_HOURS
    if hours is not None and not in_range:
        problems.append(f"hours = {str(hours)[:64]!r}; allowed: up to {LONGEST_HOURS}")
    if problems:
        return Request(key, pool, 0, None, now, Fate.REFUSED, "; ".join(problems))
    return Request(key, pool, int(count or 0), hours, now)


def _withdrawal(key: str, withdraws: Any, now: datetime) -> Request:
    """Parse a request that withdraws another of the same user."""
    if (
        isinstance(withdraws, str)
        and REQUEST_KEY.fullmatch(withdraws)
        and caller_in(withdraws) == caller_in(key)
    ):
        return Request(key, "", 0, None, now, withdraws=withdraws)
    reason = f"withdraws = {str(withdraws)[:64]!r}; allowed: the key of a request of your own"
    return Request(key, "unknown", 0, None, now, Fate.REFUSED, reason)
