"""Faults of owners, agents, clouds and clocks, in any order that hypothesis generates."""

import contextlib
from datetime import timedelta
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpu_fleet_image.controllers.sweep.idle_rules import OLDEST_HEARTBEAT
from gpu_fleet_image.controllers.sweep.lease import KEY as LEASE_KEY
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, TAG_MANAGED, TAG_PROTECTED, TAG_STACK, TAG_WITHDRAWN
from gpu_fleet_image.core.policy import Policy
from tests.image.moto_fleet import TAGS
from tests.image.sweeping import SLOWEST_CALL, policy, sweep_world
from tests.image.world import STACK, Faults, World

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


def same_runs_each_time(count: int) -> settings:
    """Return settings for `count` runs of fifty steps, always the same; the benches look for new ones."""
    return settings(
        max_examples=count,
        stateful_step_count=50,
        suppress_health_check=list(HealthCheck),
        deadline=None,
        derandomize=True,
        database=None,
    )


class FaultStateMachine(RuleBasedStateMachine):
    """At most eight instances, four of them in a group with a minimum of one; sweeps amid all faults."""

    policy: ClassVar[Policy] = POLICY
    runs: ClassVar[int] = 0
    long_runs: ClassVar[int] = 0  # of LONG_RUN steps or more: hypothesis ends some sooner
    steps: ClassVar[int] = 0
    ends: ClassVar[int] = 0
    ends_amid_faults: ClassVar[int] = 0  # the others come once everything works again

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
        FaultStateMachine.runs += 1

    def pick(self, index):
        """Return one of the running instances, or None."""
        running = [instance for instance in self.world.instances.values() if instance.state == "running"]
        return running[index % len(running)] if running else None

    @rule(index=instances)
    def owner_begins_to_work(self, index):
        if instance := self.pick(index):
            instance.busy = True

    @rule(index=instances)
    def a_user_types(self, index):
        if instance := self.pick(index):
            instance.type()

    @rule(index=instances)
    def a_job_begins_in_an_open_terminal(self, index):
        if instance := self.pick(index):
            instance.begin_behind_the_door()

    @rule(index=instances)
    def owner_leaves(self, index):
        if instance := self.pick(index):
            instance.leave()

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

    @rule(index=instances, text=st.sampled_from(["", "tomorrow", "2026-03-02", "2026-03-02T10:00:00", "∞"]))
    def owner_writes_a_malformed_hold(self, index, text):
        if instance := self.pick(index):
            instance.keep(text)

    @rule(index=instances)
    def owner_releases(self, index):
        if instance := self.pick(index):
            instance.release()

    @rule(index=instances, how=st.sampled_from(["dead", "frozen", "blind"]))
    def an_agent_fails(self, index, how):
        if instance := self.pick(index):
            instance.agent = how

    @rule(index=instances)
    def owner_gives_back(self, index):
        if instance := self.pick(index):
            instance.give_back()

    @rule(index=instances)
    def a_user_takes_it(self, index):
        if instance := self.pick(index):
            instance.take()

    @rule(index=instances, minutes=st.sampled_from([None, 10]))
    def an_administrator_removes_a_mark(self, index, minutes):
        """Remove a mark, or write a later time there."""
        if instance := self.pick(index):
            until = self.world.now + timedelta(minutes=minutes) if minutes else None
            self.world.unmark(instance, until=until)

    @rule(chance=st.sampled_from([0.05, 0.3]))
    def administrators_remove_marks_while_sweeps_run(self, chance):
        self.world.faults.unmarked = chance

    @rule(index=instances)
    def an_agent_restarts(self, index):
        if instance := self.pick(index):
            self.world.restart_agent(instance)

    @rule(index=instances)
    def an_operator_ends_an_instance(self, index):
        if instance := self.pick(index):
            instance.state = "terminated"

    @rule(index=instances, on=st.booleans())
    def termination_protection_changes(self, index, on):
        if instance := self.pick(index):
            instance.lock(on=on)

    @rule(index=instances, stubborn=st.booleans())
    def the_cloud_refuses_to_end_an_instance(self, index, stubborn):
        if instance := self.pick(index):
            instance.stubborn = stubborn

    @rule(
        throttled=chances,
        denied=chances,
        after_commit=chances,
        partial=chances,
        duplicated=chances,
        deaf=chances,
    )
    def the_cloud_falters(self, **chances_of):
        self.world.faults = Faults(**chances_of)

    @rule()
    def nobody_can_be_notified(self):
        self.world.faults = Faults(deaf=1.0)

    @rule()
    def the_cloud_recovers(self):
        self.world.faults = Faults()

    @rule(seconds=st.sampled_from([0.05, 1.0, 20.0, SLOWEST_CALL.total_seconds()]))
    def calls_take_long(self, seconds):
        self.world.faults.seconds_per_call = seconds

    @rule(chance=st.sampled_from([0.02, 0.1]))
    def owners_come_back_while_sweeps_run(self, chance):
        self.world.faults.back_to_work = chance

    @rule(minutes=st.integers(-10, 10))
    def a_sweep_runs_by_a_wrong_clock(self, minutes):
        self.world.skew = timedelta(minutes=minutes)
        self.sweep()
        self.world.skew = timedelta(0)

    @rule(seconds=st.sampled_from([0, 30, 120]))
    def heartbeats_are_shown_late(self, seconds):
        self.world.shown_after = timedelta(seconds=seconds)

    @rule(page=st.sampled_from([1, 2, 1000]))
    def pages_change(self, page):
        self.world.page = page

    @rule(minutes=st.sampled_from([1, 3, 10, 25, 60, 90]))
    def time_passes(self, minutes):
        self.world.pass_minutes(minutes)

    @rule()
    def another_sweep_takes_the_lease(self):
        body = b'{"holder": "another", "expires": "2100-01-01T00:00:00+00:00"}'
        self.world.objects[self.newest_lease()] = (body, '"theirs"')

    @rule()
    def the_lease_is_freed(self):
        self.forget_leases()

    def forget_leases(self):
        """Delete every version of the lease, as an operator may."""
        for key in [key for key in self.world.objects if key.startswith(f"reaper/{LEASE_KEY}")]:
            del self.world.objects[key]

    def newest_lease(self):
        """Return the key of the lease for a sweep; in a store without conditional writes, the newest one."""
        found = sorted(key for key in self.world.objects if key.startswith(f"reaper/{LEASE_KEY}."))
        return found[0] if found else f"reaper/{LEASE_KEY}"

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

    @rule(sweeps=st.integers(13, 16), chance=st.sampled_from([0.0, 0.002, 0.01, 0.03]))
    def a_night_passes_in_which_some_come_back(self, sweeps, chance):
        """Let a night pass without faults; users come back in the middle of a sweep."""
        self.recover()
        self.world.faults.back_to_work = chance
        self.sweeps_run_on_schedule(sweeps)

    @rule(sweeps=st.integers(13, 16), chance=st.sampled_from([0.01, 0.05, 0.3]))
    def a_night_passes_in_which_marks_are_removed(self, sweeps, chance):
        """Let a night pass in which only marks are removed, so that sweeps reach a termination."""
        self.recover()
        self.world.faults.unmarked = chance
        self.sweeps_run_on_schedule(sweeps)

    @rule(index=instances, how=st.sampled_from(["dead", "frozen", "blind"]), minutes=st.integers(1, 30))
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
        tags = [
            {key: value for key, value in instance.tags.items() if key != TAG_WITHDRAWN}
            for instance in self.world.instances.values()
        ]
        stored = {key: body for key, body in self.world.objects.items() if "/handshake/" not in key}
        states = [instance.state for instance in self.world.instances.values()]
        return states, tags, len(self.world.messages), stored

    @invariant()
    def every_end_was_right(self):
        if hasattr(self, "world"):
            FaultStateMachine.steps += 1
            self.steps_here += 1
            assert self.world.wrongs + self.world.floors() == []

    def teardown(self):
        """Check that after the faults, forgotten instances end within a sweep of the earliest time."""
        if not hasattr(self, "world"):
            return
        FaultStateMachine.ends_amid_faults += len(self.world.ends)
        self.recover()
        eligible = self._eligible()
        self._sweep_for(COVERED + GRACE + timedelta(minutes=3 * EVERY_MINUTES))
        FaultStateMachine.ends += len(self.world.ends)
        # the first step is that the instances stand up
        FaultStateMachine.long_runs += self.steps_here > LONG_RUN
        assert self.world.wrongs + self.world.floors() == []
        left = [instance.id for instance in eligible if instance.state == "running"]
        spared = [instance for instance in eligible if instance.id in self.world.groups["pool"]["members"]]
        assert len(left) <= min(1, len(spared)), "the group keeps one, all others must be gone"

    def recover(self):
        """End all faults, and let every user leave."""
        self.world.faults, self.world.skew, self.world.page = Faults(), timedelta(0), 1000
        self.world.shown_after = timedelta(0)
        self.forget_leases()
        for instance in self.world.instances.values():
            instance.stubborn = False
            instance.lock(on=False)
            instance.leave()
            if instance.state == "running":
                self.world.restart_agent(instance)

    def _eligible(self):
        return [
            instance
            for instance in self.world.instances.values()
            if instance.state == "running"
            and instance.tags[TAG_MANAGED] == "true"
            and instance.tags[TAG_STACK] == STACK
            and TAG_PROTECTED not in instance.tags
            and TAG_KEEP_UNTIL not in instance.tags
        ]

    def _sweep_for(self, span):
        end = self.world.now + span
        while self.world.now < end:
            # everybody left at once, which a user has to confirm
            sweep_world(self.world, self.policy, override_breaker=True)
            self.world.pass_minutes(EVERY_MINUTES)
