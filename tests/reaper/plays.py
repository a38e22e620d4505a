"""Short plays in a world, one for each promise of the sweep; each asserts, in words, what must not go wrong.

``test_mutants`` breaks one guard at a time and asks that a play sees it.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from image.instance.errors import InstanceError
from image.reaper.alicloud.oss import OssStore
from image.reaper.calls import Calls
from image.reaper.handshake import Exchange, Winner
from image.reaper.marks import mark_of
from image.reaper.model import (
    TAG_GIVE_BACK,
    TAG_MANAGED,
    TAG_POOL,
    TAG_PROTECTED,
    TAG_STACK,
    Instance,
    Verdict,
)
from image.reaper.store import Store
from image.reaper.sweep.lease import KEY as LEASE_KEY
from image.reaper.sweep.results import Result
from image.reaper.times import format_time
from tests.reaper.alicloud_world import Bucket
from tests.reaper.moto_fleet import pool_policy
from tests.reaper.sweeping import policy, sweep_world
from tests.reaper.world import STACK, SimulatedInstance, World, refusal
from tests.reaper.world_agents import LEDGER
from tests.reaper.world_clients import clients

TAGS = {TAG_STACK: STACK, TAG_MANAGED: "true", TAG_POOL: "dev", "gpu-fleet:owner": "ada"}
POOL = {"idle_after_hours": 1, "grace_minutes": 20, "min_uptime_minutes": 30}
CLOUDS = {"aws": {}, "alicloud": {"cloud": "alicloud", "region": "cn-wulanchabu"}}
EVERY = 10  # minutes between two sweeps

Play = Callable[["Stage"], None]
PLAYS: dict[str, Play] = {}


def play(function: Play) -> Play:
    """Put a play on the list."""
    PLAYS[function.__name__] = function
    return function


def perform(name: str, cloud: str = "aws") -> list[str]:
    """What goes wrong in a play."""
    stage, wrongs = Stage(cloud), []
    try:
        PLAYS[name](stage)
    except AssertionError as wrong:
        wrongs.append(str(wrong))
    return wrongs + stage.world.wrongs + stage.world.floors()


class Stage:
    """A world, and the policy that sweeps it.

    Args:
        cloud: ``aws`` or ``alicloud``.
    """

    def __init__(self, cloud: str) -> None:
        self.cloud, self.world = cloud, World()
        self.failures: list[Any] = []
        self.terms()

    def terms(self, top: dict[str, Any] | None = None, **pool: Any) -> None:
        """Change the policy: a key of its top level, or of its pool."""
        self.policy = policy(top=CLOUDS[self.cloud] | (top or {}), **(POOL | pool))

    def start(self, count: int = 1, group: str | None = None, **more: Any) -> list[SimulatedInstance]:
        """Instances at work for five minutes, in no group or in one that keeps none."""
        if group is not None and group not in self.world.groups:
            self.world.group(group, min_size=0)
        tags = TAGS | more.pop("tags", {})
        made = [
            self.world.join(group, tags, **more) if group else self.world.start(tags, **more)
            for _ in range(count)
        ]
        self.world.pass_minutes(5)
        return made

    def forget(self, instances: list[SimulatedInstance], minutes: int = 80) -> None:
        """Their owners leave; time passes."""
        for instance in instances:
            instance.leave()
        self.world.pass_minutes(minutes)

    def use(self, instance: SimulatedInstance, minutes: int) -> None:
        """A job begins, and time passes."""
        instance.busy = True
        self.world.pass_minutes(minutes)

    def marked(
        self, count: int = 1, group: str | None = None, *, due: bool = True
    ) -> list[SimulatedInstance]:
        """Instances that nobody uses and whose owner was notified; their grace is over, or nearly."""
        made = self.start(count, group)
        self.forget(made)
        self.sweep(override_breaker=True)
        self.world.pass_minutes(21 if due else 19)
        return made

    def sweep(self, **options: Any) -> Result | None:
        """Sweep once; None where it says that it could not."""
        with contextlib.suppress(InstanceError):
            result = sweep_world(self.world, self.policy, unseen=timedelta(0), **options)
            self.failures += result.done.failures
            return result
        return None

    def report(self, **options: Any) -> Result:
        """Sweep once; it must not fail."""
        result = self.sweep(**options)
        assert result is not None, "the sweep fails"
        return result

    def sweep_for(self, minutes: int, **options: Any) -> None:
        """Sweep on schedule."""
        for _ in range(minutes // EVERY):
            self.sweep(**options)
            self.world.pass_minutes(EVERY)

    @property
    def ended(self) -> list[str]:
        """Ids of what was ended."""
        return [instance.id for _, instance, _ in self.world.ends]

    def before_second_look(self, act: Callable[[], object]) -> None:
        """Let something happen once the plan is made, a minute before the sweep looks again, or should."""
        left = [act]

        def once() -> None:
            for first in left[:1]:
                left.clear()
                first()
                self.world.pass_minutes(1)

        self.world.on_call("DescribeInstances", once)
        self.world.on_call("PutObject", once)  # the lease is renewed after the second look

    def lease(self) -> str:
        """The key under which a sweep finds the lease; of a store without conditions, the newest version."""
        versions = sorted(key for key in self.world.objects if key.startswith(f"reaper/{LEASE_KEY}."))
        return versions[0] if versions else f"reaper/{LEASE_KEY}"

    def reasons(self, word: str) -> list[str]:
        """Why agents said a word, or why it was decided."""
        written = [body for key, (body, _) in self.world.objects.items() if key.endswith(f"/{word}.json")]
        return [json.loads(body)["reason"] for body in written]

    def store(self) -> Store:
        """The stack's records, as `gpu-fleet keep` writes to them."""
        bucket = Bucket(self.world) if self.cloud == "alicloud" else clients(self.world).s3
        made = OssStore if self.cloud == "alicloud" else Store
        return made(bucket, Calls(self.world.clock), LEDGER)

    def heard(self, words: str) -> list[str]:
        """Messages that say so."""
        return [text for _, text in self.world.messages if words in text]

    def notices(self) -> int:
        """Notices that a user heard."""
        return sum(len(instance.line.notices) for instance in self.world.instances.values())


# what must happen


@play
def forgotten_instances_are_terminated(stage: Stage) -> None:
    made = stage.marked(1) + stage.marked(2, "pool")
    stage.sweep_for(40)
    keys = [key for key in stage.world.objects if key.endswith("-terminate.json")]
    recorded = [json.loads(stage.world.objects[key][0])["instance_id"] for key in keys]
    confirmed = [key for key in keys if key.replace(".json", ".ended.json") in stage.world.objects]
    assert sorted(stage.ended) == sorted(resource.id for resource in made), f"{len(stage.ended)} of 3 ended"
    assert sorted(recorded) == sorted(stage.ended), "not each end has one record"
    assert keys == confirmed, "not each record of an end is confirmed"
    assert stage.world.groups["pool"]["desired"] == 0, "their group starts others in their place"


@play
def a_failed_boot_check_is_replaced_in_its_group(stage: Stage) -> None:
    (unfit,) = stage.start(1, "pool", unfit=True, busy=False)
    stage.world.pass_minutes(30)
    stage.sweep_for(60)
    bodies = [body for key, (body, _) in stage.world.objects.items() if key.endswith("-terminate.json")]
    assert stage.ended == [unfit.id], "it was not replaced"
    assert stage.world.groups["pool"]["desired"] == 1, "its group wants fewer now"
    assert [json.loads(body)["saved_per_month"] for body in bodies] == ["0"], "its record claims a saving"


# what its boot check failed


def unfit_in_a_group(stage: Stage, minutes: int = 35) -> SimulatedInstance:
    """An instance of a group that failed its boot check, old enough to be replaced."""
    (instance,) = stage.start(1, "pool", unfit=True, busy=False)
    stage.world.pass_minutes(minutes)
    return instance


@play
def an_unfit_instance_is_used(stage: Stage) -> None:
    instance = unfit_in_a_group(stage)
    stage.use(instance, 5)
    stage.forget([instance], 20)
    stage.sweep()
    assert stage.notices() == 0, "somebody was notified half an hour too early"


@play
def an_unfit_instance_is_used_after_its_mark_while_no_sweep_runs(stage: Stage) -> None:
    instance = unfit_in_a_group(stage)
    stage.sweep()
    stage.use(instance, 5)
    stage.forget([instance], 45)
    stage.sweep()


@play
def an_unfit_instance_is_in_no_group(stage: Stage) -> None:
    """Nothing would start in its place, so that it is left to users."""
    stage.start(1, unfit=True, busy=False)
    stage.world.pass_minutes(35)
    stage.sweep_for(60)
    alerts = stage.heard("it is in no group")
    assert stage.notices() == 0, "it was marked"
    assert len(alerts) == 1, f"{len(alerts)} alerts"


@play
def the_group_of_an_unfit_instance_is_frozen_after_its_mark(stage: Stage) -> None:
    instance = unfit_in_a_group(stage)
    stage.sweep()
    stage.world.groups["pool"]["suspended"] |= {"Launch", "SCALE_OUT"}
    stage.world.pass_minutes(25)
    stage.sweep()
    assert not stage.ended, "nothing starts in its place"
    assert "gpu-fleet:reap-after" not in instance.tags, "its mark stays"


@play
def an_unfit_instance_was_detached_by_a_sweep_that_died(stage: Stage) -> None:
    instance = unfit_in_a_group(stage)
    stage.sweep()
    stage.world.pass_minutes(25)
    stage.world.detach("pool", [instance.id], decrement=False)
    stage.sweep()
    assert stage.ended == [instance.id], "nobody ends it any more"


@play
def the_group_of_an_unfit_instance_is_at_its_minimum(stage: Stage) -> None:
    """Alibaba Cloud lets none of such a group go."""
    instance = unfit_in_a_group(stage)
    stage.world.groups["pool"]["min"] = 1
    stage.sweep_for(40)
    lower = bool(stage.heard("lower size.min"))
    assert (instance.id in stage.ended) == (stage.cloud == "aws"), "it was not replaced where it can be"
    assert lower == (stage.cloud == "alicloud"), "nobody is notified to lower the minimum, or in vain"


# what is at work


@play
def an_instance_works_for_hours(stage: Stage) -> None:
    stage.start()
    stage.world.pass_minutes(300)
    stage.sweep_for(60, override_breaker=True)
    assert stage.notices() == 0, "its owner was notified that it is idle"


@play
def a_user_types_now_and_then(stage: Stage) -> None:
    (instance,) = stage.start()
    instance.leave()
    for _ in range(6):
        instance.type()
        stage.world.pass_minutes(1)
        instance.leave()
        stage.world.pass_minutes(40)
        stage.sweep(override_breaker=True)
    assert stage.notices() == 0, "its owner was notified that it is idle"


@play
def its_grace_is_not_over(stage: Stage) -> None:
    stage.marked(due=False)
    stage.sweep()


@play
def the_sweep_takes_long_before_it_marks(stage: Stage) -> None:
    """The grace is counted from the mark, not from the plan."""
    first, second = stage.start(2)
    stage.forget([first])
    stage.sweep(override_breaker=True)
    first.busy = True
    stage.forget([second])
    stage.world.on_call("DeleteTags", lambda: stage.world.pass_minutes(3), 1)
    stage.world.on_call("UntagResources", lambda: stage.world.pass_minutes(3), 1)
    stage.sweep(override_breaker=True)
    mark = mark_of(Instance(second.id, "", "running", stage.world.now, second.tags))
    long = mark is not None and mark.reap_after >= stage.world.now + timedelta(minutes=19, seconds=50)
    assert long, f"the grace of {mark} is shorter than was promised at {stage.world.now}"


@play
def its_owner_is_notified_for_how_long_it_is_idle(stage: Stage) -> None:
    (instance,) = stage.start()
    left_at = stage.world.now
    stage.forget([instance])
    result = stage.report()
    since = mark_of(Instance(instance.id, "", "running", left_at, instance.tags))
    assert since, "it has no mark"
    assert len(result.done.marked) == 1, "the report does not say so"
    assert abs(since.idle_since - left_at) <= timedelta(minutes=2), "its tag is wrong"
    assert stage.heard("owner: ada"), "it is not addressed to her"
    # of Alibaba Cloud the policy knows no price
    assert stage.cloud != "aws" or stage.heard(", 1.006 an hour, "), "it does not say what it costs"
    assert stage.heard("idle for 79 min"), "the notice does not say so"


@play
def half_a_mark_is_taken_away(stage: Stage) -> None:
    made = stage.start(2)
    made[0].tags["gpu-fleet:idle-since"] = made[1].tags["gpu-fleet:reap-after"] = "2026-03-02T08:00:00+00:00"
    stage.sweep()
    left = {key for resource in made for key in resource.tags} & {
        "gpu-fleet:idle-since",
        "gpu-fleet:reap-after",
    }
    assert not left, f"{left} stays on an instance at work"


@play
def a_marked_instance_is_used_again(stage: Stage) -> None:
    (instance,) = stage.marked(due=False)
    stage.use(instance, 3)
    stage.sweep()
    assert not instance.tags.keys() & {"gpu-fleet:reap-after"}, "its mark stays"


@play
def its_owner_keeps_it_for_a_while(stage: Stage) -> None:
    """It is no mark that its agent withdrew."""
    (instance,) = stage.marked(due=False)
    instance.keep(stage.world.now + timedelta(hours=1))
    stage.sweep()
    instance.release()
    stage.sweep()
    reasons = [decision.reason for decision in stage.report().plan.decisions]
    assert "terminated in" in str(reasons), f"it is not marked again: {reasons}"
    assert "withdrew" not in str(reasons), f"its agent is said to have withdrawn a mark: {reasons}"


@play
def it_is_used_while_no_sweep_runs(stage: Stage) -> None:
    """Idle for long enough again when the next sweep comes, with a mark of the idleness before."""
    (instance,) = stage.marked(due=False)
    stage.use(instance, 5)
    stage.forget([instance], 100)
    stage.sweep_for(20)


@play
def it_is_used_between_plan_and_second_look(stage: Stage) -> None:
    (instance,) = stage.marked()
    stage.before_second_look(lambda: setattr(instance, "busy", True))
    stage.sweep()


def _refuse(operation: str) -> Callable[[], object]:
    def no() -> object:
        raise refusal("UnauthorizedOperation", operation)  # a transient code would be tried again

    return no


@play
def nobody_can_hear_it_at_the_last_moment(stage: Stage) -> None:
    """Between its leaving the group and its end: what cannot be heard is no closed door."""
    stage.terms(require_acknowledgement=True)
    (instance,) = stage.marked(1, "pool")
    refuse = _refuse("ListObjectsV2")
    stage.world.on_call("DetachInstances", lambda: stage.world.on_call("ListObjectsV2", refuse, 1), 1)
    stage.sweep()
    assert instance.state == "running", "it was terminated unheard"
    assert instance.id in stage.world.groups["pool"]["members"], "it is not in its group any more"


@play
def nobody_can_look_at_a_stopped_instance_at_the_last_moment(stage: Stage) -> None:
    instance = stopped_and_due(stage)
    refuse = _refuse("DescribeInstances")
    # of the lease two are before, and the decision
    stage.world.on_call("PutObject", lambda: stage.world.on_call("DescribeInstances", refuse, 1), 4)
    stage.sweep()
    assert instance.state == "stopped", "it was terminated unseen"


@play
def nobody_can_say_what_is_decided_of_a_stopped_instance(stage: Stage) -> None:
    """Its owner may have been told that it is kept."""
    instance = stopped_and_due(stage)
    stage.world.on_call("PutObject", _refuse("PutObject"), 3)  # of the lease two are before
    stage.sweep()
    assert instance.state == "stopped", "it was terminated though its owner may keep it"


@play
def its_lock_cannot_be_read(stage: Stage) -> None:
    """Only AWS is asked for it."""
    (instance,) = stage.marked()
    stage.world.on_call("DescribeInstanceAttribute", _refuse("DescribeInstanceAttribute"), 1)
    stage.sweep()
    assert instance.state == "running" or stage.cloud != "aws", "it was terminated, locked or not"


@play
def it_turns_unfit_between_plan_and_second_look(stage: Stage) -> None:
    """Its owner was notified of a stop, and its disk would be gone."""
    stage.terms(action="stop", instance_store_scratch=False)
    stage.start(1, "pool")
    (instance,) = stage.marked(1, "pool")
    stage.before_second_look(lambda: setattr(instance, "unfit", True))
    stage.sweep()
    assert instance.state == "running", f"it is {instance.state}"


@play
def its_heartbeats_come_in_pages(stage: Stage) -> None:
    (instance,) = stage.marked()
    stage.world.faults.partial = stage.world.faults.rest = 1.0
    stage.sweep()
    assert stage.ended == [instance.id], "the second page is not read"


@play
def it_is_put_on_standby_between_plan_and_second_look(stage: Stage) -> None:
    stage.start(1, "pool")  # in service, so that the group's minimum is no reason to keep the other
    (instance,) = stage.marked(1, "pool")
    stage.before_second_look(lambda: stage.world.lifecycle.update({instance.id: "Standby"}))
    stage.sweep()
    assert not stage.ended, "it was terminated on standby"


@play
def it_is_used_while_the_cloud_is_slow(stage: Stage) -> None:
    """What was checked minutes ago may be at work."""
    (instance,) = stage.marked(1, "pool")

    def use() -> None:
        stage.use(instance, 3)

    stage.world.on_call("DetachInstances", use, number=1)
    stage.sweep()
    assert "checked too long ago" in str(stage.failures), "nobody hears of it"
    assert instance.id in stage.world.groups["pool"]["members"], "it is not in its group any more"


# what the agent cannot tell


@play
def the_agent_dies_as_a_job_begins(stage: Stage) -> None:
    (instance,) = stage.marked(due=False)
    instance.agent, instance.busy = "dead", True
    stage.world.pass_minutes(6)
    stage.sweep()


@play
def an_agent_whose_clock_is_ahead_dies_as_a_job_begins(stage: Stage) -> None:
    (instance,) = stage.start()
    instance.clock_ahead = timedelta(minutes=10)
    stage.forget([instance])
    instance.agent, instance.busy = "dead", True
    stage.world.pass_minutes(7)
    stage.sweep(override_breaker=True)
    assert stage.notices() == 0, "somebody was notified of an idleness that is over"


@play
def the_agent_hangs_as_a_job_begins(stage: Stage) -> None:
    (instance,) = stage.start()
    stage.forget([instance])
    instance.agent, instance.busy = "frozen", True
    stage.world.pass_minutes(12)
    stage.sweep(override_breaker=True)
    assert stage.notices() == 0, "somebody was notified of an idleness that nobody saw"


@play
def a_sensor_fails_as_a_job_begins(stage: Stage) -> None:
    (instance,) = stage.marked(due=False)
    instance.agent, instance.busy = "blind", True
    stage.world.pass_minutes(2)
    stage.sweep()


@play
def the_agent_sleeps_through_a_job(stage: Stage) -> None:
    """It wakes up, and does not know that it slept."""
    (instance,) = stage.marked(due=False)
    instance.agent, instance.busy = "dead", True
    stage.world.pass_minutes(20)
    instance.leave()
    stage.world.pass_minutes(1)
    instance.agent = "alive"
    stage.world.pass_minutes(5)
    stage.sweep()


@play
def a_gpu_looks_hung(stage: Stage) -> None:
    (instance,) = stage.start()
    stage.forget([instance])
    instance.agent, instance.busy = "doubtful", True
    stage.world.pass_minutes(2)
    stage.sweep()
    alerts = stage.heard("SUSPECT-HUNG")
    assert stage.notices() == 0, "its owner was notified that it is idle"
    assert len(alerts) == 1, "nobody is notified to look at it"


@play
def an_earlier_heartbeat_shows_later_work(stage: Stage) -> None:
    """As of a second agent on the instance."""
    (instance,) = stage.start()
    stage.forget([instance])
    instance.beats[-40] = 5.0
    (decision,) = stage.report().plan.decisions
    assert decision.verdict is Verdict.KEEP_BUSY, f"{decision.verdict}: {decision.reason}"


@play
def the_newest_heartbeats_never_arrive(stage: Stage) -> None:
    stage.terms(coverage_percent=50, idle_after_hours=6)
    (instance,) = stage.start()
    stage.forget([instance], 8 * 60)
    faults = stage.world.faults
    faults.partial, faults.kept, faults.rest = 1.0, slice(3, None), 0.0
    stage.use(instance, 3)
    stage.sweep(override_breaker=True)
    # on Alibaba Cloud every answer names the page that follows
    assert stage.notices() == 0, "somebody was notified of an idleness that is over"


@play
def the_close_look_is_answered_in_part(stage: Stage) -> None:
    stage.terms(coverage_percent=50, idle_after_hours=6)
    (instance,) = stage.start()
    stage.forget([instance], 8 * 60)
    stage.use(instance, 3)

    def falter() -> None:
        faults = stage.world.faults
        faults.partial, faults.kept, faults.rest = 1.0, slice(3, None), 0.0

    stage.world.on_call("GetMetricData", falter)
    stage.sweep(override_breaker=True)
    assert stage.notices() == 0, "somebody was notified of an idleness that is over"


@play
def who_is_at_work_is_not_looked_at_closely(stage: Stage) -> None:
    stage.start(3)
    stage.world.pass_minutes(90)
    stage.sweep()
    # on Alibaba Cloud the bench counts the pages
    reads = stage.world.calls.count("GetMetricData")
    assert stage.cloud != "aws" or reads == 1, f"{reads} reads of heartbeats"


@play
def most_heartbeats_never_arrive(stage: Stage) -> None:
    stage.forget(stage.start())
    stage.world.faults.partial = 1.0
    stage.sweep(override_breaker=True)
    # on Alibaba Cloud every answer names the page that follows
    assert stage.cloud != "aws" or stage.notices() == 0, "somebody was notified of what nobody knows"


# what the instance itself is asked


def asked(stage: Stage, group: str | None = None) -> SimulatedInstance:
    """An instance whose mark is due and whose agent has answered that nothing runs there."""
    stage.terms(require_acknowledgement=True)
    (instance,) = stage.marked(1, group)
    return instance


@play
def an_instance_that_answers_is_terminated(stage: Stage) -> None:
    instance = asked(stage, "pool")
    began_at = stage.world.now
    stage.sweep()
    assert instance.state == "terminated", "it was not terminated by this sweep"
    assert stage.world.now - began_at < timedelta(seconds=30), "the sweep waits for what it has heard"
    assert instance.door.is_shut, "its door was open to the end"
    assert instance.door.saved > 0, "what users keep was not saved behind the shut door"


@play
def nobody_is_asked_before_a_mark_is_due(stage: Stage) -> None:
    stage.terms(require_acknowledgement=True)
    stage.marked(due=False)
    stage.sweep()
    # on Alibaba Cloud the lease is found by such a list
    assert stage.cloud != "aws" or "ListObjectsV2" not in stage.world.calls, "words are read for nothing"


@play
def a_user_typed_seconds_before_the_sweep(stage: Stage) -> None:
    """No heartbeat tells of it yet."""
    instance = asked(stage)
    instance.type()
    stage.world.pass_seconds(12)
    instance.leave()
    stage.world.pass_seconds(12)
    stage.sweep()


@play
def a_job_begins_seconds_before_the_sweep(stage: Stage) -> None:
    instance = asked(stage)
    instance.busy = True
    stage.world.pass_seconds(12)
    stage.sweep_for(30)
    assert "python" in str(stage.reasons("refused")), "nobody can read why"


@play
def a_job_is_over_while_its_agent_saves_behind_the_shut_door(stage: Stage) -> None:
    """Its agent saw it, came too late to withdraw the mark, and must not forget what it saw."""
    instance = asked(stage)
    stage.world.pass_seconds(5)  # it has just read that nothing is decided, and reads again in 15 s

    def leave() -> None:
        stage.world.now += timedelta(seconds=10)
        instance.leave()

    def come() -> None:
        instance.busy, instance.door.while_saving = True, leave

    stage.world.on_call("PutObject", come)  # after the lease: the decision
    stage.sweep_for(20)
    assert instance.state == "running", "what the job left is gone"


@play
def the_cloud_shows_late_that_it_was_used_before_its_mark_was_due(stage: Stage) -> None:
    """What was over by then the agent does not see; what it told of before is not shown yet."""
    stage.terms(require_acknowledgement=True)
    stage.world.shown_after = timedelta(minutes=2)
    (instance,) = stage.marked(due=False)
    instance.busy = True
    stage.world.pass_seconds(45)
    instance.leave()
    stage.world.pass_seconds(30)
    stage.sweep_for(20)
    assert instance.state == "running", "it was terminated a minute after its last use"


@play
def a_job_comes_as_the_end_is_called(stage: Stage) -> None:
    """Whoever comes by then is refused at the door."""
    instance = asked(stage)

    def come() -> None:
        instance.busy = True

    stage.world.on_call("TerminateInstances", come, number=1)
    stage.world.on_call("DeleteInstances", come, number=1)
    stage.sweep_for(20)
    assert instance.state == "terminated", "it was not terminated"


def begun_before_the_last_word(stage: Stage) -> SimulatedInstance:
    """A member of a group whose job begins behind its shut door as the sweep detaches it."""
    instance = asked(stage, "pool")

    def begin() -> None:
        instance.begin_behind_the_door()
        stage.world.pass_seconds(5)

    stage.world.on_call("DetachInstances", begin, number=1)
    stage.sweep()
    return instance


@play
def a_job_begins_behind_the_door_before_the_last_word(stage: Stage) -> None:
    instance = begun_before_the_last_word(stage)
    assert instance.id in stage.world.groups["pool"]["members"], "it is not in its group any more"
    assert not instance.door.is_shut, "its door stays shut, though nobody ends it"
    assert "python" in str(stage.reasons("refused")), "nobody can read why"


@play
def an_agent_restarts_after_it_refused(stage: Stage) -> None:
    """Its mark is still due and its end still decided: what was refused shuts no door again."""
    instance = begun_before_the_last_word(stage)
    refused = bool(stage.reasons("refused")) and not instance.door.is_shut
    instance.leave()
    stage.world.restart_agent(instance)
    doors = []
    for _ in range(60):
        stage.world.pass_seconds(1)
        doors.append(instance.door.is_shut)
    assert refused, "it refused nothing: the play is over before it begins"
    assert not any(doors), "its door is shut again, though no sweep ends it"


@play
def a_job_begins_behind_the_door_while_another_cannot_be_ended(stage: Stage) -> None:
    """One that will not go has its batch tried again in halves; what was said before is too old for them."""
    stage.terms(require_acknowledgement=True)
    stubborn, other = stage.marked(2)
    stubborn.stubborn = True

    def begin() -> None:
        other.begin_behind_the_door()
        stage.world.pass_seconds(10)

    for end in ("TerminateInstances", "DeleteInstances"):
        stage.world.on_call(end, begin, number=1)
    stage.sweep(override_breaker=True)
    assert other.state == "running", "it was terminated at work"


@play
def a_job_begins_behind_the_door_after_the_last_word(stage: Stage) -> None:
    """Only a cloud that asks the instance's own tag can still refuse."""
    instance = asked(stage)

    def begin() -> None:
        instance.begin_behind_the_door()
        stage.world.pass_seconds(5)

    if stage.cloud == "aws":
        stage.world.on_call("TerminateInstances", begin, number=1)
    stage.sweep()


@play
def a_word_is_lost_and_a_job_begins_behind_the_door(stage: Stage) -> None:
    """What is sent anew arrives now, and is about a moment that is long over."""
    instance = asked(stage)
    stage.world.shown_after = timedelta(minutes=2)  # no heartbeat tells of the job in time
    stage.world.pass_minutes(2)
    lost, arrived = list[datetime](), list[datetime]()

    def way(key: str) -> timedelta | None:
        if key.endswith("closed.json"):
            (arrived if lost else lost).append(stage.world.now)
            return timedelta(0) if arrived else None
        return timedelta(0)

    def wait() -> None:
        for _ in range(1000):
            if arrived:
                return
            stage.world.pass_seconds(0.1)
            if lost and stage.world.now >= lost[0] + timedelta(seconds=2):
                instance.begin_behind_the_door()

    stage.world.way = way
    stage.world.on_call("ListObjectsV2", wait, number=3)  # the first that asks whether its door is shut
    stage.sweep()
    assert bool(lost), "its word was not lost: the play is over before it begins"


@play
def the_answer_of_the_last_list_is_long_on_its_way(stage: Stage) -> None:
    """On Alibaba Cloud nothing else holds the call back that follows it."""
    instance = asked(stage, "pool")
    late = list[datetime]()

    def way_back() -> timedelta:
        if stage.world.calls[-1] != "ListObjectsV2" or late:
            return timedelta(0)
        late.append(stage.world.now)
        stage.world.pass_seconds(2)
        instance.begin_behind_the_door()
        return timedelta(seconds=20)

    stage.world.on_call("DetachInstances", lambda: setattr(stage.world, "way_back", way_back), number=1)
    stage.sweep()
    assert bool(late), "no answer was late: the play is over before it begins"
    assert instance.id in stage.world.groups["pool"]["members"], "it is not in its group any more"


@play
def a_closed_instance_is_not_ended_and_its_agent_dies(stage: Stage) -> None:
    """What it said minutes ago is no answer."""
    instance = asked(stage)
    instance.stubborn = True
    stage.sweep()
    instance.stubborn, instance.agent = False, "dead"
    instance.begin_behind_the_door()
    stage.world.pass_minutes(3)
    stage.sweep()


@play
def its_files_change_while_it_waits_behind_the_shut_door(stage: Stage) -> None:
    """As those of a service that writes little; the sweep that decided was cut off, the next one ends it."""
    instance = asked(stage)
    instance.stubborn = True
    stage.sweep()
    stage.world.pass_minutes(2)
    instance.write()
    stage.world.pass_minutes(8)
    instance.stubborn = False
    stage.sweep()
    assert instance.state == "terminated", "it was not terminated"


@play
def the_agent_dies_behind_the_shut_door(stage: Stage) -> None:
    """A job begins in a terminal that was open before; the last word is believed for half a minute."""
    instance = asked(stage, "pool")

    def die_and_work() -> None:
        instance.agent = "dead"
        instance.begin_behind_the_door()
        stage.world.pass_seconds(31)

    stage.world.on_call("DetachInstances", die_and_work, number=1)
    stage.sweep()
    assert instance.id in stage.world.groups["pool"]["members"], "it is not in its group any more"


def _mark_is_taken_away_before(
    stage: Stage, calls: Sequence[str], act: Callable[[SimulatedInstance], None]
) -> None:
    """By an administrator, behind the shut door, as the sweep calls the last of these, one after another."""
    instance = asked(stage, "pool")
    shut = []

    def reach(left: Sequence[str]) -> None:
        if left:
            return stage.world.on_call(left[0], lambda: reach(left[1:]), number=1)
        shut.append(instance.door.is_shut)
        return act(instance)

    reach(calls)
    stage.sweep()
    stays = instance.state == "running"
    stage.world.pass_minutes(3)
    assert shut == [True], f"its door was {shut}: the play is over before it begins"
    assert stays, "it was ended without a mark"
    assert instance.id in stage.world.groups["pool"]["members"], "it is not in its group any more"
    assert not instance.door.is_shut, "its door stays shut, though nobody ends it"


def _mark_is_deleted_and_a_job_begins(stage: Stage) -> Callable[[SimulatedInstance], None]:
    """Its agent had a moment to see that."""

    def act(instance: SimulatedInstance) -> None:
        stage.world.unmark(instance)
        stage.world.pass_seconds(2)
        instance.busy = True

    return act


@play
def its_mark_is_deleted_behind_the_shut_door(stage: Stage) -> None:
    _mark_is_taken_away_before(stage, ["DetachInstances"], stage.world.unmark)


@play
def its_mark_is_replaced_by_a_later_one_behind_the_shut_door(stage: Stage) -> None:
    later = stage.world.now + timedelta(hours=5)
    act = lambda instance: stage.world.unmark(instance, until=later)  # noqa: E731 - an act like the others
    _mark_is_taken_away_before(stage, ["DetachInstances"], act)


@play
def its_mark_is_deleted_after_the_last_look_at_it(stage: Stage) -> None:
    """Its agent takes back what it said before it lets anybody in; AWS alone shows it the tag at once."""
    act, calls = _mark_is_deleted_and_a_job_begins(stage), ["DetachInstances", "ListObjectsV2"]
    if stage.cloud == "aws":
        _mark_is_taken_away_before(stage, calls, act)


@play
def its_mark_is_deleted_as_its_end_is_called(stage: Stage) -> None:
    """AWS asks the instance's own tag."""
    act, calls = _mark_is_deleted_and_a_job_begins(stage), ["TerminateInstances"]
    if stage.cloud == "aws":
        _mark_is_taken_away_before(stage, calls, act)


@play
def its_mark_is_replaced_as_its_end_is_called(stage: Stage) -> None:
    """What denies the end is not lowered for the mark that came in its place."""

    def act(instance: SimulatedInstance) -> None:
        stage.world.unmark(instance, until=stage.world.now + timedelta(hours=5))
        stage.world.pass_seconds(2)
        instance.busy = True

    calls = ["TerminateInstances"]
    if stage.cloud == "aws":
        _mark_is_taken_away_before(stage, calls, act)


@play
def its_owner_keeps_it_by_its_tag_behind_the_shut_door(stage: Stage) -> None:
    """As in the cloud's console, which asks nobody whether the end is decided."""
    instance = asked(stage, "pool")
    keep = lambda: instance.keep(stage.world.now + timedelta(hours=8))  # noqa: E731 - one expression
    stage.world.on_call("DetachInstances", keep, number=1)
    stage.sweep_for(20)
    assert instance.id in stage.world.groups["pool"]["members"], "it is not in its group any more"


@play
def it_refused_and_its_mark_is_gone(stage: Stage) -> None:
    """What denies its end must not outlive the sweeps that went by the mark: its user may stop it."""
    instance = asked(stage)
    instance.type()
    stage.world.pass_seconds(12)
    instance.leave()
    stage.world.pass_seconds(12)
    denied = "gpu-fleet:withdrawn" in instance.tags
    stage.sweep()
    stage.world.pass_minutes(3)
    assert denied == (stage.cloud == "aws"), "nothing denies its end"
    assert "gpu-fleet:withdrawn" not in instance.tags, "its end is denied for good"


@play
def its_owner_asks_to_keep_it_as_the_end_is_called(stage: Stage) -> None:
    """It is decided: `gpu-fleet keep` has to say that it comes too late, and then promises nothing."""
    instance = asked(stage)

    def ask() -> None:
        agent = stage.world.agents[instance.id]
        if agent.exchange().claim(Winner.WITHDRAWN, "kept", stage.world.now) is Winner.WITHDRAWN:
            instance.keep(stage.world.now + timedelta(hours=8))

    stage.world.on_call("TerminateInstances", ask, number=1)
    stage.world.on_call("DeleteInstances", ask, number=1)
    stage.sweep_for(20)
    assert instance.state == "terminated", "it was not terminated"


@play
def its_owner_asked_to_keep_it_before_the_sweep_decides(stage: Stage) -> None:
    instance = asked(stage)
    agent = stage.world.agents[instance.id]
    agent.exchange().claim(Winner.WITHDRAWN, "kept", stage.world.now)
    stage.sweep()
    assert not stage.ended, "it was terminated"
    assert not instance.door.is_shut, "its door was shut"
    assert not stage.failures, "that it is kept counts as a failure"


@play
def its_owner_keeps_it_by_its_tag_after_it_answered(stage: Stage) -> None:
    """As in the cloud's console: then its agent alone can withdraw the mark before the next sweep."""
    instance = asked(stage)
    agent = stage.world.agents[instance.id]
    instance.keep(stage.world.now + timedelta(hours=8))
    stage.world.pass_seconds(130)  # on Alibaba Cloud an agent asks for its tags every two minutes
    withdrawn = agent.exchange().decision() is Winner.WITHDRAWN
    assert withdrawn, "its agent takes nothing back"
    assert all("held" in why for name in ("decision", "refused") for why in stage.reasons(name)), (
        "nobody can read that it is held"
    )


@play
def it_refused_once_and_is_idle_again(stage: Stage) -> None:
    """What it says for one mark counts for no other."""
    instance = asked(stage)
    stage.use(instance, 1)
    stage.sweep()
    stage.forget([instance], 85)
    stage.sweep_for(50, override_breaker=True)
    assert instance.state == "terminated", "it was not terminated"


@play
def a_loop_was_left_in_a_pane(stage: Stage) -> None:
    """`watch -n 2 nvidia-smi`: every few looks show a process that began a moment ago."""
    stage.terms(require_acknowledgement=True)
    (instance,) = stage.start()
    instance.loop = (2.7, 0.7)
    stage.forget([instance])
    mails = len(stage.world.messages)
    stage.sweep_for(240)
    assert instance.state == "terminated", "it never ends"
    assert len(stage.world.messages) <= mails + 1, "its owner is notified again and again"


@play
def its_mark_is_withdrawn_again_and_again(stage: Stage) -> None:
    """By a process that no heartbeat tells of, and that is another each time."""
    stage.terms(require_acknowledgement=True)
    (instance,) = stage.start()
    instance.loop = (15.0, 9.0)
    instance.is_new_each_time = True
    stage.forget([instance])
    stage.sweep_for(6 * 60)
    alerts = stage.heard("withdrew 3 mark(s)")
    assert not stage.ended, "it was terminated, whatever began there"
    assert stage.notices() == 1, f"its owner was notified {stage.notices()} times of one idle time"
    assert len(alerts) == 1, f"operators were alerted {len(alerts)} times"
    assert ["journalctl" in text for text in alerts] == [True], "the alert does not say where to look"


@play
def a_job_looks_like_one_more_run_of_a_loop(stage: Stage) -> None:
    """By its beginning; not by how long it lasts."""
    stage.terms(require_acknowledgement=True)
    (instance,) = stage.start(1, "pool")
    instance.loop = (7.0, 2.0)
    stage.forget([instance])
    stage.sweep()
    stage.world.pass_minutes(25)

    def begin() -> None:
        instance.is_a_run = True
        instance.begin_behind_the_door()
        stage.world.pass_seconds(12)

    stage.world.on_call("DetachInstances", begin, number=1)
    stage.sweep()
    assert instance.is_a_run, "the play is over before it begins"


@play
def a_silent_agent_is_waited_for(stage: Stage) -> None:
    """It publishes that it sees nothing, and says nothing for its mark."""
    stage.terms(require_acknowledgement=True)
    (instance,) = stage.marked(due=False)
    instance.agent, instance.busy = "sightless", True
    stage.world.pass_minutes(10)
    stage.sweep()
    assert "gpu-fleet:reap-after" in instance.tags, "silence takes its mark away"


# what users and administrators asked for


@play
def its_owner_keeps_it(stage: Stage) -> None:
    (instance,) = stage.marked()
    instance.keep(stage.world.now + timedelta(hours=8))
    reasons = [decision.reason for decision in stage.report().plan.decisions]
    stage.sweep_for(60)
    assert "held until 2026-03-02T17" in str(reasons), f"{reasons} does not say until when"


@play
def its_owner_keeps_it_in_words_that_nobody_can_read(stage: Stage) -> None:
    (instance,) = stage.marked()
    instance.keep("tomorrow")
    stage.sweep_for(60)


@play
def its_owner_keeps_it_for_longer_than_is_allowed(stage: Stage) -> None:
    (instance,) = stage.marked()
    instance.keep(stage.world.now + timedelta(days=30))
    stage.sweep_for(60)


@play
def a_hold_of_many_years_is_over_after_two_weeks(stage: Stage) -> None:
    stage.terms(require_acknowledgement=True)
    (instance,) = stage.start()
    instance.keep(stage.world.now + timedelta(days=20_000))
    stage.forget([instance])
    stage.sweep()
    stage.world.pass_minutes(14 * 24 * 60 - 20)
    stage.sweep_for(10)
    in_time = stage.notices() == 0
    stage.world.pass_minutes(20)
    stage.sweep_for(60)
    assert in_time, "its owner was notified within the two weeks"
    assert instance.state == "terminated", "it is kept for ever"


@play
def its_owner_keeps_it_between_plan_and_second_look(stage: Stage) -> None:
    (instance,) = stage.marked()
    stage.before_second_look(lambda: instance.keep(stage.world.now + timedelta(hours=8)))
    stage.sweep()


@play
def its_hold_is_over(stage: Stage) -> None:
    (instance,) = stage.start()
    instance.keep(stage.world.now + timedelta(hours=1))
    stage.forget([instance])
    stage.sweep_for(60)
    assert bool(stage.ended), "a hold that is over holds"


@play
def an_administrator_protects_it(stage: Stage) -> None:
    made = stage.start(tags={TAG_PROTECTED: ""})
    stage.forget(made)
    stage.sweep_for(60, override_breaker=True)
    assert stage.notices() == 0, "somebody was notified"


@play
def its_termination_is_locked(stage: Stage) -> None:
    (instance,) = stage.start(1, "pool")
    instance.lock()
    stage.forget([instance])
    stage.sweep_for(12 * 60, override_breaker=True)
    alerts = stage.heard("protection is on")
    tried = {"DetachInstances", "TerminateInstances", "DeleteInstances", "AttachInstances"}
    assert not tried & set(stage.world.calls), "it was detached for an end that the cloud refuses"
    assert not stage.failures, "every sweep fails"
    assert len(alerts) == 1, f"{len(alerts)} alerts in half a day"


@play
def it_just_booted(stage: Stage) -> None:
    stage.terms(min_uptime_minutes=150)
    stage.forget(stage.start())
    stage.sweep_for(60, override_breaker=True)
    assert stage.notices() == 0, "somebody was notified"


@play
def the_owner_cannot_be_notified(stage: Stage) -> None:
    stage.forget(stage.start())
    stage.world.faults.deaf = 1.0
    stage.sweep_for(60, override_breaker=True)


@play
def quiet_hours_are_kept(stage: Stage) -> None:
    stage.terms(quiet_hours=[{"start": "09:00", "end": "18:00"}])
    stage.forget(stage.start())
    stage.sweep_for(60, override_breaker=True)
    assert stage.notices() == 0, "somebody was notified in quiet hours"


@play
def a_spot_instance_is_not_stopped(stage: Stage) -> None:
    stage.terms(action="stop", instance_store_scratch=False)
    made = stage.start(spot=True)
    stage.forget(made)
    stage.sweep_for(60, override_breaker=True)
    assert not stage.ended, "it was stopped"


@play
def a_stopped_instance_gets_a_notice_of_its_own(stage: Stage) -> None:
    stage.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
    (instance,) = stage.marked()
    stage.sweep()
    stage.world.pass_minutes(30 * 60)
    stage.sweep_for(60)
    assert instance.state == "terminated", "it was not terminated"


def stopped_and_due(stage: Stage) -> SimulatedInstance:
    """An instance that a sweep has stopped, whose owner was notified of the termination that comes next."""
    return several_stopped_and_due(stage, 1)[0]


def several_stopped_and_due(stage: Stage, count: int) -> list[SimulatedInstance]:
    """As ``stopped_and_due``."""
    stage.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
    made = stage.marked(count)
    stage.sweep()
    stage.world.pass_minutes(25 * 60)
    stage.sweep()
    stage.world.pass_minutes(21)
    return made


def _started_before(stage: Stage, operation: str, number: int = 1) -> None:
    instance = stopped_and_due(stage)
    stage.world.on_call(operation, lambda: stage.world.boot(instance), number)
    stage.sweep()
    stage.world.pass_minutes(5)
    stage.sweep()
    assert instance.state == "running", "it was terminated after its user had started it"
    assert "gpu-fleet:reap-after" not in instance.tags, "its mark stays"


@play
def a_stopped_instance_is_started_as_its_end_is_recorded(stage: Stage) -> None:
    # of the lease two are before, and the decision
    _started_before(stage, "PutObject", 4)


@play
def a_stopped_instance_is_started_as_its_end_is_called(stage: Stage) -> None:
    """Only a cloud that looks at the state itself can still refuse: of AWS it is the window that remains."""
    if stage.cloud == "alicloud":
        _started_before(stage, "DeleteInstances")


def _keeps_in_time(stage: Stage, instance: SimulatedInstance) -> bool:
    """Its owner keeps a stopped instance; whether that came before the sweep's decision."""
    mark = mark_of(Instance(instance.id, "", "stopped", stage.world.now, instance.tags))
    assert mark, "it has no mark"
    asked = Exchange(stage.store(), instance.id, mark.reap_after)
    return asked.claim(Winner.WITHDRAWN, "kept", stage.world.now) is Winner.WITHDRAWN


@play
def a_stopped_instance_is_kept_as_its_end_is_decided(stage: Stage) -> None:
    """Whoever of sweep and owner comes first wins; a hold that is given back leaves a mark to be renewed."""
    instance = stopped_and_due(stage)
    won = _keeps_in_time(stage, instance)
    stage.sweep()
    stays, unmarked = instance.state == "stopped", "gpu-fleet:reap-after" not in instance.tags
    stage.sweep()
    stage.world.pass_minutes(19)
    stage.sweep()
    in_grace = instance.state == "stopped"
    stage.sweep_for(40)
    assert (won, stays) == (True, True), "it was terminated though its owner was notified that it is kept"
    assert (unmarked, in_grace) == (True, True), "a mark that was withdrawn ends it, or one without a grace"
    assert instance.state == "terminated", "nobody ends it any more, though nobody keeps it"


@play
def one_of_two_stopped_instances_is_kept_as_their_end_is_decided(stage: Stage) -> None:
    """Each has a race of its own, though their marks are alike."""
    first, second = several_stopped_and_due(stage, 2)
    won = _keeps_in_time(stage, second)
    stage.sweep()
    assert (won, second.state) == (True, "stopped"), "its owner was notified that it is kept"
    assert first.state == "terminated", "the other is not terminated"


@play
def a_stopped_instance_carries_the_tag_that_denies_its_end(stage: Stage) -> None:
    """Its agent set it, and its user stopped it: nobody is notified of an end that cannot come."""
    stage.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
    (instance,) = stage.start()
    instance.tags["gpu-fleet:withdrawn"] = "2026-03-02T08:30:00+00:00"
    instance.leave()
    instance.tags["gpu-fleet:stopped-at"] = (stage.world.now + timedelta(minutes=1)).isoformat()
    instance.state, instance.stopped_at = "stopped", stage.world.now
    instance.line.stopped.open(stage.world.now)
    stage.world.pass_minutes(25 * 60)
    stage.sweep_for(6 * 60)
    alerts = stage.heard("gpu-fleet:withdrawn")
    tried = {"TerminateInstances", "DeleteInstances"} & set(stage.world.calls)
    del instance.tags["gpu-fleet:withdrawn"]
    stage.sweep_for(60)
    assert not [*tried, *stage.failures], "every sweep tries what the cloud denies"
    assert len(alerts) == 1, f"{len(alerts)} alerts in six hours"
    assert instance.state == "terminated", "without the tag nobody ends it"


@play
def a_marked_instance_is_stopped_by_its_owner(stage: Stage) -> None:
    """The notice of a stop, or of an end while it runs, is none of the end of a stopped instance."""
    stage.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
    (instance,) = stage.marked(due=False)
    instance.state, instance.stopped_at = "stopped", stage.world.now
    instance.line.stopped.open(stage.world.now)
    stage.world.pass_minutes(25 * 60)
    stage.sweep()
    assert instance.state == "stopped", "it was terminated without a notice of that"


@play
def a_stopped_instance_is_left_alone_without_a_second_stage(stage: Stage) -> None:
    stage.terms(action="stop", instance_store_scratch=False, max_lifetime_hours=None)
    (instance,) = stage.marked()
    stage.sweep()
    stage.world.pass_minutes(30 * 60)
    stage.sweep_for(60)
    assert instance.state == "stopped", "it was not stopped, or it was terminated"


@play
def a_stopped_instance_is_past_no_lifetime(stage: Stage) -> None:
    stage.terms(action="stop", instance_store_scratch=False, max_lifetime_hours=24)
    (instance,) = stage.marked()
    stage.sweep()
    stage.world.pass_minutes(30 * 60)
    reasons = [decision.reason for decision in stage.report().plan.decisions]
    assert instance.state == "stopped", "it was not stopped"
    assert not any("lifetime" in reason for reason in reasons), "it counts as running too long"


@play
def a_stopped_instance_is_started_again(stage: Stage) -> None:
    stage.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
    (instance,) = stage.marked()
    stage.sweep()
    stage.world.pass_minutes(60)
    stage.world.boot(instance)
    stage.world.pass_minutes(60)
    stage.sweep_for(60)
    assert instance.state == "running", "it was stopped at work"


@play
def its_user_starts_it_while_the_mark_that_led_to_its_stop_stands(stage: Stage) -> None:
    stage.terms(action="stop", instance_store_scratch=False, require_acknowledgement=True)
    (instance,) = stage.marked()
    stage.sweep()
    stopped, saved = instance.state == "stopped", instance.door.saved
    stage.world.pass_minutes(30)  # after an hour the decision itself would be too old
    stage.world.boot(instance)
    stage.world.pass_minutes(3)
    assert stopped, "it was not stopped"
    assert (instance.door.saved, instance.door.is_shut) == (saved, False), "its door was shut for an old mark"


@play
def a_stop_answers_with_an_error_after_it_was_done(stage: Stage) -> None:
    stage.terms(action="stop", instance_store_scratch=False)
    (instance,) = stage.marked()
    faults = stage.world.faults

    def fail() -> None:
        faults.after_commit = 1.0
        stage.world.on_call("DescribeInstances", recover, number=1)

    def recover() -> None:
        faults.after_commit = 0.0

    stage.world.on_call("StopInstances", fail, number=1)
    stage.sweep()
    confirmed = [key for key in stage.world.objects if key.endswith("-stop.ended.json")]
    assert instance.state == "stopped", "it was not stopped"
    assert not stage.failures, "what was done counts as failed"
    assert len(confirmed) == 1, "its end is not confirmed"


@play
def it_is_of_a_pool_that_is_gone(stage: Stage) -> None:
    """Nobody knows on what terms it may be terminated."""
    (instance,) = stage.start(tags={TAG_POOL: "gone"})
    stage.forget([instance])
    stage.report()
    stage.sweep_for(60)
    assert not stage.ended, "it was terminated"


# what the fleet's bounds are


@play
def the_pool_keeps_its_minimum(stage: Stage) -> None:
    stage.terms(min_size=2)
    made = stage.marked(3)
    stage.sweep_for(60, override_breaker=True)
    marks = [
        resource
        for resource in made
        if resource.state == "running" and "gpu-fleet:reap-after" in resource.tags
    ]
    assert len(stage.ended) == 1, f"{len(stage.ended)} of 3 ended, 2 must stay"
    assert not marks, "who stays keeps its mark"


@play
def who_is_marked_leaves_a_small_pool_before_others(stage: Stage) -> None:
    stage.terms(min_size=2)
    held, _, other = stage.start(3)
    held.keep(stage.world.now + timedelta(hours=3))
    stage.forget([held], 60)
    stage.forget([other])
    stage.sweep()
    held.release()
    stage.sweep()
    assert stage.notices() == 1, "another was marked in its place"
    assert "gpu-fleet:reap-after" in other.tags, "its mark is gone"


@play
def the_minimum_is_raised_after_the_marks(stage: Stage) -> None:
    made = stage.marked(3)
    stage.terms(min_size=3)
    stage.sweep(override_breaker=True)
    marks = [resource for resource in made if "gpu-fleet:reap-after" in resource.tags]
    assert not [*stage.ended, *marks], "who is to stay keeps its mark"


@play
def the_group_keeps_its_minimum(stage: Stage) -> None:
    stage.world.group("pool", min_size=2)
    stage.marked(3, "pool")
    stage.sweep_for(60, override_breaker=True)
    assert len(stage.ended) == 1, f"{len(stage.ended)} of 3 ended, 2 must stay"
    assert not stage.failures, "the group had to refuse"


@play
def the_group_of_an_instance_has_no_tag_of_the_stack(stage: Stage) -> None:
    """It is asked for by its name, or it would start another in the place of what is terminated."""
    stage.world.group("pool", min_size=0)
    stage.world.groups["pool"]["untagged"] = True
    (instance,) = stage.marked(1, "pool")
    stage.sweep()
    members = stage.world.groups["pool"]["members"]
    assert stage.ended == [instance.id], "it was not terminated"
    assert members == [], f"its group still has {members}"


@play
def the_group_s_minimum_is_raised_between_plan_and_second_look(stage: Stage) -> None:
    stage.marked(1, "pool")
    stage.before_second_look(lambda: stage.world.groups["pool"].update(min=1))
    stage.sweep()
    assert not stage.ended, "it was terminated"
    assert not stage.failures, "the group had to refuse"


@play
def every_page_comes_twice(stage: Stage) -> None:
    stage.terms(min_size=1)
    stage.world.faults.duplicated = 1.0
    stage.marked(1)
    stage.sweep_for(60, override_breaker=True)
    assert stage.notices() == 0, "the last of its pool was marked"


@play
def pages_are_short(stage: Stage) -> None:
    stage.world.page = 1
    stage.marked(3)
    stage.sweep_for(40, override_breaker=True)
    assert len(stage.ended) == 3, f"{len(stage.ended)} of 3 ended"


@play
def more_members_are_due_than_one_call_takes(stage: Stage) -> None:
    stage.terms(top={"max_actions": 100, "max_percent": 100})
    stage.world.group("pool", min_size=0, max_size=30)
    stage.marked(25, "pool")
    stage.sweep(override_breaker=True)
    ends = {"TerminateInstances", "DeleteInstances"}
    calls = [call for call in stage.world.calls if call == "DetachInstances" or call in ends]
    assert len(stage.ended) == 25, f"{len(stage.ended)} of 25 ended"
    assert [call in ends for call in calls] == [False, True] * 2, (
        f"{calls}: a batch is ended once it is detached"
    )


@play
def too_many_are_due_at_once(stage: Stage) -> None:
    stage.terms(top={"max_actions": 2})
    stage.marked(6)
    notices = stage.notices()
    stage.sweep(override_breaker=True)
    assert len(stage.ended) == 2, f"{len(stage.ended)} ended in a sweep, 2 are allowed"
    assert notices == 6, f"{notices} of 6 were told: more may be marked in a sweep than ended"


@play
def the_longest_idle_is_terminated_first(stage: Stage) -> None:
    stage.terms(top={"max_actions": 1})
    first, second = stage.start(2)
    stage.forget([second], 10)
    stage.forget([first])
    stage.sweep(override_breaker=True)
    stage.world.pass_minutes(21)
    stage.sweep(override_breaker=True)
    assert stage.ended == [second.id], "the other came first"


@play
def who_waits_behind_a_shut_door_is_terminated_first(stage: Stage) -> None:
    stage.terms(top={"max_actions": 1}, require_acknowledgement=True)
    first, second = stage.start(2)
    stage.forget([second], 10)
    stage.forget([first])
    stage.sweep(override_breaker=True)
    second.agent = "sightless"  # and says nothing
    stage.world.pass_minutes(21)
    first.stubborn = True
    stage.sweep(override_breaker=True)
    shut, first.stubborn, second.agent = first.door.is_shut, False, "alive"
    stage.world.pass_seconds(20)
    stage.sweep(override_breaker=True)
    assert shut, "its door is open"
    assert stage.ended == [first.id], "it waits behind a shut door"


@play
def a_share_of_the_fleet_is_due_at_once(stage: Stage) -> None:
    stage.terms(top={"max_percent": 34})
    stage.marked(6)
    stage.sweep(override_breaker=True)
    assert len(stage.ended) == 3, f"{len(stage.ended)} ended in a sweep, 3 are allowed"


@play
def most_of_the_fleet_falls_idle_at_once(stage: Stage) -> None:
    made = stage.start(8)
    stage.forget(made)
    assert stage.report().failed, "nobody is alarmed"
    stage.world.pass_minutes(21)
    stage.sweep()
    assert stage.ended == [], "they were ended within a day"


@play
def instances_fall_idle_one_after_another(stage: Stage) -> None:
    """As if their sensors went blind."""
    made = stage.start(8)
    for instance in made:
        instance.leave()
        stage.sweep_for(40)
    stage.sweep_for(4 * 60)
    assert len(stage.ended) <= 1, f"{len(stage.ended)} of 8 ended within half a day"


@play
def instances_of_small_pools_fall_idle_one_after_another(stage: Stage) -> None:
    """No pool is large enough for a breaker of its own."""
    names = ("a", "b", "c")
    stage.policy = policy({name: pool_policy(**POOL) for name in names}, CLOUDS[stage.cloud])
    made = [stage.start(tags={TAG_POOL: names[number % 3]})[0] for number in range(6)]
    for instance in made:
        instance.leave()
        stage.sweep_for(40)
    stage.sweep_for(3 * 60)
    assert len(stage.ended) <= 1, f"{len(stage.ended)} of 6 ended within half a day"


@play
def one_user_comes_and_goes_before_others_fall_idle(stage: Stage) -> None:
    """However often an operator finds one instance idle, it is one that is usual."""
    made = stage.start(8)
    for _ in range(3):
        made[0].leave()
        stage.sweep_for(80, override_breaker=True)
        made[0].busy = True
        stage.world.pass_minutes(5)
        stage.sweep()
    stage.forget(made[1:4], 60)
    stage.sweep_for(3 * 60)
    assert stage.notices() >= 6, "the user was never told"
    assert stage.ended == [], f"{len(stage.ended)} ended within half a day"


@play
def sensors_are_blind_for_a_day_and_see_and_are_blind_again(stage: Stage) -> None:
    """What they saw nothing of is nothing that is usual, whatever they say for their marks."""
    stage.terms(require_acknowledgement=True)
    made = stage.start(5)
    for _ in range(2):
        for instance in made:
            instance.agent = "deluded"
        stage.world.pass_minutes(70)
        stage.sweep()
        stage.world.pass_minutes(30)
        stage.sweep()
        for instance in made:
            instance.agent = "alive"
        stage.world.pass_minutes(5)
        stage.sweep()
    assert stage.notices() == 10, f"{stage.notices()} notices, 10 were due"
    assert stage.ended == [], f"{len(stage.ended)} ended"


@play
def a_fleet_that_is_truly_idle_is_gone_after_a_day(stage: Stage) -> None:
    stage.forget(stage.start(8))
    stage.sweep_for(60)
    stage.world.pass_minutes(24 * 60)
    stage.sweep_for(60)
    assert len(stage.ended) == 8, f"{len(stage.ended)} of 8 ended"


def _all_are_ended_after_a_day(stage: Stage, tags: dict[str, str]) -> None:
    """Five of the second pool of two are marked, say nothing for a day, and then that they are idle."""
    asking = pool_policy(**POOL, require_acknowledgement=True)
    stage.policy = policy({"another": asking, "dev": asking}, CLOUDS[stage.cloud])
    made = stage.start(5)
    stage.forget(made)
    for instance in made:
        instance.tags |= tags
    stage.sweep()
    for instance in made:
        instance.agent = "sightless"
    stage.world.pass_minutes(24 * 60 + 20)
    for instance in made:
        instance.agent = "alive"
    stage.world.pass_minutes(1)
    stage.sweep()


@play
def a_fleet_that_was_given_back_makes_nothing_usual(stage: Stage) -> None:
    """Its users said so, and no sensor."""
    wish = {TAG_GIVE_BACK: f"{format_time(stage.world.now + timedelta(minutes=85))} ada"}
    _all_are_ended_after_a_day(stage, wish)
    first = len(stage.ended)
    stage.world.pass_minutes(24 * 60)
    stage.forget(stage.start(5))
    stage.sweep_for(40)
    assert first == 5, f"{first} of 5 ended after a day"
    assert len(stage.ended) == 5, f"{len(stage.ended) - 5} of 5 ended two days later"


@play
def low_load_asks_in_the_first_week(stage: Stage) -> None:
    """It asks for one to be marked, and nothing is marked then."""
    stage.terms(top={"watch_days": 7}, scale_in_alarm="low")
    made = stage.start(4)
    stage.world.pass_minutes(60)
    stage.world.alarms = {"low"}
    stage.forget(made, 40)
    stage.sweep()
    marked = [resource.id for resource in made if "gpu-fleet:reap-after" in resource.tags]
    assert not marked, f"{marked} marked"
    assert stage.notices() == 0, "somebody was notified of an end"


@play
def a_fleet_that_was_idle_lately_by_its_own_word_is_not_held_again(stage: Stage) -> None:
    _all_are_ended_after_a_day(stage, {})
    first = len(stage.ended)
    stage.world.pass_minutes(24 * 60)
    stage.forget(stage.start(5))
    stage.sweep_for(40)
    assert first == 5, f"{first} of 5 ended after a day"
    assert len(stage.ended) == 10, f"{len(stage.ended) - 5} of 5 ended two days later"


@play
def a_fleet_that_was_not_asked_is_held_again(stage: Stage) -> None:
    """Nobody confirmed that it was idle."""
    a_fleet_that_is_truly_idle_is_gone_after_a_day(stage)
    stage.world.pass_minutes(24 * 60)
    stage.forget(stage.start(8))
    stage.sweep_for(60)
    assert len(stage.ended) == 8, f"{len(stage.ended) - 8} of 8 ended two days later"


@play
def a_few_more_are_idle_each_day(stage: Stage) -> None:
    """What ended without a day's wait makes nothing usual, or blind sensors would creep through a fleet."""
    stage.terms(require_acknowledgement=True)
    made = stage.start(12)
    stage.forget(made[:4])
    stage.sweep(override_breaker=True)
    for instance in made[:4]:
        stage.use(instance, 5)
    stage.sweep()
    stage.forget(made[:5])
    stage.sweep_for(40)
    first = len(stage.ended)
    stage.world.pass_minutes(24 * 60)
    stage.forget(made[5:11])
    stage.sweep_for(40)
    assert first == 5, f"{first} of 5 ended, a quarter more than usual"
    assert len(stage.ended) == 5, f"{len(stage.ended) - 5} more ended on the next day"


@play
def one_of_a_large_pool_is_idle(stage: Stage) -> None:
    made = stage.start(8)
    stage.forget(made[:1])
    stage.sweep_for(60)
    assert len(stage.ended) == 1, "the breaker keeps it"


@play
def low_load_asks_for_one_at_a_time(stage: Stage) -> None:
    stage.terms(scale_in_alarm="low")
    made = stage.start(4)
    stage.world.pass_minutes(60)
    stage.world.alarms = {"low"}
    stage.forget(made, 40)
    stage.sweep(override_breaker=True)
    first = stage.notices()
    stage.sweep_for(20, override_breaker=True)
    assert first == 1, f"{first} were marked at once"
    assert stage.notices() <= 2, "too fast"


@play
def low_load_asks_for_the_longest_idle(stage: Stage) -> None:
    stage.terms(scale_in_alarm="low")
    made = stage.start(3)
    stage.world.pass_minutes(60)
    stage.world.alarms = {"low"}
    stage.forget(made[2:], 5)
    stage.forget(made, 40)
    stage.sweep()
    assert len(made[2].line.notices) == stage.notices() == 1, "another was asked for"


@play
def low_load_of_one_pool_asks_for_none_of_another(stage: Stage) -> None:
    stage.terms()
    pools = {"dev": pool_policy(**POOL, scale_in_alarm="low"), "prod": pool_policy(**POOL)}
    stage.policy = policy(pools, CLOUDS[stage.cloud])
    dev, prod = stage.start(2), stage.start(2, tags={TAG_POOL: "prod"})
    stage.world.alarms = {"low"}
    stage.forget(prod[:1], 90)
    stage.sweep()
    stage.forget([*dev, prod[1]], 40)
    stage.sweep()
    notices = [len(instance.line.notices) for instance in (*dev, *prod)]
    assert sorted(notices[:2]) == [0, 1], f"{notices[:2]} of the pool with low load"
    assert notices[2:] == [1, 0], f"{notices[2:]} of the other pool"


@play
def no_load_asks_and_it_is_not_old(stage: Stage) -> None:
    stage.terms(max_lifetime_hours=24)
    made = stage.start(2)
    stage.world.pass_minutes(60)
    stage.forget(made, 45)
    stage.sweep()
    assert stage.notices() == 0, "it was marked after less idle time than was promised"


@play
def it_is_past_its_lifetime_and_idle(stage: Stage) -> None:
    stage.terms(max_lifetime_hours=24)
    (instance,) = stage.start()
    stage.world.pass_minutes(24 * 60)
    stage.forget([instance], 40)
    stage.sweep()
    assert stage.notices() == 1, "nobody asks for it"


@play
def it_is_past_its_lifetime_and_at_work(stage: Stage) -> None:
    stage.terms(max_lifetime_hours=24)
    stage.start()
    stage.world.pass_minutes(24 * 60)
    stage.sweep()
    alerts = stage.heard("past its lifetime of 24 h: replace it")
    assert len(alerts) == 1, "nobody hears of it"


@play
def failed_boot_checks_are_not_replaced_for_ever(stage: Stage) -> None:
    stage.world.unfit_at_start = True
    stage.start(6, "pool", busy=False)
    stage.world.pass_minutes(60)
    stage.sweep_for(180, override_breaker=True)
    assert len(stage.ended) == 3, f"{len(stage.ended)} were replaced within a day, 3 are allowed"
    assert stage.heard("look at image and type"), "nobody is notified of the image"


# how sweeps go about it


@play
def another_sweep_holds_the_lease(stage: Stage) -> None:
    stage.marked()
    body = b'{"holder": "another", "expires": "2100-01-01T00:00:00+00:00"}'
    lease = stage.lease()
    stage.world.objects[lease] = (body, '"theirs"')
    stage.sweep()
    assert not stage.ended, "two sweeps at once"


def _take(stage: Stage) -> None:
    """Another sweep takes the lease."""
    newest = stage.lease()
    name, _, number = newest.rpartition(".")
    # a store without conditions on a version keeps each state under a number, which falls
    taken = f"{name}.{int(number) - 1:012d}" if number.isdecimal() else newest
    stage.world.objects[taken] = (b'{"holder": "another"}', '"theirs"')


@play
def two_sweeps_take_the_lease_at_once(stage: Stage) -> None:
    stage.marked()
    stage.world.on_call("PutObject", lambda: _take(stage), number=1)
    stage.sweep()
    assert not stage.ended, "two sweeps at once"


@play
def the_lease_is_lost_half_way(stage: Stage) -> None:
    stage.marked()

    stage.world.on_call("DescribeInstances", lambda: _take(stage))
    stage.sweep()
    assert not stage.ended, "two sweeps at once"


@play
def a_record_cannot_be_written(stage: Stage) -> None:
    stage.marked()

    def deny() -> None:
        raise refusal("UnauthorizedOperation", "PutObject")

    # the lease and its renewal come before
    stage.world.on_call("PutObject", deny, number=3)
    stage.sweep()
    assert not stage.ended, "an end without a record"


@play
def the_sweeps_clock_is_wrong(stage: Stage) -> None:
    stage.marked(due=False)
    stage.world.skew = timedelta(minutes=3)
    stage.sweep()


@play
def the_sweeps_clock_is_behind_as_it_would_mark(stage: Stage) -> None:
    """The next sweep's would be right, and the grace shorter than was told."""
    stage.forget(stage.start())
    stage.world.skew = timedelta(seconds=-90)
    stage.sweep()
    assert stage.notices() == 0 or stage.cloud != "aws", "it marked by a clock that is wrong"


@play
def a_dry_run_changes_nothing(stage: Stage) -> None:
    made = stage.marked(2) + stage.start(1)
    stage.forget(made)

    def picture() -> tuple[object, ...]:
        tags = [dict(resource.tags) for resource in made]
        return dict(stage.world.objects), list(stage.world.messages), tags, list(stage.ended)

    before = picture()
    stage.report(dry_run=True)
    assert picture() == before, "a dry run writes, or ends instances"


@play
def one_call_in_a_few_fails(stage: Stage) -> None:
    made = stage.start(6)
    stage.forget(made)
    stage.world.faults.throttled = stage.world.faults.after_commit = 0.2
    stage.sweep_for(240, override_breaker=True)
    stage.world.faults.throttled = stage.world.faults.after_commit = 0.0
    stage.world.pass_minutes(20)
    stage.sweep_for(60, override_breaker=True)
    assert len(stage.ended) == 6, f"{len(stage.ended)} of 6 ended"
