"""Plays of requests of users and administrators."""

from datetime import timedelta

from gpu_fleet_image.core.handshake import Exchange, Winner
from gpu_fleet_image.core.marks import mark_of
from gpu_fleet_image.core.model import TAG_PROTECTED, Instance
from tests.image.plays.stage import Stage, plays
from tests.image.world import SimulatedInstance


@plays
class AskedFor(Stage):
    """Requests of users and administrators."""

    def its_owner_keeps_it(self) -> None:
        (instance,) = self.marked()
        instance.keep(self.world.now + timedelta(hours=8))
        reasons = [decision.reason for decision in self.report().plan.decisions]
        self.sweep_for(60)
        assert "held until 2026-03-02T17" in str(reasons), f"{reasons} does not say until when"

    def a_hold_of_many_years_is_over_after_two_weeks(self) -> None:
        self.terms(require_acknowledgement=True)
        (instance,) = self.start()
        instance.keep(self.world.now + timedelta(days=20_000))
        self.forget([instance])
        self.sweep()
        self.world.pass_minutes(14 * 24 * 60 - 20)
        self.sweep_for(10)
        in_time = self.notices() == 0
        self.world.pass_minutes(20)
        self.sweep_for(60)
        assert in_time, "its owner was notified within the two weeks"
        assert instance.state == "terminated", "it is kept for ever"

    def its_owner_keeps_it_between_plan_and_second_look(self) -> None:
        (instance,) = self.marked()
        self.before_second_look(lambda: instance.keep(self.world.now + timedelta(hours=8)))
        self.sweep()

    def an_administrator_protects_it(self) -> None:
        made = self.start(tags={TAG_PROTECTED: ""})
        self.forget(made)
        self.sweep_for(60, override_breaker=True)
        assert self.notices() == 0, "somebody was notified"

    def its_termination_is_locked(self) -> None:
        (instance,) = self.start(1, "pool")
        instance.lock()
        self.forget([instance])
        self.sweep_for(12 * 60, override_breaker=True)
        alerts = self.heard("protection is on")
        tried = {"DetachInstances", "TerminateInstances", "DeleteInstances", "AttachInstances"}
        assert not tried & set(self.world.calls), "it was detached for an end that the cloud refuses"
        assert not self.failures, "every sweep fails"
        assert len(alerts) == 1, f"{len(alerts)} alerts in half a day"

    def it_just_booted(self) -> None:
        self.terms(min_uptime_minutes=150)
        self.forget(self.start())
        self.sweep_for(60, override_breaker=True)
        assert self.notices() == 0, "somebody was notified"

    def the_owner_cannot_be_notified(self) -> None:
        self.forget(self.start())
        self.world.faults.deaf = 1.0
        self.sweep_for(60, override_breaker=True)

    def quiet_hours_are_kept(self) -> None:
        self.terms(quiet_hours=[{"start": "09:00", "end": "18:00"}])
        self.forget(self.start())
        self.sweep_for(60, override_breaker=True)
        assert self.notices() == 0, "somebody was notified in quiet hours"

    def a_spot_instance_is_not_stopped(self) -> None:
        self.terms(action="stop", instance_store_scratch=False)
        made = self.start(spot=True)
        self.forget(made)
        self.sweep_for(60, override_breaker=True)
        assert not self.ended, "it was stopped"

    def a_stopped_instance_gets_a_notice_of_its_own(self) -> None:
        self.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
        (instance,) = self.marked()
        self.sweep()
        self.world.pass_minutes(30 * 60)
        self.sweep_for(60)
        assert instance.state == "terminated", "it was not terminated"

    def _started_before(self, operation: str, number: int = 1) -> None:
        (instance,) = self.stopped_and_due()
        self.world.on_call(operation, lambda: self.world.boot(instance), number)
        self.sweep()
        self.world.pass_minutes(5)
        self.sweep()
        assert instance.state == "running", "it was terminated after its user had started it"
        assert "gpu-fleet:reap-after" not in instance.tags, "its mark stays"

    def a_stopped_instance_is_started_as_its_end_is_recorded(self) -> None:
        # of the lease two are before, and the decision
        self._started_before("PutObject", 4)

    def a_stopped_instance_is_started_as_its_end_is_called(self) -> None:
        """Only a cloud that checks the state can still refuse; on AWS this window remains."""
        if self.cloud == "alicloud":
            self._started_before("DeleteInstances")

    def _keeps_in_time(self, instance: SimulatedInstance) -> bool:
        """Keep a stopped instance, as its owner; return whether that was before the sweep's decision."""
        mark = mark_of(Instance(instance.id, "", "stopped", self.world.now, instance.tags))
        assert mark, "it has no mark"
        asked = Exchange(self.store(), instance.id, mark.reap_after)
        return asked.claim(Winner.WITHDRAWN, "kept", self.world.now) is Winner.WITHDRAWN

    def a_stopped_instance_is_kept_as_its_end_is_decided(self) -> None:
        """The first of sweep and owner wins; after a hold the mark is renewed."""
        (instance,) = self.stopped_and_due()
        won = self._keeps_in_time(instance)
        self.sweep()
        stays, unmarked = instance.state == "stopped", "gpu-fleet:reap-after" not in instance.tags
        self.sweep()
        self.world.pass_minutes(19)
        self.sweep()
        in_grace = instance.state == "stopped"
        self.sweep_for(40)
        assert (won, stays) == (True, True), "it was terminated though its owner was notified"
        assert (unmarked, in_grace) == (True, True), "a withdrawn mark ends it, or one without a grace"
        assert instance.state == "terminated", "nobody ends it any more, though nobody keeps it"

    def one_of_two_stopped_instances_is_kept_as_their_end_is_decided(self) -> None:
        """Each instance has its own race, though their marks are equal."""
        first, second = self.stopped_and_due(2)
        won = self._keeps_in_time(second)
        self.sweep()
        assert (won, second.state) == (True, "stopped"), "its owner was notified that it is kept"
        assert first.state == "terminated", "the other is not terminated"

    def a_stopped_instance_carries_the_tag_that_denies_its_end(self) -> None:
        """Its agent set it, and its user stopped it: no notice is sent of an end that cannot happen."""
        self.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
        (instance,) = self.start()
        instance.tags["gpu-fleet:withdrawn"] = "2026-03-02T08:30:00+00:00"
        instance.leave()
        instance.tags["gpu-fleet:stopped-at"] = (self.world.now + timedelta(minutes=1)).isoformat()
        instance.state, instance.stopped_at = "stopped", self.world.now
        instance.line.stopped.open(self.world.now)
        self.world.pass_minutes(25 * 60)
        self.sweep_for(6 * 60)
        alerts = self.heard("gpu-fleet:withdrawn")
        tried = {"TerminateInstances", "DeleteInstances"} & set(self.world.calls)
        del instance.tags["gpu-fleet:withdrawn"]
        self.sweep_for(60)
        assert not [*tried, *self.failures], "every sweep tries what the cloud denies"
        assert len(alerts) == 1, f"{len(alerts)} alerts in six hours"
        assert instance.state == "terminated", "without the tag nobody ends it"

    def a_marked_instance_is_stopped_by_its_owner(self) -> None:
        """A notice of a stop, or of an end while it runs, is no notice of the end of a stopped instance."""
        self.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
        (instance,) = self.marked(due=False)
        instance.state, instance.stopped_at = "stopped", self.world.now
        instance.line.stopped.open(self.world.now)
        self.world.pass_minutes(25 * 60)
        self.sweep()
        assert instance.state == "stopped", "it was terminated without a notice of that"

    def a_stopped_instance_is_past_no_lifetime(self) -> None:
        self.terms(action="stop", instance_store_scratch=False, max_lifetime_hours=24)
        (instance,) = self.marked()
        self.sweep()
        self.world.pass_minutes(30 * 60)
        reasons = [decision.reason for decision in self.report().plan.decisions]
        assert instance.state == "stopped", "it was not stopped"
        assert not any("lifetime" in reason for reason in reasons), "it counts as running too long"

    def its_user_starts_it_while_the_mark_that_led_to_its_stop_stands(self) -> None:
        self.terms(action="stop", instance_store_scratch=False, require_acknowledgement=True)
        (instance,) = self.marked()
        self.sweep()
        stopped, saved = instance.state == "stopped", instance.door.saved
        self.world.pass_minutes(30)  # after an hour the decision itself would be too old
        self.world.boot(instance)
        self.world.pass_minutes(3)
        assert stopped, "it was not stopped"
        assert (instance.door.saved, instance.door.is_shut) == (saved, False), (
            "its door was shut for an old mark"
        )

    def a_stop_answers_with_an_error_after_it_was_done(self) -> None:
        self.terms(action="stop", instance_store_scratch=False)
        (instance,) = self.marked()
        recover = lambda: setattr(self.world.faults, "after_commit", 0.0)  # noqa: E731 - one expression

        def fail() -> None:
            self.world.faults.after_commit = 1.0
            self.world.on_call("DescribeInstances", recover, number=1)

        self.world.on_call("StopInstances", fail, number=1)
        self.sweep()
        confirmed = [key for key in self.world.objects if key.endswith("-stop.ended.json")]
        assert instance.state == "stopped", "it was not stopped"
        assert not self.failures, "what was done counts as failed"
        assert len(confirmed) == 1, "its end is not confirmed"
