"""The order of a destroy: drain, delete everything but data, delete the named data, then the key.

Every step reads the current state again, so an interrupted destroy continues when it is run again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.teardown import state
from gpu_fleet_stacks.teardown.errors import StillThereError
from gpu_fleet_stacks.teardown.holdings import HeldInstance, Note, TeardownCloud
from gpu_fleet_stacks.teardown.plan import DestroyPlan, Wishes, key_days, plan
from gpu_fleet_stacks.teardown.state import StateResource

# The drain hook holds an instance for 900 s (fleet.py, DRAIN_S); the instance then shuts down.
DRAIN_S = 1800
POLL_S = 15


class Engine(Protocol):
    """Deletes resources; see ``engine.Engine``."""

    def resources(self) -> tuple[StateResource, ...]:
        """Return the resources in the state."""

    def destroy(self, exclude: frozenset[str]) -> None:
        """Delete everything but some resources."""


def now_utc() -> datetime:
    """Return the time, aware UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Teardown:
    """The teardown of one stack.

    Attributes:
        note: shows a line to the user.
        clock, sleep: the time and the wait; tests replace them.
        drain_s: how long instances may take to shut down.
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
        """Return the current state and plan; change nothing."""
        resources = self.engine.resources()
        holdings = self.cloud.look(resources, self.clock())
        return resources, plan(self.stack, resources, holdings, self.wishes)

    def run(self, resources: Sequence[StateResource], decided: DestroyPlan) -> DestroyPlan:
        """Destroy the stack; return the final plan, which lists what was kept.

        Raises:
            StillThereError: instances still exist after the wait.
            TeardownError: ``pulumi destroy`` failed.
            CannotCheckError: the cloud refused a call.
        """
        self._empty_fleet(resources, decided)
        stores = {resource.urn for resource in state.of(resources, state.BUCKETS | state.FILE_SYSTEMS)}
        self._delete_all_but(resources, state.kept_with(resources, stores))
        # Nothing of the stack writes data from here on.
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
        """Terminate stopped instances where asked, drain every group, and wait until no instance is left."""
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
                    f" was touched. Run `gpu-fleet destroy {self.stack.name}` again to continue waiting"
                )
            self.sleep(POLL_S)

    def _delete_all_but(self, resources: Sequence[StateResource], keep: frozenset[str]) -> None:
        """Delete everything else; do not run the engine if nothing would be deleted.

        The engine would fail on protected resources.
        """
        staying = state.closure(resources, keep)
        if any(resource.urn not in staying for resource in state.real(resources)):
            self.engine.destroy(keep)

    def _let_the_key_go(self, decided: DestroyPlan) -> None:
        """Schedule the key's deletion while the state lists it, so that an interrupted destroy finds it."""
        resources = self.engine.resources()
        if decided.key_kept or not resources:
            return
        for key in state.outlasting_keys(resources):
            days = key_days(self.stack)
            self.note(f"key {key.id} is deleted in {days} days")
            self.cloud.schedule_key_deletion(key, days)
        self.engine.destroy(frozenset())


def _named(instances: Sequence[HeldInstance]) -> str:
    shown = ", ".join(instance.id for instance in instances[:5])
    more = f" and {len(instances) - 5} more" if len(instances) > 5 else ""  # noqa: PLR2004 - as above
    return f"{shown}{more}"
