"""Faults of owners, agents, clouds and clocks, in any order that hypothesis generates."""

import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RULE_MARKER,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gpu_fleet_image.controllers.sweep.idle_rules import OLDEST_HEARTBEAT
from gpu_fleet_image.controllers.sweep.lease import KEY as LEASE_KEY
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, TAG_MANAGED, TAG_PROTECTED, TAG_STACK, TAG_WITHDRAWN
from gpu_fleet_image.core.policy import Policy
from tests.image.moto_fleet import TAGS
from tests.image.sweeping import SLOWEST_CALL, policy, sweep_world
from tests.image.world import STACK, Faults, SimulatedInstance, World

IDLE_AFTER, GRACE, MIN_UPTIME = timedelta(hours=1), timedelta(minutes=20), timedelta(minutes=30)
EVERY_MINUTES = 10
LONG_RUN = 50
FOREIGN = [{TAG_MANAGED: "false"}, {TAG_STACK: "other"}, {TAG_PROTECTED: "always"}]
POOL = {
    "idle_after_hours": IDLE_AFTER.total_seconds() / 3600,
    "grace_minutes": int(GRACE.total_seconds() / 60),
    "min_uptime_minutes": int(MIN_UPTIME.total_seconds() / 60),
    "require_acknowledgement": True,
}
POLICY = policy(**POOL)
# Coverage is counted in whole quarter hours, the last of which must have ended and arrived.
COVERED = IDLE_AFTER + timedelta(minutes=15) + OLDEST_HEARTBEAT

instances = st.integers(min_value=0, max_value=7)
chances = st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.6])
failing = st.sampled_from(["dead", "frozen", "blind"])


def play(machine: type[RuleBasedStateMachine], count: int, steps: int = LONG_RUN, **more: Any) -> None:
    """Play a number of runs; a false end raises."""
    known = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)} | more
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=steps, **known)
    )


def change(thing: object, **values: Any) -> None:
    """Set attributes."""
    for name, value in values.items():
        setattr(thing, name, value)


def of_one(act: Callable[..., object] = change, **more: Any) -> Any:
    """Make a rule of an act on one of the running instances, if there is one."""

    def happens(self, index, **given):
        if instance := self.pick(index):
            act(instance, **given)

    return rule(index=instances, **more)(happens)


def of_the(part: Callable[["FaultStateMachine"], object], **more: Any) -> Any:
    """Make a rule of a change of the world, or of its faults."""

    def change_the_world(self, **given):
        change(part(self), **given)

    return rule(**more)(change_the_world)


def world_of(machine: "FaultStateMachine") -> World:
    return machine.world


def faults_of(machine: "FaultStateMachine") -> Faults:
    return machine.world.faults


class FaultStateMachine(RuleBasedStateMachine):
    """At most eight instances, four of them in a group with a minimum of one; sweeps amid all faults.

    Attributes:
        counts: of runs, of those of LONG_RUN steps or more (hypothesis ends some sooner), of steps, of ends,
            and of those amid faults; the others come once everything works again.
    """

    policy: ClassVar[Policy] = POLICY
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(seed=st.integers(0, 2**16))
    def stand_up(self, seed):
        self.world = World(seed)
        self.world.group("pool", min_size=1)
        for _ in range(3):
            self.world.join("pool", TAGS)
        self.world.start(TAGS)
        self.world.start(TAGS | FOREIGN[seed % 3])
        self.world.pass_minutes(5)
        self.steps_here = 0
        self.counts["runs"] += 1

    def pick(self, index):
        """Return one of the running instances, or None."""
        running = [instance for instance in self.world.instances.values() if instance.state == "running"]
        return running[index % len(running)] if running else None

    owner_begins_to_work = of_one(busy=st.just(True))
    a_user_types = of_one(SimulatedInstance.type)
    a_job_begins_in_an_open_terminal = of_one(SimulatedInstance.begin_behind_the_door)
    owner_leaves = of_one(SimulatedInstance.leave)
    owner_writes_a_malformed_hold = of_one(
        SimulatedInstance.keep,
        until=st.sampled_from(["", "tomorrow", "2026-03-02", "2026-03-02T10:00:00", "∞"]),
    )
    owner_releases = of_one(SimulatedInstance.release)
    an_agent_fails = of_one(agent=failing)
    owner_gives_back = of_one(SimulatedInstance.give_back)
    a_user_takes_it = of_one(SimulatedInstance.take)
    an_operator_ends_an_instance = of_one(state=st.just("terminated"))
    termination_protection_changes = of_one(SimulatedInstance.lock, on=st.booleans())
    the_cloud_refuses_to_end_an_instance = of_one(stubborn=st.booleans())

    administrators_remove_marks = of_the(faults_of, unmarked=st.sampled_from([0.05, 0.3]))
    calls_take_long = of_the(
        faults_of, seconds_per_call=st.sampled_from([0.05, 1.0, 20.0, SLOWEST_CALL.total_seconds()])
    )
    owners_come_back_while_sweeps_run = of_the(faults_of, back_to_work=st.sampled_from([0.02, 0.1]))
    heartbeats_are_shown_late = of_the(
        world_of, shown_after=st.sampled_from([timedelta(seconds=seconds) for seconds in (0, 30, 120)])
    )
    pages_change = of_the(world_of, page=st.sampled_from([1, 2, 1000]))
    nobody_can_be_notified = of_the(world_of, faults=st.builds(Faults, deaf=st.just(1.0)))
    the_cloud_recovers = of_the(world_of, faults=st.builds(Faults))
    the_cloud_falters = of_the(
        world_of,
        faults=st.builds(
            Faults,
            throttled=chances,
            denied=chances,
            after_commit=chances,
            partial=chances,
            duplicated=chances,
            deaf=chances,
        ),
    )

    @rule()
    def everybody_leaves(self):
        for instance in self.world.instances.values():
            instance.leave()

    @rule(tags=st.sampled_from([{}, {}, *FOREIGN]), grouped=st.booleans())
    def someone_starts_an_instance(self, tags, grouped):
        if len(self.world.instances) < 8:
            if grouped:
                self.world.join("pool", TAGS | tags)
            else:
                self.world.start(TAGS | tags)

    @rule(index=instances, hours=st.integers(-1, 30))
    def owner_holds(self, index, hours):
        if instance := self.pick(index):
            instance.keep(self.world.now + timedelta(hours=hours))

    @rule(index=instances, minutes=st.sampled_from([None, 10]))
    def an_administrator_removes_or_moves_a_mark(self, index, minutes):
        if instance := self.pick(index):
            until = self.world.now + timedelta(minutes=minutes) if minutes else None
            self.world.unmark(instance, until=until)

    @rule(index=instances)
    def an_agent_restarts(self, index):
        if instance := self.pick(index):
            self.world.restart_agent(instance)

    @rule(minutes=st.integers(-10, 10))
    def a_sweep_runs_by_a_wrong_clock(self, minutes):
        self.world.skew = timedelta(minutes=minutes)
        self.sweep()
        self.world.skew = timedelta(0)

    @rule(minutes=st.sampled_from([1, 3, 10, 25, 60, 90]))
    def time_passes(self, minutes):
        self.world.pass_minutes(minutes)

    @rule()
    def another_sweep_takes_the_lease(self):
        """In a store without conditional writes, the newest of its versions."""
        versions = sorted(key for key in self.world.objects if key.startswith(f"reaper/{LEASE_KEY}."))
        body = b'{"holder": "another", "expires": "2100-01-01T00:00:00+00:00"}'
        self.world.objects[versions[0] if versions else f"reaper/{LEASE_KEY}"] = (body, '"theirs"')

    @rule()
    def the_lease_is_freed(self):
        """Delete every version of the lease, as an operator may."""
        for key in [key for key in self.world.objects if key.startswith(f"reaper/{LEASE_KEY}")]:
            del self.world.objects[key]

    @rule(minutes=st.sampled_from([None, None, 1, 5]), sure=st.booleans())
    def a_sweep_runs(self, minutes, sure):
        """Sweep; with little time the sweep is cut off half-way."""
        self.sweep(minutes, sure=sure)

    def sweep(self, minutes=None, *, sure=True):
        """Sweep, mostly with the breaker overridden, which would hide mistakes."""
        allowed = timedelta(minutes=minutes) if minutes else None
        # It says so and exits with an error; that it did no harm is what the invariants hold.
        with contextlib.suppress(InstanceError):
            sweep_world(self.world, self.policy, deadline_after=allowed, override_breaker=sure)

    @rule(sweeps=st.integers(9, 14))
    def a_night_passes(self, sweeps):
        """Let a time pass that is long enough for a mark, and perhaps for a termination."""
        self.everybody_leaves()
        self.sweeps_run_on_schedule(sweeps)

    @rule(sweeps=st.integers(13, 16), back_to_work=st.sampled_from([0.0, 0.002, 0.01, 0.03]))
    def a_night_passes_in_which_some_come_back(self, sweeps, **chance):
        self._a_night_without_other_faults(sweeps, **chance)

    @rule(sweeps=st.integers(13, 16), unmarked=st.sampled_from([0.01, 0.05, 0.3]))
    def a_night_passes_in_which_marks_are_removed(self, sweeps, **chance):
        self._a_night_without_other_faults(sweeps, **chance)

    def _a_night_without_other_faults(self, sweeps, **chance):
        """Let sweeps reach a termination."""
        self.recover()
        change(self.world.faults, **chance)
        self.sweeps_run_on_schedule(sweeps)

    @rule(index=instances, how=failing, minutes=st.integers(1, 30))
    def work_begins_unseen(self, index, how, minutes):
        """Make the agent fail at the moment when its instance is used again."""
        if instance := self.pick(index):
            instance.agent, instance.busy = how, True
            self.world.pass_minutes(minutes)
            self.sweep()

    @rule(sweeps=st.integers(1, 12))
    def sweeps_run_on_schedule(self, sweeps):
        for _ in range(sweeps):
            self.sweep()
            self.world.pass_minutes(EVERY_MINUTES)

    @rule()
    def a_dry_run_changes_nothing(self):
        self.world.faults.unmarked = 0.0  # nobody else changes anything either
        before = self.picture()
        with contextlib.suppress(InstanceError):  # as for a sweep: only what it left behind counts
            sweep_world(self.world, self.policy, dry_run=True)
        assert before == self.picture()

    def picture(self):
        """Return all state that a sweep can change; agents go on answering meanwhile."""
        known = self.world.instances.values()
        tags = [{key: value for key, value in one.tags.items() if key != TAG_WITHDRAWN} for one in known]
        stored = {key: body for key, body in self.world.objects.items() if "/handshake/" not in key}
        return [one.state for one in known], tags, len(self.world.messages), stored

    @invariant()
    def every_end_was_right(self):
        if hasattr(self, "world"):
            self.counts["steps"] += 1
            self.steps_here += 1
            assert self.world.wrongs + self.world.floors() == []

    def teardown(self):
        """Check that after the faults, forgotten instances end within a sweep of the earliest time."""
        if not hasattr(self, "world"):
            return
        self.counts["ends amid faults"] += len(self.world.ends)
        self.recover()
        eligible = self._eligible()
        end = self.world.now + COVERED + GRACE + timedelta(minutes=3 * EVERY_MINUTES)
        while self.world.now < end:
            # everybody left at once, which a user has to confirm
            sweep_world(self.world, self.policy, override_breaker=True)
            self.world.pass_minutes(EVERY_MINUTES)
        self.counts["ends"] += len(self.world.ends)
        # the first step is that the instances stand up
        self.counts["long runs"] += self.steps_here > LONG_RUN
        assert self.world.wrongs + self.world.floors() == []
        left = [instance.id for instance in eligible if instance.state == "running"]
        spared = [instance for instance in eligible if instance.id in self.world.groups["pool"]["members"]]
        assert len(left) <= min(1, len(spared)), "the group keeps one, all others must be gone"

    def recover(self):
        """End all faults, and let every user leave."""
        self.world.faults, self.world.skew, self.world.page = Faults(), timedelta(0), 1000
        self.world.shown_after = timedelta(0)
        self.the_lease_is_freed()
        for instance in self.world.instances.values():
            instance.stubborn = False
            instance.lock(on=False)
            instance.leave()
            if instance.state == "running":
                self.world.restart_agent(instance)

    def _eligible(self):
        ours = {TAG_MANAGED: "true", TAG_STACK: STACK}
        return [
            instance
            for instance in self.world.instances.values()
            if instance.state == "running"
            and instance.tags.items() >= ours.items()
            and not instance.tags.keys() & {TAG_PROTECTED, TAG_KEEP_UNTIL}
        ]


# Hypothesis draws in each run which rules may happen, by the names of their functions: each needs its own.
for name, found in vars(FaultStateMachine).items():
    if made := getattr(found, RULE_MARKER, None):
        made.function.__name__ = name
