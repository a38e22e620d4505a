"""The order of a destroy: drain, delete all but data, give up what was given up, let the key go last.

Every step looks anew at what is there, so a destroy that was cut off goes on where it ended.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from stacks.settings import Stack
from stacks.teardown import state
from stacks.teardown.errors import StillThereError
from stacks.teardown.holdings import HeldInstance, Note, TeardownCloud
from stacks.teardown.plan import DestroyPlan, Wishes, key_days, plan
from stacks.teardown.state import StateResource

# The drain hook holds an instance for 900 s (fleet.py, DRAIN_S), and it then shuts down.
DRAIN_S = 1800
POLL_S = 15


class Engine(Protocol):
    """What deletes; see ``engine.Engine``."""

    def resources(self) -> tuple[StateResource, ...]:
        """What the state holds."""

    def destroy(self, exclude: frozenset[str]) -> None:
        """Delete all but some resources."""


def now_utc() -> datetime:
    """The time now."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Teardown:
    """One stack and what it takes to take it down.

    Attributes:
        note: shows a line to the user.
        clock, sleep: time, as tests give it.
        drain_s: how long instances may take to leave.
    """

    stack: Stack
    cloud: TeardownCloud
    engine: Engine
    wishes: Wishes
    note: Note
    clock: Callable[[], datetime] = now_utc
    sleep: Callable[[float], None] = time.sleep
    drain_s: float = DRAIN_S

    def look(self) -> tuple[tuple[StateResource, ...], DestroyPlan]:
        """State and plan as they are now; changes nothing."""
        resources = self.engine.resources()
        holdings = self.cloud.look(resources, self.clock())
        return resources, plan(self.stack, resources, holdings, self.wishes)

    def run(self, resources: Sequence[StateResource], decided: DestroyPlan) -> DestroyPlan:
        """Do it; gives what was found to be kept in the end.

        Args:
            resources: of the state.
            decided: without refusals.

        Raises:
            StillThereError: instances outlasted the wait.
            TeardownError: ``pulumi destroy`` failed.
            CannotCheckError: the cloud refused a call.
        """
        self._empty_fleet(resources, decided)
        stores = {resource.urn for resource in state.of(resources, state.BUCKETS | state.FILE_SYSTEMS)}
        self._delete_all_but(resources, state.kept_with(resources, stores))
        # From here on nothing of the stack writes any more.
        for store in decided.given_up:
            if not store.empty and store.urn in self._urns(state.BUCKETS):
                self.note(f"emptying {store.id}")
                self.cloud.empty(store.id, self.note)
        resources, decided = self.look()
        keep = state.kept_with(resources, decided.kept_urns)
        self._delete_all_but(resources, keep)
        self._let_the_key_go(decided)
        return decided

    def _urns(self, types: frozenset[str]) -> set[str]:
        return {resource.urn for resource in state.of(self.engine.resources(), types)}

    def _empty_fleet(self, resources: Sequence[StateResource], decided: DestroyPlan) -> None:
        """Every instance leaves through its group's hook; the stopped ones, where asked, at once."""
        if decided.stopped:
            ids = [instance.id for instance in decided.stopped]
            self.note(f"terminating {len(ids)} stopped: {', '.join(ids)}")
            self.cloud.terminate(ids)
        groups = state.of(resources, state.GROUPS)
        for group in groups:
            self.cloud.drain(group)
        if groups:
            self._wait(resources)

    def _wait(self, resources: Sequence[StateResource]) -> None:
        began, before = self.clock(), -1
        while left := self.cloud.instances(resources, self.clock()):
            if len(left) != before:
                self.note(f"waiting for {_named(left)} to save and shut down")
                before = len(left)
            if (self.clock() - began).total_seconds() >= self.drain_s:
                raise StillThereError(
                    f"{_named(left)} still there after {self.drain_s / 60:.0f} minutes; nothing but the fleet"
                    f" was touched. Run `gpu-fleet destroy {self.stack.name}` again to go on waiting"
                )
            self.sleep(POLL_S)

    def _delete_all_but(self, resources: Sequence[StateResource], keep: frozenset[str]) -> None:
        """Nothing is asked of the engine where nothing would be deleted: it would fail on protected parts."""
        staying = state.closure(resources, keep)
        if any(resource.urn not in staying for resource in state.real(resources)):
            self.engine.destroy(keep)

    def _let_the_key_go(self, decided: DestroyPlan) -> None:
        """Scheduled while it is still in the state: a destroy that is cut off here finds it again."""
        resources = self.engine.resources()
        if decided.key_kept or not resources:
            return
        for key in state.of(resources, state.KEYS):
            days = key_days(self.stack)
            self.note(f"key {key.id} is deleted in {days} days")
            self.cloud.schedule_key_deletion(key, days)
        self.engine.destroy(frozenset())


def _named(instances: Sequence[HeldInstance]) -> str:
    shown = ", ".join(instance.id for instance in instances[:5])
    more = f" and {len(instances) - 5} more" if len(instances) > 5 else ""  # noqa: PLR2004 - as above
    return f"{shown}{more}"
