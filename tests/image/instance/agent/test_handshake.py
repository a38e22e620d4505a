"""No work is lost between the last check and the termination, with the real agent, sweep and `keep`."""

import errno
import io
import json
import os
import re
import subprocess
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import boto3
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from moto.backends import get_backend

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.handshake import (
    CLOSED_LASTS,
    LONGEST,
    Exchange,
    MarkQuestion,
    MarkReplies,
    Reply,
    Winner,
    mark_name,
    read_replies,
    replies,
    replies_of,
)
from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, TAG_REAP_AFTER, TAG_WITHDRAWN, Verdict
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.store import Listed, Store, StoredObject
from gpu_fleet_image.core.times import parse_time
from gpu_fleet_image.instance.agent import listening
from gpu_fleet_image.instance.agent.answers import (
    CLOSED_AT_MOST,
    CLOSED_FORGOTTEN,
    Act,
    Seen,
    Talk,
    View,
    next_act,
)
from gpu_fleet_image.instance.agent.listening import OPEN_AGAIN
from tests.image.live import ACCOUNT, DATA, RECORDS, marked_and_due, refusal
from tests.image.plays.stage import Stage


def killed(instances):
    return [instance.id for instance in instances if instance.truth.killed]


def ended(instances):
    return [instance.id for instance in instances if instance.truth.ended_at is not None]


def keep(instance):
    """Keep an instance by the command on a laptop."""
    where = ["--instance-id", instance.id, "--region", "us-east-1"]
    return CliRunner().invoke(main, ["keep", "8h", "--reason", "paper", *where])


def keep_there(instance):
    """Keep an instance by the command on it, through its agent."""
    with instance.as_seen_by_users():
        return CliRunner().invoke(main, ["keep", "8h", "--reason", "paper"])


def due(live, **more):
    """Return an instance that has replied; the next sweep may terminate it."""
    return marked_and_due(live, **more)[0]


# what should happen


def test_an_idle_instance_answers_shuts_its_door_saves_and_is_terminated_within_one_sweep(live, tmp_path):
    instance = due(live)
    assert live.said("idle") == [instance.id]
    (tmp_path / instance.id / "keep/late.txt").write_text("written after the answer")

    report = live.sweep()

    assert report["failed"] == []
    assert live.said("decision") == live.said("closed") == ended([instance]) == [instance.id]
    assert instance.door_is_shut
    assert any("being terminated" in message for message in instance.messages)
    saved = live.s3.list_objects_v2(Bucket=DATA)["Contents"]
    assert f"dev/keep/{instance.id}/late.txt" in [stored["Key"] for stored in saved]


MARK = datetime(2026, 11, 21, 12, tzinfo=UTC)
moments = st.integers(0, 600).map(lambda seconds: MARK + timedelta(seconds=seconds))
talks = st.builds(
    Talk,
    mark=st.just(MARK),
    notified=st.just(True),
    saved_at=st.none() | moments,
    reply=st.none() | st.sampled_from(Reply),
    said_at=st.none() | moments,
    busy_looks=st.integers(0, 3),
    decision=st.none() | st.sampled_from(Winner),
    closed_at=st.none() | moments,
    refusing=st.sampled_from(["", "used"]),
    over=st.booleans(),
)
looks = st.builds(Seen, st.sampled_from([(), ("gpu",)]), st.sampled_from([(), ("gpu: no answer",)]))


@given(now=moments, talk=talks, hold=st.sampled_from(["", "kept"]), seen=st.none() | looks)
def test_an_agent_says_that_nothing_runs_only_after_saving_and_a_look_that_showed_nothing(
    now, talk, hold, seen
):
    act = next_act(View(now, MARK, hold, talk, seen))

    if act in (Act.SAY_IDLE, Act.SAY_CLOSED):
        assert seen == Seen()
        assert talk.saved_at is not None
        assert not talk.over
    if act is Act.SAY_IDLE:
        assert not hold
        assert talk.decision is None
    if act is Act.SAY_CLOSED:
        assert talk.closed_at is not None
        assert talk.decision is Winner.END


# finding 3: the blind window


def test_no_job_that_begins_within_ninety_seconds_before_the_sweep_is_killed(live):
    instances = marked_and_due(live, 10)
    for number, instance in enumerate(instances):
        live.pass_seconds(10)
        if number:
            instance.begin_job()

    live.sweep()

    assert killed(instances) == []
    assert ended(instances) == [instances[0].id], "an instance without a job is terminated all the same"


def test_a_job_finds_a_shut_door_or_the_sweep_finds_the_job(live):
    """The job may begin in any second from the sweep's start to the termination and later."""
    instances = marked_and_due(live, 15)
    for number, instance in enumerate(instances):
        live.after(2 * number, instance.begin_job)

    live.sweep()

    assert killed(instances) == []
    assert any(each_instance.truth.refused for each_instance in instances)
    assert any(each_instance.truth.jobs for each_instance in instances)


def test_no_job_is_killed_whose_agent_dies_as_it_begins(live):
    instances = marked_and_due(live, 8)
    for instance in instances:
        live.pass_seconds(30)
        instance.begin_job()
        instance.alive = False

    for _ in range(3):
        live.sweep()
        live.pass_minutes(10)

    assert ended(instances) == []


@pytest.mark.parametrize(("keep", "dies"), [(keep, False), (keep, True), (keep_there, False)])
def test_a_hold_typed_after_the_last_look_holds(live, dies, keep):
    """The sweep has read tags and replies, and is about to decide. An agent would decide as the hold did."""
    instance, said = due(live), []

    def type_it():
        said.append(keep(instance))
        instance.alive = not dies

    live.on_call("PutObject", type_it, number=2)  # the lease is before

    live.sweep()

    assert said[0].exit_code == 0, said[0].output
    assert f"{instance.id} is kept until" in said[0].output
    assert ended([instance]) == []
    assert json.loads(live.content("decision"))["winner"] == "withdrawn"


def stopped_and_due(live):
    """Return an instance that its user stopped a day ago, whose owner was notified of its termination."""
    live.policy(terminate_stopped_after_days=1)
    (instance,) = live.start()
    instance.stop()
    live.pass_minutes(25 * 60)
    live.sweep()
    live.pass_minutes(12)
    return instance


@pytest.mark.parametrize(
    ("arrange", "keep", "minutes_behind"),
    [(due, keep, 0), (due, keep_there, 0), (due, keep, 14), (stopped_and_due, keep, 0)],
)
def test_a_hold_typed_after_the_decision_says_that_it_is_too_late(
    live, monkeypatch, arrange, keep, minutes_behind
):
    """The laptop's clock may be behind, too: clouds accept up to a quarter of an hour."""
    instance, said = arrange(live), []

    class Behind(datetime):
        @classmethod
        def now(cls, tz=None):
            return (live.now - timedelta(minutes=minutes_behind)).astimezone(tz)

    monkeypatch.setattr("gpu_fleet_image.core.holds.datetime", Behind)
    live.on_call("TerminateInstances", lambda: said.append(keep(instance)))

    live.sweep()

    assert said[0].exit_code == 1
    assert said[0].output.startswith("error: too late: the sweep has decided to terminate or stop")
    assert ended([instance]) == [instance.id]
    assert TAG_KEEP_UNTIL not in live.tags(instance.id)


@pytest.mark.parametrize("keep", [None, keep, keep_there])
def test_a_job_behind_the_shut_door_opens_it_and_a_later_mark_ends_the_instance_unless_it_is_kept(live, keep):
    """The job begins in a terminal that was open before."""
    instance = due(live)
    live.on_closed(instance, lambda: instance.begin_job(past_the_door=True))
    live.sweep()
    live.pass_minutes(1)
    assert killed([instance]) == []
    assert not instance.door_is_ajar
    assert instance.messages[-1] == OPEN_AGAIN
    assert live.said("refused") == live.said("decision") == [instance.id]
    assert TAG_WITHDRAWN in live.tags(instance.id)

    said = keep and keep(instance)

    assert not keep or said.exit_code == 0, said.output
    assert (TAG_KEEP_UNTIL in live.tags(instance.id)) is bool(keep)
    instance.truth.jobs.clear()
    live.pass_minutes(9)
    assert swept(live, instance, 4, 30) is (keep is None)


# what an instance does about signs of use


@pytest.mark.parametrize("file", ["run/closed", "nologin"])
def test_where_run_is_full_no_user_is_locked_out_and_the_agent_continues(live, monkeypatch, file):
    instance = due(live)
    whole = listening.replace_text

    def write(path, text):
        if str(path).endswith(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(path, text)

    monkeypatch.setattr(listening, "replace_text", write)
    live.sweep()
    assert ended([instance]) == []
    assert not instance.door_is_ajar
    assert live.said("refused") == [instance.id], "else nobody looks at what begins, and `keep` is too late"
    said = keep(instance)
    assert said.exit_code == 0, said.output

    monkeypatch.undo()
    live.ec2.delete_tags(Resources=[instance.id], Tags=[{"Key": TAG_KEEP_UNTIL}])
    assert swept(live, instance, 4, 10)


@pytest.mark.parametrize("look_s", [1, 9, 20])
def test_an_agent_whose_looks_take_long_is_never_silent_behind_the_shut_door(look_s):
    talk = Talk(MARK, notified=True, saved_at=MARK, decision=Winner.END, closed_at=MARK)
    said = [MARK]
    for now in (MARK + timedelta(seconds=at) for at in range(0, 600, look_s + 1)):
        if next_act(View(now, MARK, "", talk, Seen())) is Act.SAY_CLOSED:
            talk = replace(talk, reply=Reply.CLOSED, said_at=now)
            said.append(now)

    assert max(later - earlier for earlier, later in pairwise(said)) < CLOSED_LASTS


def test_an_instance_that_its_user_starts_again_is_open(live):
    live.policy(action="stop", instance_store_scratch=False)
    instance = due(live)
    live.sweep()
    assert ended([instance])
    live.pass_minutes(60)
    instance.boot()
    instance.messages.clear()
    assert TAG_REAP_AFTER in live.tags(instance.id), "the mark that led to the stop"

    live.pass_minutes(5)

    assert not instance.door_is_shut
    assert instance.messages == []


def closed_by_a_sweep_that_cannot_end(live):
    """Return an instance with a closed door, after its reply, that no sweep will end."""
    instance = due(live)
    live.on_call("TerminateInstances", lambda: fail("RequestLimitExceeded", "TerminateInstances"))
    live.sweep()
    assert instance.door_is_shut
    return instance


@pytest.mark.parametrize("restarts", [pytest.param(0, marks=pytest.mark.prove), 4])
def test_a_door_without_a_termination_opens_after_an_hour_however_often_its_agent_starts(live, restarts):
    instance = closed_by_a_sweep_that_cannot_end(live)

    for _ in range(restarts):
        live.pass_minutes(15.5)
        instance.start_agent(instance.idle_since)
    live.pass_minutes(1 if restarts else 61)

    assert not instance.door_is_ajar
    assert live.said("refused") == [instance.id]


OPEN_DOOR = Path(__file__).parents[4] / "image/gpu_fleet_image/recipe/rootfs/usr/libexec/gpu-fleet/open-door"


def timer(folder, minutes):
    """Run the program of gpu-door.timer, so many minutes after the door was closed."""
    for door in (folder / "run/closed", folder / "nologin"):
        if door.exists():
            os.utime(door, (then := time.time() - minutes * 60, then))
    environment = os.environ | {"GPU_FLEET_RUN_DIR": str(folder / "run")}
    subprocess.run(["bash", OPEN_DOOR], env=environment, check=True, capture_output=True)


def test_a_door_whose_agent_cannot_start_is_opened_and_an_agent_that_starts_later_shuts_it_no_more(
    live, tmp_path
):
    instance = closed_by_a_sweep_that_cannot_end(live)
    instance.alive = False
    timer(tmp_path / instance.id, 64)
    assert instance.door_is_shut, "the agent's own hour, and what a sweep may still do, come first"

    live.pass_minutes(67)
    timer(tmp_path / instance.id, 67)
    assert not instance.door_is_ajar
    instance.messages.clear()
    instance.start_agent(instance.idle_since)
    live.pass_minutes(2)

    assert not instance.door_is_ajar
    assert not any("being terminated" in message for message in instance.messages)
    assert live.said("refused") == [instance.id]
    assert not swept(live, instance, 2)


def test_the_timer_opens_later_than_any_sweep_may_still_end_and_leaves_an_administrator_s_refusal(tmp_path):
    (minutes,) = re.findall("longest_minutes=([0-9]+)", OPEN_DOOR.read_text())

    assert timedelta(minutes=int(minutes)) > CLOSED_AT_MOST + CLOSED_FORGOTTEN
    (tmp_path / "run").mkdir()
    door = listening.Door(tmp_path / "run/closed", tmp_path / "nologin")
    door.shut(listening.CLOSED)
    timer(tmp_path, int(minutes) + 1)
    assert not door.is_shut, "the agent's text is another than the script's"
    (tmp_path / "nologin").write_text("maintenance until noon\n")
    timer(tmp_path, 600)
    assert (tmp_path / "nologin").read_text() == "maintenance until noon\n"


# a mark that is taken away behind the shut door


def taking_its_mark_away(live, instance, until=None):
    """Return an action: an administrator removes the mark, and a second later a user finds an open door."""

    def act():
        live.ec2.delete_tags(Resources=[instance.id], Tags=[{"Key": TAG_REAP_AFTER}])
        if until is not None:
            wire = [{"Key": TAG_REAP_AFTER, "Value": until.isoformat()}]
            live.ec2.create_tags(Resources=[instance.id], Tags=wire)
        live.pass_seconds(2)
        instance.begin_job()

    return act


@pytest.mark.parametrize(
    ("call", "is_replaced"),
    [("DetachInstances", False), ("ListObjectsV2", False), ("TerminateInstances", True)],
)
def test_an_instance_whose_mark_is_taken_away_behind_the_shut_door_stays_and_is_open_at_once(
    live, call, is_replaced
):
    instance = due(live, group="pool")
    until = live.now + timedelta(hours=5) if is_replaced else None
    taken_away = taking_its_mark_away(live, instance, until)
    after = lambda: live.on_call(call, taken_away)  # noqa: E731 - one expression
    live.on_call("DetachInstances", taken_away if call == "DetachInstances" else after)

    live.sweep()

    assert instance.truth.jobs
    assert ended([instance]) == []
    assert not instance.door_is_ajar
    scaling = boto3.client("autoscaling", "us-east-1")
    (row,) = scaling.describe_auto_scaling_instances(InstanceIds=[instance.id])["AutoScalingInstances"]
    assert row["AutoScalingGroupName"] == "pool"


def test_a_removed_mark_is_refused_and_its_fence_stands_until_no_sweep_acts_on_it(live):
    instance = closed_by_a_sweep_that_cannot_end(live)
    mark = live.tags(instance.id)[TAG_REAP_AFTER]

    taking_its_mark_away(live, instance, live.now + timedelta(hours=5))()

    assert live.said("refused") == [instance.id]
    assert "its mark was removed" in live.content("refused")
    live.pass_seconds(100)
    assert live.tags(instance.id)[TAG_WITHDRAWN] == mark
    live.pass_seconds(30)
    assert TAG_WITHDRAWN not in live.tags(instance.id)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_where_a_removed_mark_cannot_be_refused_users_come_in_once_no_sweep_acts_on_it(live, is_replaced):
    instance = closed_by_a_sweep_that_cannot_end(live)
    live.agents_refused_words = "refused"
    until = live.now + timedelta(minutes=10) if is_replaced else None

    taking_its_mark_away(live, instance, until)()

    live.pass_seconds(110)
    assert instance.door_is_shut
    live.pass_seconds(20)
    assert not instance.door_is_ajar
    assert instance.notice_listener.talk.mark == until, "the one that came in its place is heard"


@pytest.mark.parametrize("is_removed", [False, True])
def test_an_agent_that_starts_behind_the_shut_door_opens_it_not_while_a_sweep_may_go_by_the_word_before(
    live, is_removed
):
    """The former agent replied that the door is closed, and a sweep may act: a new user would lose work."""
    instance = closed_by_a_sweep_that_cannot_end(live)
    instance.alive = False
    if is_removed:
        taking_its_mark_away(live, instance)()
    else:
        instance.begin_job(past_the_door=True)
        live.agents_refused_words = "refused"
    instance.start_agent(instance.idle_since)

    live.pass_seconds(60)
    assert instance.door_is_shut
    live.pass_seconds(90)

    assert not instance.door_is_ajar


def test_a_mark_that_is_removed_before_the_door_is_shut_is_not_refused(live):
    """No sweep ends an instance that never replied that its door is closed."""
    instance = due(live)

    taking_its_mark_away(live, instance)()
    live.sweep()

    assert live.said("refused") == []
    assert ended([instance]) == []


def due_with_a_job_that_does_little(live, begins_s):
    """Return an instance with a due mark and a later job that only waits, so that no heartbeat shows it."""
    (instance,) = live.start()
    live.pass_minutes(2)
    live.sweep()
    mark = datetime.fromisoformat(live.tags(instance.id)[TAG_REAP_AFTER])
    live.pass_seconds((mark - live.now).total_seconds() + min(0, begins_s))
    instance.cores = 0.0
    live.after(max(0, begins_s), instance.begin_job)
    return instance


def swept(live, instance, count=3, minutes=3):
    """Return whether sweeps now end it, with the time for each reply."""
    for _ in range(count):
        live.sweep()
        live.pass_minutes(minutes)
    return bool(ended([instance]))


@pytest.mark.parametrize("waits_min", [0, 20])
def test_a_job_that_begins_between_the_due_mark_and_the_first_answer_is_never_forgotten(live, waits_min):
    """It is remembered after a quarter of an hour too, and if the agent could not poll while it saved."""
    instance = due_with_a_job_that_does_little(live, 2)
    live.agents_refused = "SlowDown" if waits_min else ""
    live.pass_minutes(20)
    live.agents_refused = ""
    live.pass_minutes(2)

    assert not swept(live, instance)
    assert live.said("refused") == [instance.id]
    assert live.said("idle") == []


def test_an_agent_that_starts_late_finds_the_job_that_began_before_it(live):
    instance = due_with_a_job_that_does_little(live, 60)
    instance.alive = False
    live.pass_minutes(30)
    instance.start_agent(instance.idle_since)
    live.pass_minutes(3)

    assert not swept(live, instance)
    assert live.said("idle") == []


def test_an_agent_that_starts_late_where_nothing_began_says_that_it_is_idle(live):
    instance = due_with_a_job_that_does_little(live, 10**6)
    live.pass_minutes(1)
    instance.start_agent(instance.idle_since)
    live.pass_minutes(3)

    assert live.said("idle") == [instance.id]
    assert swept(live, instance)


def test_a_job_that_began_seconds_before_the_mark_was_due_has_a_quarter_of_an_hour_to_show_itself(live):
    instance = due_with_a_job_that_does_little(live, -3)
    live.pass_minutes(14)
    assert live.said("idle") == []
    instance.cores = 1.0
    live.pass_minutes(2)

    assert not swept(live, instance)
    assert TAG_REAP_AFTER not in live.tags(instance.id)


# what users do with a stopped instance


def test_a_member_of_a_group_that_its_user_stopped_is_terminated_though_detaching_takes_a_tag_off(live):
    live.policy(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
    instance, other = live.start(2, group="grp")
    other.begin_job()
    instance.stop()
    live.pass_minutes(25 * 60)
    live.sweep()
    live.pass_minutes(12)

    report = live.sweep()

    assert (report["failed"], ended([instance])) == ([], [instance.id])


@pytest.mark.parametrize("restarts", [False, True])
def test_what_denies_the_termination_is_removed_once_no_sweep_acts_on_the_mark(live, restarts):
    """Its user has come back in time; a restarted agent removes it too."""
    instance = due(live)
    instance.log_in()
    live.pass_seconds(30)
    assert TAG_WITHDRAWN in live.tags(instance.id)
    live.sweep()
    assert live.marked() == []
    if restarts:
        instance.start_agent(live.now)

    live.pass_minutes(1)
    assert restarts or TAG_WITHDRAWN in live.tags(instance.id), "a sweep's call may be on its way"
    live.pass_minutes(2)

    assert TAG_WITHDRAWN not in live.tags(instance.id)


@pytest.mark.parametrize(("cloud", "end"), [("aws", "TerminateInstances"), ("alicloud", "DeleteInstances")])
def test_the_last_word_is_heard_right_before_the_end(cloud, end):
    """On Alibaba Cloud, which has no second fence, only the window of this call remains."""
    stage = Stage(cloud)
    stage.asked()

    stage.sweep()

    before = stage.world.calls[stage.world.calls.index(end) - 1]
    assert before == "ListObjectsV2"


def fail(code, operation):
    raise refusal(code, operation)


# what is written


def test_a_decision_names_its_caller_and_is_no_word_and_other_names_are_nothing():
    below = "handshake/AROA:i-1/20261121T120000Z"
    listed = [Listed(f"{below}/{name}.json", timedelta(0)) for name in ("decision", "notes")]

    assert replies(listed) == {("i-1", "20261121T120000Z"): MarkReplies("AROA:i-1", {})}


def test_what_an_instance_may_not_list_is_not_decided_and_any_other_error_is_one():
    refusing = Mock(newest=Mock(side_effect=[CloudError("no", "AccessDenied"), CloudError("no", "SlowDown")]))
    asked = Exchange(refusing, "AROA:i-1", MARK)

    assert asked.decision() is None
    with pytest.raises(CloudError):
        asked.decision()


def test_how_old_a_word_is_the_bucket_says_and_where_it_says_nothing_the_sweeps_own_clock():
    contents = [{"Key": "reaper/handshake/a/b/idle.json", "LastModified": MARK}]
    for headers, age_s in ({"date": "Sat, 21 Nov 2026 12:00:30 GMT"}, 30), ({}, 3600):
        answer = {"ResponseMetadata": {"HTTPHeaders": headers}}
        read = answer | {"Body": io.BytesIO(b"{}"), "ETag": "v", "LastModified": MARK}
        bucket = Mock(
            list_objects_v2=Mock(return_value=answer | {"Contents": contents}),
            get_object=Mock(return_value=read),
        )
        store = Store(bucket, Calls(lambda: MARK + timedelta(hours=1)), "s3://records/reaper")

        assert store.listed("handshake/") == [Listed("handshake/a/b/idle.json", timedelta(seconds=age_s))]
        assert store.newest("idle.json") == StoredObject({}, "v", timedelta(seconds=age_s))


def test_a_ledger_in_no_bucket_is_refused_with_what_is_allowed():
    for uri in ("s3://", "http://records/reaper", "records"):
        with pytest.raises(ConfigurationError, match="allowed: s3://BUCKET/PREFIX or oss://BUCKET/PREFIX"):
            Store(None, Calls(lambda: datetime.now(UTC)), uri)


def test_only_a_condition_that_does_not_hold_is_a_lost_race():
    def store(code):
        bucket = Mock(put_object=Mock(side_effect=refusal(code, "PutObject")))
        return Store(bucket, Calls(lambda: datetime.now(UTC)), "s3://records")

    for code in ("PreconditionFailed", "NoSuchKey"):
        assert store(code).move_on("lease.json", {}, '"1"') is None
    for code, version in ("SlowDown", '"1"'), ("NoSuchKey", None):
        with pytest.raises(CloudError, match=code):
            store(code).move_on("lease.json", {}, version)


# an instance that writes more names than an agent does


class Bucket:
    """A bucket with names only, which counts the requested pages."""

    def __init__(self, keys):
        self.keys = sorted(f"reaper/handshake/{key}" for key in keys)
        self.pages = 0

    def list_objects_v2(self, Bucket, Prefix, StartAfter="", ContinuationToken=""):  # noqa: N803 - boto3's
        self.pages += 1
        after = StartAfter or ContinuationToken
        start = max(bisect_right(self.keys, after), bisect_left(self.keys, Prefix))
        below = [key for key in self.keys[start : start + 1001] if key.startswith(Prefix)]
        more = {"NextContinuationToken": below[999]} if len(below) > 1000 else {}
        contents = [{"Key": key, "LastModified": MARK} for key in below[:1000]]
        return {"Contents": contents, "ResponseMetadata": {"HTTPHeaders": {}}} | more


def heard_in(bucket, questions):
    store = Store(bucket, Calls(lambda: MARK + timedelta(seconds=5)), "s3://records/reaper")
    return read_replies(store, [MarkQuestion(each, MARK, caller) for each, caller in questions.items()])


def said_by(caller, *names):
    return [f"{caller}/20261121T120000Z/{name}.json" for name in names]


ROLES = {"aws": "AROA:", "alicloud": "dev."}
FLOODS = {
    "before its mark": ("{caller}/2000/{n:05}.json", 5000),
    "below its mark, before its words": ("{caller}/20261121T120000Z/a{n:05}.json", 5000),
    "below its mark, between its words": ("{caller}/20261121T120000Z/j{n:05}.json", 5000),
    "few between its words": ("{caller}/20261121T120000Z/j{n:05}.json", 20),
    "after its mark": ("{caller}/3000/{n:05}.json", 5000),
    "in the form of marks": ("{caller}/20261121T1{n:05}Z/idle.json", 5000),
}


@pytest.mark.parametrize("cloud", ROLES)
def test_an_instance_that_writes_five_thousand_names_costs_three_pages_and_no_word_of_another(cloud):
    names = {each: ROLES[cloud] + each for each in (f"i-{number:03}" for number in range(60))}
    quiet = [key for caller in names.values() for key in said_by(caller, "decision", "closed", "idle")]
    flooder = names["i-030"]
    quiet += said_by(flooder, "refused")
    questions = {each: caller if cloud == "alicloud" else "" for each, caller in names.items()}
    calm = Bucket(quiet)
    before = heard_in(calm, questions).replies
    for where, (name, count) in FLOODS.items():
        loud = Bucket(quiet + [name.format(caller=flooder, n=number) for number in range(count)])

        after = heard_in(loud, questions)

        assert loud.pages <= calm.pages + 3, where
        others = {key: said for key, said in after.replies.items() if key[0] in questions.keys() - {"i-030"}}
        assert others == {key: said for key, said in before.items() if key[0] != "i-030"}, where
        assert {said.reply for said in others.values()} == {Reply.CLOSED}, where
        assert list(after.flooding) == [flooder], where
        assert after.replies["i-030", "20261121T120000Z"].reply in (None, Reply.REFUSED), f"{where}: idle"


def test_unknown_callers_are_skipped_where_the_callers_are_known():
    """On Alibaba Cloud an instance may write below every name that begins with that of its pool."""
    made_up = [f"dev.h{number:06}/20261121T120000Z/idle.json" for number in range(5000)]
    alike = [f"dev.h{number:06}.i-1/20261121T120000Z/idle.json" for number in range(5000)]
    bucket = Bucket([*made_up, *alike, *said_by("dev.i-1", "idle"), *said_by("dev.a-1", "idle")])

    found = heard_in(bucket, {"i-1": "dev.i-1", "a-1": "dev.a-1"})

    assert bucket.pages == 2
    assert [replies_of(found.replies, each, MARK).reply for each in ("i-1", "a-1")] == [Reply.IDLE] * 2


def test_where_all_flood_at_once_the_listing_ends_and_who_was_not_heard_has_said_nothing():
    keys = [f"AROA:i-{number:04}/0/{name}.json" for number in range(200) for name in range(1100)]
    bucket = Bucket([*keys, *said_by("AROA:i-9999", "idle")])

    found = heard_in(bucket, {"i-9999": ""})

    assert bucket.pages <= 102
    assert "*" in found.flooding
    assert replies_of(found.replies, "i-9999", MARK).reply is None


def test_a_bucket_that_begins_anew_instead_of_where_it_was_asked_to_is_no_answer():
    class Deaf(Bucket):
        """Bucket that ignores StartAfter."""

        def list_objects_v2(self, StartAfter="", **more):  # noqa: N803 - boto3's
            return super().list_objects_v2(**more)

    bucket = Deaf(said_by("dev.a", "idle") + said_by("dev.i-1", "idle"))

    with pytest.raises(CloudError, match="asked for what comes after"):
        heard_in(bucket, {"i-1": "dev.i-1"})


def swept_beside_a_flood(cloud, names, where="20991231T000000Z"):
    """Sweep three idle instances that have replied; the second has written `names` more objects."""
    stage = Stage(cloud)
    stage.terms(top={"max_actions": 100, "max_percent": 100}, require_acknowledgement=True)
    instances = stage.marked(3)
    caller = {"aws": "AROAMADEUP:", "alicloud": "dev."}[cloud] + instances[1].id
    mark = mark_name(parse_time(instances[1].tags[TAG_REAP_AFTER]))
    for number in range(names):
        stage.world.objects[f"reaper/handshake/{caller}/{where or mark}/{number:05}.json"] = (b"{}", '"1"')
    stage.world.calls.clear()
    return stage, instances, caller, stage.sweep()


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_beside_an_instance_that_floods_the_others_are_terminated_at_the_same_reads(cloud):
    calm, _, _, _ = swept_beside_a_flood(cloud, 0)

    stage, instances, caller, result = swept_beside_a_flood(cloud, 5000)

    assert stage.ended == [instance.id for instance in instances], "what floods lies beside its words"
    assert result.done.failures == []
    calm_reads, reads = (
        Counter(call for call in each.world.calls if call.startswith(("Describe", "List", "Get")))
        for each in (calm, stage)
    )
    lists = calm_reads.pop("ListObjectsV2")
    assert reads.pop("ListObjectsV2") <= lists + 3 * lists
    assert reads == calm_reads
    if cloud == "aws":  # on Alibaba Cloud what is not asked for is not even read
        assert list(result.done.flooding) == [caller]
        assert result.to_json()["flooding"] == result.done.flooding
        assert [each.value for each in result.metrics() if each.name == "SweepFloodingCallers"] == [1]


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_an_instance_that_floods_its_own_mark_stays_and_operators_are_notified_at_once_and_once_a_day(cloud):
    stage, (first, flooder, last), caller, result = swept_beside_a_flood(cloud, 5000, where="")

    assert stage.ended == [first.id, last.id]
    assert result.done.flooding.keys() == {caller}
    (verdict,) = [decision for decision in result.plan.decisions if decision.instance.id == flooder.id]
    assert (verdict.verdict, verdict.alert) == (Verdict.WAIT, True)
    assert "none is believed" in verdict.reason
    stage.world.calls.clear()
    stage.sweep_for(60)
    assert stage.world.calls.count("Publish") == 0
    assert flooder.state == "running"


def test_many_names_in_a_real_listing_cost_a_sweep_three_calls_a_list(live):
    first, second = marked_and_due(live, 2)
    bucket = get_backend("s3")[ACCOUNT]["global"]
    for number in range(1100):
        bucket.put_object(RECORDS, f"reaper/handshake/AROA0:{second.id}/0/{number:05}.json", b"{}")

    report = live.sweep(override_breaker=True)

    assert ended([first, second]) == [first.id, second.id]
    assert list(report["flooding"]) == [f"AROA0:{second.id}"]
    assert live.calls.count("ListObjectsV2") <= 4 * 5, "without a flood five lists"


def test_a_decision_that_an_instance_made_huge_is_a_failure_of_that_instance_alone(live):
    """Otherwise the function would read it whole, run out of memory, and end no instance."""
    first, second = marked_and_due(live, 2)
    said = live.s3.list_objects_v2(Bucket=RECORDS, Prefix="reaper/handshake/")["Contents"]
    (idle,) = [
        each["Key"] for each in said if second.id in each["Key"] and each["Key"].endswith("/idle.json")
    ]
    huge = json.dumps({"winner": "end", "reason": "x" * LONGEST}).encode()
    get_backend("s3")[ACCOUNT]["global"].put_object(RECORDS, idle.replace("idle", "decision"), huge)

    report = live.sweep(override_breaker=True)

    assert ended([first, second]) == [first.id]
    (failure,) = [each for each in report["failed"] if each["instance_id"] == second.id]
    assert f"longer than {LONGEST} bytes" in failure["error"]
