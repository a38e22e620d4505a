"""Plays of one instance: ends that must happen, and those that its heartbeats and boot check prevent."""

import json
from datetime import timedelta

from gpu_fleet_image.core.marks import mark_of
from gpu_fleet_image.core.model import Instance, Verdict
from tests.image.plays.stage import Stage, plays
from tests.image.world import SimulatedInstance


@plays
class MustHappen(Stage):
    """Ends that must happen."""

    def forgotten_instances_are_terminated(self) -> None:
        made = self.marked(1) + self.marked(2, "pool")
        self.sweep_for(40)
        keys = [key for key in self.world.objects if key.endswith("-terminate.json")]
        recorded = [json.loads(self.world.objects[key][0])["instance_id"] for key in keys]
        confirmed = [key for key in keys if key.replace(".json", ".ended.json") in self.world.objects]
        assert sorted(self.ended) == sorted(resource.id for resource in made), f"{len(self.ended)} of 3 ended"
        assert sorted(recorded) == sorted(self.ended), "not each end has one record"
        assert keys == confirmed, "not each record of an end is confirmed"
        assert self.world.groups["pool"]["desired"] == 0, "their group starts others in their place"

    def a_failed_boot_check_is_replaced_in_its_group(self) -> None:
        (unfit,) = self.start(1, "pool", unfit=True, busy=False)
        self.world.pass_minutes(30)
        self.sweep_for(60)
        bodies = [body for key, (body, _) in self.world.objects.items() if key.endswith("-terminate.json")]
        assert self.ended == [unfit.id], "it was not replaced"
        assert self.world.groups["pool"]["desired"] == 1, "its group wants fewer now"
        assert [json.loads(body)["saved_per_month"] for body in bodies] == ["0"], "its record claims a saving"


@plays
class FailedBootCheck(Stage):
    """Instances that failed their boot check."""

    def _unfit_in_a_group(self, minutes: int = 35) -> SimulatedInstance:
        """Return an instance of a group that failed its boot check and is old enough to be replaced."""
        (instance,) = self.start(1, "pool", unfit=True, busy=False)
        self.world.pass_minutes(minutes)
        return instance

    def an_unfit_instance_is_used(self) -> None:
        instance = self._unfit_in_a_group()
        self.use(instance, 5)
        self.forget([instance], 20)
        self.sweep()
        assert self.notices() == 0, "somebody was notified half an hour too early"

    def an_unfit_instance_is_used_after_its_mark_while_no_sweep_runs(self) -> None:
        instance = self._unfit_in_a_group()
        self.sweep()
        self.use(instance, 5)
        self.forget([instance], 45)
        self.sweep()

    def the_group_of_an_unfit_instance_is_frozen_after_its_mark(self) -> None:
        instance = self._unfit_in_a_group()
        self.sweep()
        self.world.groups["pool"]["suspended"] |= {"Launch", "SCALE_OUT"}
        self.world.pass_minutes(25)
        self.sweep()
        assert not self.ended, "nothing starts in its place"
        assert "gpu-fleet:reap-after" not in instance.tags, "its mark stays"

    def the_group_of_an_unfit_instance_is_at_its_minimum(self) -> None:
        """Alibaba Cloud refuses to detach an instance of such a group."""
        instance = self._unfit_in_a_group()
        self.world.groups["pool"]["min"] = 1
        self.sweep_for(40)
        lower = bool(self.heard("lower size.min"))
        assert (instance.id in self.ended) == (self.cloud == "aws"), "it was not replaced where it can be"
        assert lower == (self.cloud == "alicloud"), "nobody is notified to lower the minimum, or in vain"


@plays
class AtWork(Stage):
    """Instances in use."""

    def an_instance_works_for_hours(self) -> None:
        self.start()
        self.world.pass_minutes(300)
        self.sweep_for(60, override_breaker=True)
        assert self.notices() == 0, "its owner was notified that it is idle"

    def a_user_types_now_and_then(self) -> None:
        (instance,) = self.start()
        instance.leave()
        for _ in range(6):
            instance.type()
            self.world.pass_minutes(1)
            instance.leave()
            self.world.pass_minutes(40)
            self.sweep(override_breaker=True)
        assert self.notices() == 0, "its owner was notified that it is idle"

    def its_grace_is_not_over(self) -> None:
        self.marked(due=False)
        self.sweep()

    def the_sweep_takes_long_before_it_marks(self) -> None:
        """The grace is counted from the mark, not from the plan."""
        first, second = self.start(2)
        self.forget([first])
        self.sweep(override_breaker=True)
        first.busy = True
        self.forget([second])
        self.world.on_call("DeleteTags", lambda: self.world.pass_minutes(3), 1)
        self.world.on_call("UntagResources", lambda: self.world.pass_minutes(3), 1)
        self.sweep(override_breaker=True)
        mark = mark_of(Instance(second.id, "", "running", self.world.now, second.tags))
        long = mark is not None and mark.reap_after >= self.world.now + timedelta(minutes=19, seconds=50)
        assert long, f"the grace of {mark} is shorter than was promised at {self.world.now}"

    def its_owner_is_notified_for_how_long_it_is_idle(self) -> None:
        (instance,) = self.start()
        left_at = self.world.now
        self.forget([instance])
        result = self.report()
        since = mark_of(Instance(instance.id, "", "running", left_at, instance.tags))
        assert since, "it has no mark"
        assert len(result.done.marked) == 1, "the report does not say so"
        assert abs(since.idle_since - left_at) <= timedelta(minutes=2), "its tag is wrong"
        assert self.heard("owner: ada"), "it is not addressed to her"
        # of Alibaba Cloud the policy knows no price
        assert self.cloud != "aws" or self.heard(", 1.006 an hour, "), "it does not say what it costs"
        assert self.heard("idle for 79 min"), "the notice does not say so"

    def half_a_mark_is_taken_away(self) -> None:
        made = self.start(2)
        made[0].tags["gpu-fleet:idle-since"] = made[1].tags["gpu-fleet:reap-after"] = (
            "2026-03-02T08:00:00+00:00"
        )
        self.sweep()
        left = {key for each in made for key in each.tags} & {"gpu-fleet:idle-since", "gpu-fleet:reap-after"}
        assert not left, f"{left} stays on an instance at work"

    def its_owner_keeps_it_for_a_while(self) -> None:
        """The removed mark does not count as one that its agent withdrew."""
        (instance,) = self.marked(due=False)
        instance.keep(self.world.now + timedelta(hours=1))
        self.sweep()
        instance.release()
        self.sweep()
        reasons = [decision.reason for decision in self.report().plan.decisions]
        assert "terminated in" in str(reasons), f"it is not marked again: {reasons}"
        assert "withdrew" not in str(reasons), f"its agent is said to have withdrawn a mark: {reasons}"

    def it_is_used_while_no_sweep_runs(self) -> None:
        """At the next sweep it is idle for long enough again, with a mark of the earlier idle time."""
        (instance,) = self.marked(due=False)
        self.use(instance, 5)
        self.forget([instance], 100)
        self.sweep_for(20)

    def it_is_used_between_plan_and_second_look(self) -> None:
        (instance,) = self.marked()
        self.before_second_look(lambda: setattr(instance, "busy", True))
        self.sweep()

    def it_is_put_on_standby_between_plan_and_second_look(self) -> None:
        self.start(1, "pool")  # in service, so that the group's minimum is no reason to keep the other
        (instance,) = self.marked(1, "pool")
        self.before_second_look(lambda: self.world.lifecycle.update({instance.id: "Standby"}))
        self.sweep()
        assert not self.ended, "it was terminated on standby"

    def nobody_can_hear_it_at_the_last_moment(self) -> None:
        """After it was detached, a reply that cannot be read does not count as a closed door."""
        self.terms(require_acknowledgement=True)
        (instance,) = self.marked(1, "pool")
        self.world.on_call("DetachInstances", lambda: self.world.deny("ListObjectsV2"), 1)
        self.sweep()
        assert instance.state == "running", "it was terminated unheard"
        assert instance.id in self.world.groups["pool"]["members"], "it is not in its group any more"

    def nobody_can_look_at_a_stopped_instance_at_the_last_moment(self) -> None:
        (instance,) = self.stopped_and_due()
        # of the lease two are before, and the decision
        self.world.on_call("PutObject", lambda: self.world.deny("DescribeInstances"), 4)
        self.sweep()
        assert instance.state == "stopped", "it was terminated unseen"

    def nobody_can_say_what_is_decided_of_a_stopped_instance(self) -> None:
        """Its owner may have been notified that it is kept."""
        (instance,) = self.stopped_and_due()
        self.world.deny("PutObject", 3)  # of the lease two are before
        self.sweep()
        assert instance.state == "stopped", "it was terminated though its owner may keep it"

    def its_lock_cannot_be_read(self) -> None:
        """Only AWS has a call for it."""
        (instance,) = self.marked()
        self.world.deny("DescribeInstanceAttribute")
        self.sweep()
        assert instance.state == "running" or self.cloud != "aws", "it was terminated, locked or not"

    def it_turns_unfit_between_plan_and_second_look(self) -> None:
        """Its owner was notified of a stop only, and its disk would be deleted."""
        self.terms(action="stop", instance_store_scratch=False)
        self.start(1, "pool")
        (instance,) = self.marked(1, "pool")
        self.before_second_look(lambda: setattr(instance, "unfit", True))
        self.sweep()
        assert instance.state == "running", f"it is {instance.state}"

    def its_heartbeats_come_in_pages(self) -> None:
        (instance,) = self.marked()
        self.world.faults.partial = self.world.faults.rest = 1.0
        self.sweep()
        assert self.ended == [instance.id], "the second page is not read"

    def it_is_used_while_the_cloud_is_slow(self) -> None:
        """An instance that was checked minutes ago may be in use."""
        (instance,) = self.marked(1, "pool")
        self.world.on_call("DetachInstances", lambda: self.use(instance, 3), number=1)
        self.sweep()
        assert "checked too long ago" in str(self.failures), "nobody hears of it"
        assert instance.id in self.world.groups["pool"]["members"], "it is not in its group any more"


@plays
class UntoldByAgent(Stage):
    """Uses that the agent cannot report."""

    def the_agent_dies_as_a_job_begins(self) -> None:
        (instance,) = self.marked(due=False)
        instance.agent, instance.busy = "dead", True
        self.world.pass_minutes(6)
        self.sweep()

    def an_agent_whose_clock_is_ahead_dies_as_a_job_begins(self) -> None:
        (instance,) = self.start()
        instance.clock_ahead = timedelta(minutes=10)
        self.forget([instance])
        instance.agent, instance.busy = "dead", True
        self.world.pass_minutes(7)
        self.sweep(override_breaker=True)
        assert self.notices() == 0, "somebody was notified of an idleness that is over"

    def the_agent_hangs_as_a_job_begins(self) -> None:
        (instance,) = self.start()
        self.forget([instance])
        instance.agent, instance.busy = "frozen", True
        self.world.pass_minutes(12)
        self.sweep(override_breaker=True)
        assert self.notices() == 0, "somebody was notified of an idleness that nobody saw"

    def a_sensor_fails_as_a_job_begins(self) -> None:
        (instance,) = self.marked(due=False)
        instance.agent, instance.busy = "blind", True
        self.world.pass_minutes(2)
        self.sweep()

    def the_agent_sleeps_through_a_job(self) -> None:
        """It wakes up without knowing that it slept."""
        (instance,) = self.marked(due=False)
        instance.agent, instance.busy = "dead", True
        self.world.pass_minutes(20)
        instance.leave()
        self.world.pass_minutes(1)
        instance.agent = "alive"
        self.world.pass_minutes(5)
        self.sweep()

    def an_earlier_heartbeat_shows_later_work(self) -> None:
        """A second agent on the instance could publish so."""
        (instance,) = self.start()
        self.forget([instance])
        instance.beats[-40] = 5.0
        (decision,) = self.report().plan.decisions
        assert decision.verdict is Verdict.KEEP_BUSY, f"{decision.verdict}: {decision.reason}"

    def _lose_the_newest(self) -> None:
        faults = self.world.faults
        faults.partial, faults.kept, faults.rest = 1.0, slice(3, None), 0.0

    def the_newest_heartbeats_never_arrive(self) -> None:
        self.terms(coverage_percent=50, idle_after_hours=6)
        (instance,) = self.start()
        self.forget([instance], 8 * 60)
        self._lose_the_newest()
        self.use(instance, 3)
        self.sweep(override_breaker=True)
        # on Alibaba Cloud every answer names the page that follows
        assert self.notices() == 0, "somebody was notified of an idleness that is over"

    def the_close_look_is_answered_in_part(self) -> None:
        self.terms(coverage_percent=50, idle_after_hours=6)
        (instance,) = self.start()
        self.forget([instance], 8 * 60)
        self.use(instance, 3)
        self.world.on_call("GetMetricData", self._lose_the_newest)
        self.sweep(override_breaker=True)
        assert self.notices() == 0, "somebody was notified of an idleness that is over"

    def who_is_at_work_is_not_looked_at_closely(self) -> None:
        self.start(3)
        self.world.pass_minutes(90)
        self.sweep()
        # on Alibaba Cloud the bench counts the pages
        reads = self.world.calls.count("GetMetricData")
        assert self.cloud != "aws" or reads == 1, f"{reads} reads of heartbeats"
