"""A world with machines, people and a clock; ``world_clients`` shows it as boto3 would.

It knows the truth that no sweep knows: when each machine was really at work. Every end is held against it.
"""

import email.utils
import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from image.reaper.aws.machines import TAG_GROUP

EPOCH = datetime(2026, 3, 2, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def refusal(code: str, operation: str = "Operation") -> ClientError:
    """The cloud says no."""
    return ClientError({"Error": {"Code": code, "Message": f"the world says {code}"}}, operation)


@dataclass
class Machine:
    """One machine.

    Attributes:
        active_at: when it was last at work, in truth.
        busy: whether it is at work now, in truth.
        seen_active_at: what its agent knows of that: since its start, or since the work that it saw.
        agent: ``alive``, ``dead`` (says nothing), ``frozen`` (repeats itself) or ``blind`` (a sensor fails).
        terminable: no termination protection.
        told: when its owner was told that it will go, the latest notice of each mark.
        unfit: its boot check failed; its agent says so while nothing works.
    """

    id: str
    launched_at: datetime
    tags: dict[str, str]
    active_at: datetime
    seen_active_at: datetime
    state: str = "running"
    busy: bool = True
    agent: str = "alive"
    spot: bool = False
    terminable: bool = True
    stopped_at: datetime | None = None
    beats_at: list[datetime] = field(default_factory=list)
    beats: list[float] = field(default_factory=list)
    told: list[datetime] = field(default_factory=list)
    unfit: bool = False

    @property
    def ended(self) -> bool:
        return self.state in ("terminated", "stopped")


@dataclass
class Faults:
    """What goes wrong, each with a probability for one call."""

    throttled: float = 0.0
    denied: float = 0.0
    after_commit: float = 0.0
    partial: float = 0.0
    duplicated: float = 0.0
    deaf: float = 0.0
    back_to_work: float = 0.0
    seconds_per_call: float = 0.05


class World:
    """Everything there is.

    Args:
        seed: of its faults.

    Attributes:
        now: the time.
        skew: how far the sweep's own clock is ahead.
        ends: (time, machine, how) of every end.
        page: machines to a page.
        daily: (machine, metric) -> what the cloud says of a whole day of it.
        spot_prices: instance type -> zone -> price of an hour.
        unfit_at_start: whether what is started from now on fails its boot check.
    """

    def __init__(self, seed: int = 0) -> None:
        self.now = EPOCH
        self.skew = timedelta(0)
        self.machines: dict[str, Machine] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.lifecycle: dict[str, str] = {}
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.messages: list[tuple[datetime, str]] = []
        self.alarms: set[str] = set()
        self.ends: list[tuple[datetime, Machine, str]] = []
        self.published: dict[str, float] = defaultdict(float)
        self.daily: dict[tuple[str, str], float] = {}
        self.spot_prices: dict[str, dict[str, str]] = {}
        self.unfit_at_start = False
        self.faults = Faults()
        self.page = 1000
        self.calls: list[str] = []
        self._surprises: dict[str, tuple[int, Callable[[], object]]] = {}
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)

    # people and time

    def clock(self) -> datetime:
        """The sweep's clock."""
        return self.now + self.skew

    def start(self, tags: dict[str, str], group: str | None = None, **more: Any) -> Machine:
        """Start a machine whose owner works on it at once."""
        key = f"i-{next(self._numbers):017x}"
        more = {"unfit": self.unfit_at_start} | more
        machine = Machine(key, self.now, dict(tags), self.now, self.now, **more)
        self.machines[key] = machine
        if group is not None:
            machine.tags[TAG_GROUP] = group
            self.groups[group]["members"].append(key)
        return machine

    def group(self, name: str, min_size: int, max_size: int = 10, **tags: str) -> None:
        """Make an empty scaling group."""
        made = {"min": min_size, "max": max_size, "desired": 0, "members": [], "suspended": set()}
        self.groups[name] = made | {"tags": tags}

    def join(self, group: str, tags: dict[str, str], **more: Any) -> Machine:
        """Scale a group out by one machine."""
        self.groups[group]["desired"] += 1
        return self.start(tags, group, **more)

    def detach(self, group: str, ids: list[str], tag: str, *, decrement: bool) -> None:
        """Take members out of their group, which then wants fewer, or starts others at once."""
        made = self.groups[group]
        made["members"] = [key for key in made["members"] if key not in ids]
        for key in ids:
            self.machines[key].tags.pop(tag, None)
        if decrement:
            made["desired"] -= len(ids)
        elif "Launch" not in made["suspended"] and "SCALE_OUT" not in made["suspended"]:
            for key in ids:
                self.start(self.machines[key].tags, group, busy=not self.unfit_at_start)

    def pass_minutes(self, minutes: int) -> None:
        """Let time pass; agents look every minute."""
        self._pass(minutes * MINUTE)

    def _pass(self, span: timedelta) -> None:
        end = self.now + span
        while (next_minute := self.now.replace(second=0, microsecond=0) + MINUTE) <= end:
            self.now = next_minute
            for machine in self.machines.values():
                if machine.state == "running":
                    self._minute_of(machine)
        self.now = end

    def _minute_of(self, machine: Machine) -> None:
        if machine.busy:
            machine.active_at = self.now
            if machine.agent == "alive":
                machine.seen_active_at = self.now
        if machine.agent == "dead":
            return
        if machine.agent == "alive" and machine.unfit and not machine.busy:
            value = -3.0
        elif machine.agent == "alive":
            value = (self.now - machine.seen_active_at).total_seconds()
        elif machine.agent == "blind":
            value = -1.0
        else:
            value = machine.beats[-1] if machine.beats else 0.0
        machine.beats_at.append(self.now)
        machine.beats.append(value)

    def restart_agent(self, machine: Machine) -> None:
        """A fresh agent knows of nothing before its start."""
        machine.agent = "alive"
        machine.seen_active_at = self.now

    # what every call goes through

    def answer(self, operation: str, content: dict[str, Any]) -> dict[str, Any]:
        """Wrap an answer as boto3 does."""
        self.calls.append(operation)
        date = email.utils.format_datetime(self.now.replace(microsecond=0), usegmt=True)
        return content | {"ResponseMetadata": {"HTTPHeaders": {"date": date}, "RetryAttempts": 0}}

    def on_call(self, operation: str, act: Callable[[], object], number: int = 2) -> None:
        """Let something happen right before a call, by default the second of its kind from now on."""
        self._surprises[operation] = (number, act)

    def before(self, operation: str) -> None:
        """Faults that keep a call from doing anything."""
        if operation in self._surprises:
            left, act = self._surprises.pop(operation)
            if left > 1:
                self._surprises[operation] = (left - 1, act)
            else:
                act()
        self._pass(timedelta(seconds=self.faults.seconds_per_call))
        for machine in self.machines.values():
            if self.chance(self.faults.back_to_work) and machine.state == "running":
                machine.busy, machine.active_at = True, self.now
                if machine.agent == "alive":  # it looks every five seconds
                    machine.seen_active_at = self.now
        if self._random.random() < self.faults.throttled:
            raise refusal("RequestLimitExceeded", operation)
        if self._random.random() < self.faults.denied:
            raise refusal("UnauthorizedOperation", operation)

    def after(self, operation: str) -> None:
        """The fault that hides that a call did its work."""
        if self._random.random() < self.faults.after_commit:
            raise refusal("InternalError", operation)

    def chance(self, probability: float) -> bool:
        """Roll the dice."""
        return self._random.random() < probability

    def gone(self, machine: Machine, how: str) -> None:
        """A machine ends."""
        if machine.state == "running" or (machine.state == "stopped" and how == "terminated"):
            self.ends.append((self.now, machine, how))
        machine.state = how
        machine.stopped_at = self.now
        machine.busy = False
