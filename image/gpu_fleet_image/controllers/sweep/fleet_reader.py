"""Reader of alarms, locks and replies: what a decision needs beside the fleet and its heartbeats."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from gpu_fleet_image.controllers.sweep.idle_rules import is_unfit
from gpu_fleet_image.controllers.sweep.results import Done
from gpu_fleet_image.controllers.sweep.situation import is_asked
from gpu_fleet_image.core.calls import Failure
from gpu_fleet_image.core.cloud import SweepCloud
from gpu_fleet_image.core.handshake import MarkQuestion, Replies, pool_caller, read_replies, replies_of
from gpu_fleet_image.core.marks import is_given_back, mark_of
from gpu_fleet_image.core.model import Activity, Instance, Inventory
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError


class FleetReader:
    """Reader of alarms, locks and replies; what cannot be read is a failure in ``done``.

    Args:
        done: takes failures, and callers that flood the records.
        is_watching: the stack is in its first days, so that only marks of given back instances are real.
    """

    def __init__(
        self,
        cloud: SweepCloud,
        policy: Policy,
        clock: Callable[[], datetime],
        done: Done,
        *,
        is_watching: bool,
    ) -> None:
        self._cloud, self._policy, self._clock = cloud, policy, clock
        self._done, self._is_watching = done, is_watching

    def replies(self, fleet: Inventory, now: datetime, before: Replies) -> Replies:
        """Read the replies to all marks that are due; none where the records cannot be read."""
        asked = [
            self._asked(instance, mark.reap_after, before)
            for instance in fleet.instances
            if instance.pool in self._policy.pools and is_asked(self._policy, instance)
            # while the stack is watched, other marks are none that an instance knows of
            if not self._is_watching or is_given_back(instance)
            if (mark := mark_of(instance)) and mark.reap_after <= now
        ]
        if not asked or self._cloud.store is None:
            return {}
        try:
            answers = read_replies(self._cloud.store, asked)
        except CloudError as error:
            self._done.failures.append(Failure("*", "hear instances", str(error)))
            return {}
        self._done.flooding |= answers.flooding
        return answers.replies

    def _asked(self, instance: Instance, mark: datetime, before: Replies) -> MarkQuestion:
        """Return the question of a mark; on AWS its caller is known from the first reply on."""
        known = replies_of(before, instance.id, mark).caller
        if self._policy.cloud == "alicloud":
            known = pool_caller(instance.pool, instance.id)
        return MarkQuestion(instance.id, mark, known)

    def with_lock(self, instance: Instance, activity: Activity | None) -> Instance:
        """Return the instance with its lock, which is read once the grace is over; unknown counts as locked.

        The lock is read before anything is detached for a call that the cloud would refuse. An instance that
        its pool stops, but that is terminated as stopped or unfit, has both locks read.
        """
        mark, pool = mark_of(instance), self._policy.pools.get(instance.pool)
        if instance.locked or mark is None or pool is None or self._clock() < mark.reap_after:
            return instance
        actions = [pool.action]
        if pool.action != "terminate" and (instance.state != "running" or is_unfit(activity)):
            actions.append("terminate")
        try:
            locks = [self._cloud.instances.lock(instance.id, action) for action in actions]
            return replace(instance, locked=" and ".join(lock for lock in locks if lock))
        except CloudError as error:
            self._done.failures.append(Failure(instance.id, "read termination protection", str(error)))
            return replace(instance, locked="its termination protection could not be read")

    def scale_in(self) -> frozenset[str]:
        """Return the pools whose scale-in alarm is firing; none where alarms cannot be read."""
        alarms = {
            pool.scale_in_alarm: name for name, pool in self._policy.pools.items() if pool.scale_in_alarm
        }
        if not alarms:
            return frozenset()
        try:
            firing = self._cloud.instances.alarms_firing(sorted(alarms))
        except CloudError as error:
            self._done.failures.append(Failure("*", "read alarms", str(error)))
            return frozenset()
        return frozenset(alarms[alarm] for alarm in firing if alarm in alarms)
