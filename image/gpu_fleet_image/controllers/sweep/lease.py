"""One sweep at a time: an object in the bucket that only one sweep can take over.

It also remembers, from sweep to sweep, what users were notified of already.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from gpu_fleet_image.controllers.sweep.ledger import key_of
from gpu_fleet_image.controllers.sweep.releases import OF_AGENTS, AgentReleases
from gpu_fleet_image.controllers.sweep.situation import Usual, Withdrawn
from gpu_fleet_image.core.document import Record, named, salvaged
from gpu_fleet_image.core.marks import hold_of, is_given_back
from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, Decision, Instance, Verdict
from gpu_fleet_image.core.reaper_errors import LeaseError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time

KEY = "lease.json"
# Longer than any sweep may run (Lambda: 15 min at most), so that a holder that is alive never loses it.
LENGTH = timedelta(minutes=15)
REMEMBERED = timedelta(days=1)
_USUAL_FOR = timedelta(days=14)
_WITHDRAWN_REMEMBERED = timedelta(days=7)  # longer than a grace, quiet hours and a weekend


@dataclass
class SweepMemory(Record):
    """Memory that one sweep hands to the next.

    Attributes:
        notified_at: subject of an alert, or an instance whose mark failed -> when users were last notified.
        leftovers_at: when leftovers were last looked for.
        replaced: instance that was to be replaced -> its pool, and when.
        ended: instance that was to be stopped or terminated -> its pool, and when.
        stopped: instance that was to be stopped -> the ledger's key of that, and when; until it is gone, or
            its start is on record.
        idle: pool -> day -> ids of the instances that were idle then, as they or an operator confirmed.
        withdrawn: instance -> its marks of one idle time that its agent withdrew.
        far_holds: instance with a hold of more days than are allowed -> its text, and when it was first seen.
    """

    notified_at: dict[str, datetime] = field(default_factory=dict, metadata=named("told"))
    leftovers_at: datetime | None = None
    replaced: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    ended: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    idle: dict[str, dict[str, set[str]]] = field(default_factory=dict, metadata=named("confirmed_idle"))
    withdrawn: dict[str, Withdrawn] = field(default_factory=dict)
    far_holds: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    stopped: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    agents: Annotated[AgentReleases, OF_AGENTS] = field(default_factory=AgentReleases)

    def replaced_lately(self, now: datetime) -> dict[str, str]:
        """Return instance -> pool of replacements within the last day."""
        return {key: pool for key, (pool, _) in _lately(self.replaced, now).items()}

    def usual(self, now: datetime) -> Usual:
        """Return the usual number of idle instances of each pool."""
        ended = {key: pool for key, (pool, _) in _lately(self.ended, now).items()}
        idle = {pool: {day: len(ids) for day, ids in days.items()} for pool, days in self.idle.items()}
        return Usual(ended, idle)

    def note_ending(self, decisions: Sequence[Decision], now: datetime) -> None:
        """Remember the instances that are about to be terminated, for a day; a repeated try counts once.

        An instance that its owner gave back says nothing about sensors, so the breaker does not count it.
        """
        ending = {decision.instance.id: (decision.instance.pool, now) for decision in decisions}
        replaced = {
            decision.instance.id: ending[decision.instance.id] for decision in decisions if decision.replaced
        }
        given_back = {decision.instance.id for decision in decisions if is_given_back(decision.instance)}
        self.replaced = replaced | _lately(self.replaced, now)
        counted = {key: ending_at for key, ending_at in ending.items() if key not in given_back}
        self.ended = counted | _lately(self.ended, now)
        stops = [decision for decision in decisions if decision.verdict is Verdict.STOP]
        self.stopped |= {decision.instance.id: (key_of(decision), now) for decision in stops}

    def started_again(self, instances: Iterable[Instance]) -> dict[str, tuple[str, datetime]]:
        """Return instance -> (key of its stop, start) of those that users started after a sweep stopped them.

        Terminated instances are forgotten.
        """
        there = {instance.id: instance for instance in instances}
        self.stopped = {key: stop for key, stop in self.stopped.items() if key in there}
        return {
            key: (record, there[key].launched_at)
            for key, (record, at) in self.stopped.items()
            if there[key].launched_at > at
        }

    def note_idle(self, pool: str, at: datetime, ids: Iterable[str]) -> None:
        """Note instances of a pool that were idle for certain on a day; each counts once."""
        self.idle.setdefault(pool, {}).setdefault(f"{at:%Y-%m-%d}", set()).update(ids)

    def note_holds(self, instances: Iterable[Instance], now: datetime) -> None:
        """Remember since when holds stand that are too far ahead; another text begins anew."""
        before, self.far_holds = self.far_holds, {}
        for instance in instances:
            hold = hold_of(instance, now)
            if hold is not None and hold.is_far:
                text, known = instance.tags[TAG_KEEP_UNTIL], before.get(instance.id)
                self.far_holds[instance.id] = known if known and known[0] == text else (text, now)

    def note_withdrawn(self, decision: Decision, now: datetime) -> None:
        """Note that an agent withdrew the mark of an instance that is idle by its heartbeats."""
        known = self.withdrawn.get(decision.instance.id)
        is_same = known is not None and decision.idle_since is not None and decision.idle_since <= known.last
        self.withdrawn[decision.instance.id] = (
            replace(known, last=now, count=known.count + 1) if known and is_same else Withdrawn(now, now, 1)
        )

    def forget(self, now: datetime) -> None:
        """Forget days that are too old for the usual number, and old withdrawals."""
        self.withdrawn = {
            key: withdrawn
            for key, withdrawn in self.withdrawn.items()
            if now - withdrawn.last < _WITHDRAWN_REMEMBERED
        }
        first = f"{now - _USUAL_FOR:%Y-%m-%d}"
        kept = {
            pool: {day: ids for day, ids in days.items() if ids and day >= first}
            for pool, days in self.idle.items()
        }
        self.idle = {pool: days for pool, days in kept.items() if days}


@dataclass(frozen=True)
class _Held:
    expires: datetime | None = None


class Lease:
    """The right to change instances, until ``release``.

    Args:
        store: where the object lies.

    Attributes:
        memory: of the sweep before; written back by ``release``.
    """

    def __init__(self, store: Store, holder: str, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._holder = holder
        self._clock = clock
        self._version: str | None = None
        self.memory = SweepMemory()

    def acquire(self) -> None:
        """Take the lease.

        Raises:
            LeaseError: another sweep has it.
            CloudError: nobody knows.
        """
        stored = self._store.get(KEY)
        if stored is None:
            self._version = self._store.create(KEY, self._content())
        else:
            self._refuse_if_held(stored.content)
            self.memory = _memory(stored.content)
            self._version = self._store.replace(KEY, self._content(), stored.version)
        if self._version is None:
            raise LeaseError("another sweep took the lease at the same moment; this one did nothing")

    def renew(self) -> None:
        """Verify that this sweep still holds the lease, right before a change.

        Raises:
            LeaseError: it is not.
            CloudError: nobody knows.
        """
        self._version = self._store.replace(KEY, self._content(), self._version or "never held")
        if self._version is None:
            raise LeaseError("another sweep took the lease over; this one terminates and stops nothing more")

    def release(self) -> None:
        """Give the lease back with what was remembered; one that was lost is left to its new holder.

        Raises:
            CloudError: it could not be written; then it runs out by itself.
        """
        if self._version is not None:
            self._store.replace(KEY, self._content(held=False), self._version)
            self._version = None

    def _content(self, *, held: bool = True) -> dict[str, Any]:
        now = self._clock()
        return {
            "holder": self._holder if held else None,
            "expires": format_time(now + LENGTH if held else now),
            "memory": self.memory.to_json(),
        }

    def _refuse_if_held(self, content: dict[str, Any]) -> None:
        if content.get("holder") is None:
            return
        expires = salvaged(_Held, content).expires
        if expires is None or expires > self._clock():
            forget = f"nobody knows when; to free it {self._store.to_forget(KEY)}"
            until = format_time(expires) if expires else forget
            raise LeaseError(f"another sweep ({content['holder']}) holds the lease until {until}")


def remembered(store: Store) -> SweepMemory:
    """Read the memory of the newest sweep, for a dry run. Raises CloudError."""
    stored = store.get(KEY)
    return SweepMemory() if stored is None else _memory(stored.content)


def _memory(content: dict[str, Any]) -> SweepMemory:
    """Parse the memory as far as it can be read; what is lost means that users are notified again."""
    raw = content.get("memory")
    return salvaged(SweepMemory, raw if isinstance(raw, dict) else {})


def _lately(noted: Mapping[str, tuple[str, datetime]], now: datetime) -> dict[str, tuple[str, datetime]]:
    return {key: value for key, value in noted.items() if now - value[1] < REMEMBERED}
