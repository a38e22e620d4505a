"""Actions with failures half-way: a failure stays alone, and is reported."""

import json
from dataclasses import replace
from datetime import timedelta

import boto3
import pytest

from gpu_fleet_image.console.operators.monthly_savings import month_of, summarise
from gpu_fleet_image.console.users.ledger_reader import LedgerPlace, read_ends
from gpu_fleet_image.controllers.sweep.lease import KEY as LEASE_KEY
from gpu_fleet_image.controllers.sweep.sweep import SweepOptions, sweep
from gpu_fleet_image.controllers.sweep.tidy import LOOK_EVERY
from gpu_fleet_image.core.calls import bisect
from gpu_fleet_image.core.model import TAG_REAP_AFTER
from gpu_fleet_image.core.notify.notifier import Notifier
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, DeadlineError
from tests.image.controllers.sweep.custodian_cases import POLICY, TERMS, forgotten, marked
from tests.image.fake_aws import fake_aws
from tests.image.providers.alicloud import test_alicloud
from tests.image.sweeping import connect_world, policy, sweep_world
from tests.image.world import EPOCH

STOPPING = policy(**TERMS, action="stop", instance_store_scratch=False)


@pytest.mark.parametrize(
    ("code", "bad", "calls"),
    [("InvalidInstanceID.NotFound", {3, 7}, 15), ("RequestLimitExceeded", set(range(10)), 1)],
)
def test_a_batch_that_is_refused_is_halved_until_the_bad_ones_are_alone_and_a_throttled_one_is_not(
    code, bad, calls
):
    done, asked = [], []

    def act(ids):
        asked.append(ids)
        if bad & set(ids):
            raise CloudError("no", code)
        done.extend(ids)

    failures = bisect(list(range(10)), "end", act)

    assert {failure.instance_id for failure in failures} == bad
    assert sorted(done) == sorted(set(range(10)) - bad)
    assert len(asked) <= calls


def test_who_kept_an_instance_is_notified_again_once_the_hold_is_over():
    """The new time differs from that in the earlier notice."""
    world = forgotten(1)
    (instance,) = world.instances.values()
    sweep_world(world, POLICY)
    instance.keep(world.now + timedelta(hours=2))
    world.pass_minutes(10)
    sweep_world(world, POLICY)
    assert TAG_REAP_AFTER not in instance.tags
    before = len(world.messages)

    world.pass_minutes(120)
    sweep_world(world, POLICY)

    assert TAG_REAP_AFTER in instance.tags
    assert len(world.messages) == before + 1


@pytest.mark.parametrize("checked", [POLICY, test_alicloud.POLICY], ids=["aws", "alicloud"])
def test_a_member_that_cannot_be_terminated_is_put_back_into_its_group(checked):
    world = marked(2, checked, grouped=2)
    stubborn, other = world.instances.values()
    stubborn.stubborn = True

    result = sweep_world(world, checked)

    assert [instance.id for _, instance, _ in world.ends] == [other.id]
    assert world.groups["pool"]["members"] == [stubborn.id]
    assert world.groups["pool"]["desired"] == 1
    assert [failure.instance_id for failure in result.done.failures] == [stubborn.id]


def test_an_end_that_answers_with_an_error_after_it_was_done_counts_as_done():
    world = marked(2, grouped=2)
    faults = world.faults
    world.on_call("TerminateInstances", lambda: setattr(faults, "after_commit", 1.0), number=1)
    # the list, the fresh check, the last look, and the look at what an error left behind
    world.on_call("DescribeInstances", lambda: setattr(faults, "after_commit", 0.0), number=4)

    result = sweep_world(world, POLICY)

    assert len(world.ends) == len(result.done.ended) == len(saved(world)) == 2
    assert result.done.failures == []
    assert not [key for key in world.objects if key.endswith(".failed.json")]
    assert world.groups["pool"]["desired"] == 0


def test_a_refused_end_whose_result_cannot_be_read_is_none():
    """It used to count as saved, and would have stayed outside its group."""
    world = marked(1, grouped=1)
    world.deny("TerminateInstances")
    world.deny(
        "DescribeInstances", 4
    )  # the list, the fresh check, the last look; and what an error left behind

    result = sweep_world(world, POLICY)

    assert world.ends == result.done.ended == saved(world) == []
    assert [failure.step for failure in result.done.failures] == ["terminate"]
    assert world.groups["pool"]["desired"] == 1


def test_a_failed_end_and_the_one_of_a_later_sweep_are_noted_beside_its_record():
    world = marked(1)
    (instance,) = world.instances.values()
    instance.stubborn = True
    sweep_world(world, POLICY)
    noted = [json.loads(body) for key, (body, _) in world.objects.items() if key.endswith(".failed.json")]
    assert ["OperationNotPermitted" in each["error"] for each in noted] == [True]
    world.pass_minutes(10)
    instance.stubborn = False

    sweep_world(world, POLICY)

    endings = sorted(key.partition("-terminate")[2] for key in world.objects if "/ledger/" in key)
    assert endings == [".ended.json", ".failed.json", ".json"]


def ends_of(world):
    """Return the ends in ``gpu-fleet report``, from the sweep's records in the bucket."""
    with fake_aws():
        s3 = boto3.client("s3", "us-east-1")
        s3.create_bucket(Bucket="records")
        for key, (body, _) in world.objects.items():
            s3.put_object(Bucket="records", Key=key, Body=body)
        place = LedgerPlace.of("s3://records/reaper", s3)
        return list(read_ends(place, month_of(EPOCH)))


def saved(world):
    """Return the instances with savings."""
    return [end.instance_id for end in ends_of(world)]


def test_a_sweep_cut_off_before_the_end_saves_nothing_when_the_user_returns():
    world = marked(1)
    (instance,) = world.instances.values()

    def cut_off():
        raise KeyboardInterrupt

    world.on_call("TerminateInstances", cut_off, number=1)
    with pytest.raises(KeyboardInterrupt):
        sweep_world(world, POLICY)
    instance.busy = True
    world.pass_minutes(60)
    sweep_world(world, POLICY)

    assert [key for key in world.objects if key.endswith("-terminate.json")], "the intent is on record"
    assert instance.state == "running"
    assert saved(world) == []


@pytest.mark.parametrize(
    ("checked", "call", "noted"),
    [(POLICY, "TerminateInstances", {"ended"}), (STOPPING, "StopInstances", {"ended", "stopped"})],
)
def test_what_a_sweep_is_about_to_do_is_on_record_before_it_is_done(checked, call, noted):
    """A function that is cut off then cannot write: the breaker would count too few."""
    world, memories = marked(1, checked), []

    def remember():
        memories.append(json.loads(world.objects[f"reaper/{LEASE_KEY}"][0])["memory"])

    world.on_call(call, remember, number=1)
    sweep_world(world, checked)

    (memory,) = memories
    assert {name for name in ("ended", "stopped") if memory[name].keys() == world.instances.keys()} == noted


@pytest.mark.parametrize("sweeps_on_time", [True, False])
def test_a_stop_saves_until_its_user_starts_the_instance_again_whoever_ends_it_then(sweeps_on_time):
    """There is no later record: it is in use until its user terminates it."""
    world = marked(1, STOPPING)
    (instance,) = world.instances.values()
    sweep_world(world, STOPPING)
    assert instance.state == "stopped"
    world.pass_minutes(60)
    if sweeps_on_time:
        sweep_world(world, STOPPING)

    world.boot(instance)
    started_at = world.now
    world.pass_minutes(30)
    sweep_world(world, STOPPING)
    world.pass_minutes(30)
    sweep_world(world, STOPPING)

    (end,) = ends_of(world)
    month = month_of(EPOCH)
    (saving,) = summarise([end], month, month.end).savings
    assert saving.until == started_at.replace(microsecond=0)
    assert saving.until - end.at == pytest.approx(timedelta(hours=1), abs=timedelta(minutes=1))


def test_a_stop_that_failed_saves_nothing_until_a_start_either():
    world = marked(1, STOPPING)
    (instance,) = world.instances.values()
    instance.stubborn = True
    sweep_world(world, STOPPING)
    world.boot(instance)
    world.pass_minutes(10)
    sweep_world(world, STOPPING)

    assert ends_of(world) == []


def test_a_sweep_that_runs_out_of_time_after_an_end_still_reports_it():
    world = marked(1)
    world.on_call("TerminateInstances", lambda: world.pass_minutes(1), number=1)

    result = sweep_world(world, POLICY, deadline_after=timedelta(seconds=30))

    assert len(result.done.ended) == 1
    assert "no time left" in result.done.failures[-1].error


UNABLE = {
    "a wrong clock": (ConfigurationError, r"clock differs from the cloud's by 18. s"),
    "no list of the fleet": (CloudError, "RequestLimitExceeded"),
    "no time": (DeadlineError, "no time left"),
}


@pytest.mark.parametrize("case", UNABLE)
def test_a_sweep_that_cannot_go_on_says_so_and_acts_on_nothing(case):
    world = marked(3)
    world.skew = timedelta(minutes=3 if case == "a wrong clock" else 0)
    world.faults.throttled = float(case == "no list of the fleet")
    world.faults.seconds_per_call = 20 if case == "no time" else 0.05
    error, says = UNABLE[case]

    with pytest.raises(error, match=says):
        sweep_world(world, POLICY, deadline_after=timedelta(seconds=30))

    assert world.ends == []


def test_users_are_notified_of_one_silent_agent_once_a_day():
    world = forgotten(1)
    (instance,) = world.instances.values()
    instance.agent = "dead"
    world.pass_minutes(30)

    for _ in range(4):
        sweep_world(world, POLICY)
        world.pass_minutes(10)

    assert [text for _, text in world.messages if "does the agent run" in text] != []
    assert len(world.messages) == 1


@pytest.mark.parametrize("lacking", ["store", "notifier"])
def test_a_sweep_that_acts_needs_both_a_ledger_and_a_topic(lacking):
    world = marked(1)
    cloud = replace(connect_world(world, POLICY), **{lacking: None})

    with pytest.raises(ConfigurationError, match="GPU_FLEET_LEDGER_URI and GPU_FLEET_TOPIC_ARN"):
        sweep(cloud, POLICY, SweepOptions(world.clock, "a test"))

    assert world.ends == []


@pytest.mark.parametrize("wanted", [True, False])
def test_a_dry_run_looks_for_orphans_where_they_are_asked_for(wanted):
    world = forgotten(1)

    sweep_world(world, POLICY, dry_run=True, orphans=wanted)

    assert ("DescribeVolumes" in world.calls) is wanted


def test_all_are_notified_again_where_newer_users_are_unknown():
    """A user who came after the notice has not been notified."""

    class Deaf(Notifier):
        def seen_on(self, instance):
            raise CloudError("the users cannot be read")

    world = forgotten(1)
    sweep_world(world, POLICY)
    (instance,) = world.instances.values()
    del instance.tags[TAG_REAP_AFTER]
    cloud = connect_world(world, POLICY)
    deaf = replace(cloud, notifier=Deaf(cloud.notifier._channel))

    sweep(deaf, POLICY, SweepOptions(world.clock, "a test"))

    assert TAG_REAP_AFTER in instance.tags
    assert len(instance.line.notices) == 2


def test_orphans_are_looked_for_at_first_and_every_few_hours_and_not_in_between():
    world, looks = forgotten(1), []

    for minutes in (10, LOOK_EVERY.total_seconds() / 60, 0):
        sweep_world(world, POLICY)
        looks.append(world.calls.count("DescribeAddresses"))
        world.pass_minutes(minutes)

    assert looks == [1, 1, 2]


def test_a_dry_run_knows_what_is_usual():
    world = forgotten(8)
    assert sweep_world(world, POLICY, dry_run=True).plan.breaker
    sweep_world(world, POLICY, override_breaker=True)

    assert not sweep_world(world, POLICY, dry_run=True).plan.breaker


@pytest.mark.parametrize(("idle", "tripped"), [(8, True), (1, False)])
def test_the_subject_of_an_alert_says_whether_the_breaker_tripped(idle, tripped, monkeypatch):
    world, subjects = forgotten(idle), []
    next(iter(world.instances.values())).keep("tomorrow")  # which nobody can read
    monkeypatch.setattr(Notifier, "send", lambda self, subject, message: subjects.append(subject))

    sweep_world(world, POLICY)

    assert subjects
    assert any("breaker" in subject for subject in subjects) is tripped
