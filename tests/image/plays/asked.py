"""Plays of an instance whose agent is asked about a mark, and of its replies."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from gpu_fleet_image.core.handshake import Winner
from tests.image.plays.stage import Stage, plays
from tests.image.world import SimulatedInstance


@plays
class Asked(Stage):
    """Questions to the instance itself."""

    def an_instance_that_answers_is_terminated(self) -> None:
        instance = self.asked("pool")
        began_at = self.world.now
        self.sweep()
        assert instance.state == "terminated", "it was not terminated by this sweep"
        assert self.world.now - began_at < timedelta(seconds=30), "the sweep waits for what it has heard"
        assert instance.door.is_shut, "its door was open to the end"
        assert instance.door.saved > 0, "what users keep was not saved behind the shut door"

    def nobody_is_asked_before_a_mark_is_due(self) -> None:
        self.terms(require_acknowledgement=True)
        self.marked(due=False)
        self.sweep()
        # on Alibaba Cloud the lease is found by such a list
        assert self.cloud != "aws" or "ListObjectsV2" not in self.world.calls, "words are read for nothing"

    def a_job_begins_seconds_before_the_sweep(self) -> None:
        instance = self.asked()
        instance.busy = True
        self.world.pass_seconds(12)
        self.sweep_for(30)
        assert "python" in str(self.reasons("refused")), "nobody can read why"

    def a_job_is_over_while_its_agent_saves_behind_the_shut_door(self) -> None:
        """Its agent saw the job too late to withdraw the mark, and must not forget it."""
        instance = self.asked()
        self.world.pass_seconds(5)  # it has just read that nothing is decided, and reads again in 15 s

        def leave() -> None:
            self.world.now += timedelta(seconds=10)
            instance.leave()

        def come() -> None:
            instance.busy, instance.door.while_saving = True, leave

        self.world.on_call("PutObject", come)  # after the lease: the decision
        self.sweep_for(20)
        assert instance.state == "running", "what the job left is gone"

    def the_cloud_shows_late_that_it_was_used_before_its_mark_was_due(self) -> None:
        """The agent no longer sees the earlier use, and the cloud does not show its heartbeat yet."""
        self.terms(require_acknowledgement=True)
        self.world.shown_after = timedelta(minutes=2)
        (instance,) = self.marked(due=False)
        instance.busy = True
        self.world.pass_seconds(45)
        instance.leave()
        self.world.pass_seconds(30)
        self.sweep_for(20)
        assert instance.state == "running", "it was terminated a minute after its last use"

    def a_job_comes_as_the_end_is_called(self) -> None:
        """A job that begins by then is refused at the door."""
        instance = self.asked()
        self.as_its_end_is_called(lambda: setattr(instance, "busy", True))
        self.sweep_for(20)
        assert instance.state == "terminated", "it was not terminated"

    def _begun_before_the_last_word(self) -> SimulatedInstance:
        """Return a member of a group whose job begins behind its closed door as the sweep detaches it."""
        instance = self.asked("pool")
        self.world.on_call("DetachInstances", self.begins(instance, 5), number=1)
        self.sweep()
        return instance

    def a_job_begins_behind_the_door_before_the_last_word(self) -> None:
        instance = self._begun_before_the_last_word()
        assert instance.id in self.world.groups["pool"]["members"], "it is not in its group any more"
        assert not instance.door.is_shut, "its door stays shut, though nobody ends it"
        assert "python" in str(self.reasons("refused")), "nobody can read why"

    def an_agent_restarts_after_it_refused(self) -> None:
        """Its mark is still due and its end still decided: after a refusal the door is not closed again."""
        instance = self._begun_before_the_last_word()
        refused = bool(self.reasons("refused")) and not instance.door.is_shut
        instance.leave()
        self.world.restart_agent(instance)
        doors = []
        for _ in range(60):
            self.world.pass_seconds(1)
            doors.append(instance.door.is_shut)
        assert refused, "it refused nothing: the play is over before it begins"
        assert not any(doors), "its door is shut again, though no sweep ends it"

    def a_job_begins_behind_the_door_while_another_cannot_be_ended(self) -> None:
        """The sweep retries the batch of an instance that cannot be ended in halves; replies get too old."""
        self.terms(require_acknowledgement=True)
        stubborn, other = self.marked(2)
        stubborn.stubborn = True
        self.as_its_end_is_called(self.begins(other, 10))
        self.sweep(override_breaker=True)
        assert other.state == "running", "it was terminated at work"

    def a_job_begins_behind_the_door_after_the_last_word(self) -> None:
        """Only a cloud that checks the instance's own tag can still refuse."""
        instance = self.asked()
        if self.cloud == "aws":
            self.as_its_end_is_called(self.begins(instance, 5))
        self.sweep()

    def a_word_is_lost_and_a_job_begins_behind_the_door(self) -> None:
        """The resent reply arrives now, but is about a moment long before."""
        instance = self.asked()
        self.world.shown_after = timedelta(minutes=2)  # no heartbeat tells of the job in time
        self.world.pass_minutes(2)
        lost, arrived = list[datetime](), list[datetime]()

        def way(key: str) -> timedelta | None:
            if key.endswith("closed.json"):
                (arrived if lost else lost).append(self.world.now)
                return timedelta(0) if arrived else None
            return timedelta(0)

        def wait() -> None:
            for _ in range(1000):
                if arrived:
                    return
                self.world.pass_seconds(0.1)
                if lost and self.world.now >= lost[0] + timedelta(seconds=2):
                    instance.begin_behind_the_door()

        self.world.way = way
        self.world.on_call("ListObjectsV2", wait, number=3)  # the first that asks whether its door is shut
        self.sweep()
        assert bool(lost), "its word was not lost: the play is over before it begins"

    def the_answer_of_the_last_list_is_long_on_its_way(self) -> None:
        """On Alibaba Cloud nothing else stops the call that follows it."""
        instance = self.asked("pool")
        late = list[datetime]()

        def way_back() -> float:
            if self.world.calls[-1] != "ListObjectsV2" or late:
                return 0
            late.append(self.world.now)
            self.world.pass_seconds(2)
            instance.begin_behind_the_door()
            return 20

        self.world.on_call("DetachInstances", lambda: setattr(self.world, "way_back", way_back), number=1)
        self.sweep()
        assert bool(late), "no answer was late: the play is over before it begins"
        assert instance.id in self.world.groups["pool"]["members"], "it is not in its group any more"

    def a_closed_instance_is_not_ended_and_its_agent_dies(self) -> None:
        """A reply of minutes ago does not count."""
        instance = self.asked()
        instance.stubborn = True
        self.sweep()
        instance.stubborn, instance.agent = False, "dead"
        instance.begin_behind_the_door()
        self.world.pass_minutes(3)
        self.sweep()

    def its_files_change_while_it_waits_behind_the_shut_door(self) -> None:
        """A service may write little; the sweep that decided was cut off."""
        instance = self.asked()
        instance.stubborn = True
        self.sweep()
        self.world.pass_minutes(2)
        instance.write()
        self.world.pass_minutes(8)
        instance.stubborn = False
        self.sweep()
        assert instance.state == "terminated", "it was not terminated"

    def the_agent_dies_behind_the_shut_door(self) -> None:
        """A job begins in a terminal that was open before; the last reply is valid for half a minute."""
        instance = self.asked("pool")

        def die_and_work() -> None:
            instance.agent = "dead"
            self.begins(instance, 31)()

        self.world.on_call("DetachInstances", die_and_work, number=1)
        self.sweep()
        assert instance.id in self.world.groups["pool"]["members"], "it is not in its group any more"


@plays
class Behind(Stage):
    """Changes of its mark behind the closed door, and processes that start there repeatedly."""

    def _mark_is_taken_away_before(
        self, calls: Sequence[str], act: Callable[[SimulatedInstance], None]
    ) -> None:
        """Remove its mark, as an administrator may, when the sweep makes the last of these calls."""
        instance = self.asked("pool")
        shut = []

        def reach(left: Sequence[str]) -> None:
            if left:
                return self.world.on_call(left[0], lambda: reach(left[1:]), number=1)
            shut.append(instance.door.is_shut)
            return act(instance)

        reach(calls)
        self.sweep()
        stays = instance.state == "running"
        self.world.pass_minutes(3)
        assert shut == [True], f"its door was {shut}: the play is over before it begins"
        assert stays, "it was ended without a mark"
        assert instance.id in self.world.groups["pool"]["members"], "it is not in its group any more"
        assert not instance.door.is_shut, "its door stays shut, though nobody ends it"

    def _mark_is_taken_away_and_a_job_begins(
        self, calls: Sequence[str], until: datetime | None = None
    ) -> None:
        """Delete its mark or replace it, give its agent a moment to see that, and begin a job."""

        def act(instance: SimulatedInstance) -> None:
            self.world.unmark(instance, until=until)
            self.world.pass_seconds(2)
            instance.busy = True

        if self.cloud == "aws":
            self._mark_is_taken_away_before(calls, act)

    def its_mark_is_deleted_behind_the_shut_door(self) -> None:
        self._mark_is_taken_away_before(["DetachInstances"], self.world.unmark)

    def its_mark_is_replaced_by_a_later_one_behind_the_shut_door(self) -> None:
        later = self.world.now + timedelta(hours=5)
        act = lambda instance: self.world.unmark(instance, until=later)  # noqa: E731 - an act like the others
        self._mark_is_taken_away_before(["DetachInstances"], act)

    def its_mark_is_deleted_after_the_last_look_at_it(self) -> None:
        """Its agent withdraws its reply before it opens the door; only AWS shows it the tag at once."""
        self._mark_is_taken_away_and_a_job_begins(["DetachInstances", "ListObjectsV2"])

    def its_mark_is_deleted_as_its_end_is_called(self) -> None:
        """AWS checks the instance's own tag."""
        self._mark_is_taken_away_and_a_job_begins(["TerminateInstances"])

    def its_mark_is_replaced_as_its_end_is_called(self) -> None:
        """The tag that denies the end stays, though another mark has replaced the first."""
        later = self.world.now + timedelta(hours=5)
        self._mark_is_taken_away_and_a_job_begins(["TerminateInstances"], later)

    def its_owner_keeps_it_by_its_tag_behind_the_shut_door(self) -> None:
        """The cloud's console does not check whether the end is decided."""
        instance = self.asked("pool")
        keep = lambda: instance.keep(self.world.now + timedelta(hours=8))  # noqa: E731 - one expression
        self.world.on_call("DetachInstances", keep, number=1)
        self.sweep_for(20)
        assert instance.id in self.world.groups["pool"]["members"], "it is not in its group any more"

    def it_refused_and_its_mark_is_gone(self) -> None:
        """The tag that denies its end must not outlive the sweeps of that mark: its user may stop it."""
        instance = self.asked()
        instance.type()
        self.world.pass_seconds(12)
        instance.leave()
        self.world.pass_seconds(12)
        denied = "gpu-fleet:withdrawn" in instance.tags
        self.sweep()
        self.world.pass_minutes(3)
        assert denied == (self.cloud == "aws"), "nothing denies its end"
        assert "gpu-fleet:withdrawn" not in instance.tags, "its end is denied for good"

    def its_owner_asks_to_keep_it_as_the_end_is_called(self) -> None:
        """The end is decided: `gpu-fleet keep` must say that it is too late, and promise nothing."""
        instance = self.asked()

        def ask() -> None:
            agent = self.world.agents[instance.id]
            if agent.exchange().claim(Winner.WITHDRAWN, "kept", self.world.now) is Winner.WITHDRAWN:
                instance.keep(self.world.now + timedelta(hours=8))

        self.as_its_end_is_called(ask)
        self.sweep_for(20)
        assert instance.state == "terminated", "it was not terminated"

    def its_owner_asked_to_keep_it_before_the_sweep_decides(self) -> None:
        instance = self.asked()
        agent = self.world.agents[instance.id]
        agent.exchange().claim(Winner.WITHDRAWN, "kept", self.world.now)
        self.sweep()
        assert not self.ended, "it was terminated"
        assert not instance.door.is_shut, "its door was shut"
        assert not self.failures, "that it is kept counts as a failure"

    def its_owner_keeps_it_by_its_tag_after_it_answered(self) -> None:
        """After a change in the cloud's console only its agent can withdraw the mark before a sweep."""
        instance = self.asked()
        agent = self.world.agents[instance.id]
        instance.keep(self.world.now + timedelta(hours=8))
        self.world.pass_seconds(130)  # on Alibaba Cloud an agent asks for its tags every two minutes
        withdrawn = agent.exchange().decision() is Winner.WITHDRAWN
        assert withdrawn, "its agent takes nothing back"
        assert all("held" in why for name in ("decision", "refused") for why in self.reasons(name)), (
            "nobody can read that it is held"
        )

    def it_refused_once_and_is_idle_again(self) -> None:
        """A reply to one mark does not count for another."""
        instance = self.asked()
        self.use(instance, 1)
        self.sweep()
        self.forget([instance], 85)
        self.sweep_for(50, override_breaker=True)
        assert instance.state == "terminated", "it was not terminated"

    def a_loop_was_left_in_a_pane(self) -> None:
        """`watch -n 2 nvidia-smi`: every few polls show a process that has just begun."""
        self.terms(require_acknowledgement=True)
        (instance,) = self.start()
        instance.loop = (2.7, 0.7)
        self.forget([instance])
        mails = len(self.world.messages)
        self.sweep_for(240)
        assert instance.state == "terminated", "it never ends"
        assert len(self.world.messages) <= mails + 1, "its owner is notified again and again"

    def its_mark_is_withdrawn_again_and_again(self) -> None:
        """A process that no heartbeat shows withdraws it; it is a new process each time."""
        self.terms(require_acknowledgement=True)
        (instance,) = self.start()
        instance.loop = (15.0, 9.0)
        instance.is_new_each_time = True
        self.forget([instance])
        self.sweep_for(6 * 60)
        alerts = self.heard("withdrew 3 mark(s)")
        assert not self.ended, "it was terminated, whatever began there"
        assert self.notices() == 1, f"its owner was notified {self.notices()} times of one idle time"
        assert len(alerts) == 1, f"operators were alerted {len(alerts)} times"
        assert ["journalctl" in text for text in alerts] == [True], "the alert does not say where to look"

    def a_job_looks_like_one_more_run_of_a_loop(self) -> None:
        """It begins like a run of the loop, but lasts longer."""
        self.terms(require_acknowledgement=True)
        (instance,) = self.start(1, "pool")
        instance.loop = (7.0, 2.0)
        self.forget([instance])
        self.sweep()
        self.world.pass_minutes(25)

        def begin() -> None:
            instance.is_a_run = True
            instance.begin_behind_the_door()
            self.world.pass_seconds(12)

        self.world.on_call("DetachInstances", begin, number=1)
        self.sweep()
        assert instance.is_a_run, "the play is over before it begins"

    def a_silent_agent_is_waited_for(self) -> None:
        """It publishes that it sees nothing, and does not reply to its mark."""
        self.terms(require_acknowledgement=True)
        (instance,) = self.marked(due=False)
        instance.agent, instance.busy = "sightless", True
        self.world.pass_minutes(10)
        self.sweep()
        assert "gpu-fleet:reap-after" in instance.tags, "silence takes its mark away"
