"""The first days: the same decisions, but only reports of them."""

import json
from datetime import timedelta

import pytest

from gpu_fleet_image.controllers.sweep import watch as watching
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.model import (
    TAG_IDLE_SINCE,
    TAG_POOL,
    TAG_REAP_AFTER,
    Decision,
    Instance,
    Plan,
    Verdict,
)
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.providers.alicloud.oss import OssStore
from tests.image.alicloud_world import Bucket
from tests.image.controllers.sweep.test_sweep_on_moto import AFTER_GRACE, sweep  # noqa: F401 - a fixture
from tests.image.moto_fleet import BUCKET, NOW, TAGS, client, pool_policy
from tests.image.plays.stage import CLOUDS, POOL
from tests.image.sweeping import policy, sweep_world
from tests.image.world import World

WEEK = timedelta(days=7)


@pytest.fixture
def idle(fleet):
    """Return an instance that the second sweep would terminate."""
    return fleet.idle()


@pytest.fixture
def past_grace(fleet, sweep, idle):  # noqa: F811
    """Run the sweep that would mark it, and the one that would terminate it: (result, report)."""
    sweep(NOW, watch_days=7)
    fleet.heartbeats([idle], idle_hours=2.5, until=AFTER_GRACE)
    return sweep(AFTER_GRACE, watch_days=7)


def watched():
    return json.loads(client("s3").get_object(Bucket=BUCKET, Key="reaper/watch.json")["Body"].read())


def test_what_would_have_been_terminated_is_reported_with_owner_and_worth_and_lives(fleet, idle, past_grace):
    result, second = past_grace

    assert result.exit_code == 0, result.output
    assert fleet.state(idle) == "running"
    assert not {TAG_IDLE_SINCE, TAG_REAP_AFTER} & fleet.tags(idle).keys()
    assert (second["acted"], second["marked"]) == ([], [])
    assert [verdict["verdict"] for verdict in second["verdicts"]] == ["TERMINATE"], "as it would be"
    (entry,) = second["would_end"]
    assert (entry["instance_id"], entry["owner"], entry["action"]) == (idle, "ada", "terminate")
    assert entry["idle_since"] == second["verdicts"][0]["idle_since"] is not None
    (mail,) = fleet.heard()
    assert mail["Subject"] == "test: 1 idle instance(s) would be terminated or stopped now"
    assert f"{idle} (g5.xlarge, pool dev, owner ada, 1.006 USD an hour)" in mail["Message"]
    said = f"terminate at {format_time(AFTER_GRACE)}, idle since {entry['idle_since']}\n"
    assert said in mail["Message"], "and not used again"
    assert "734.380 USD a month" in mail["Message"]
    assert second["watched_until"] == format_time(NOW + WEEK)


def test_the_days_count_from_the_first_sweep_and_it_is_reported_once(fleet, sweep, past_grace):  # noqa: F811
    for minutes in range(3):
        sweep(AFTER_GRACE + timedelta(minutes=minutes), watch_days=7)

    assert watched()["began"] == format_time(NOW)
    assert len(fleet.heard()) == 1


def test_what_was_not_delivered_is_sent_by_the_next_sweep_and_the_others_are_not_forgotten(
    fleet,
    sweep,  # noqa: F811
    idle,
    past_grace,
    monkeypatch,
):
    (second,) = fleet.start()
    fleet.heartbeats([idle, second], idle_hours=2.5, until=AFTER_GRACE)
    sweep(AFTER_GRACE, watch_days=7)
    at = AFTER_GRACE + (AFTER_GRACE - NOW)
    fleet.heartbeats([idle, second], idle_hours=2.5, until=at)
    with monkeypatch.context() as deaf:
        deaf.setenv("GPU_FLEET_TOPIC_ARN", "arn:aws:sns:us-east-1:123456789012:gone")
        result, _ = sweep(at, watch_days=7)
    assert result.exit_code == 1
    assert [action["instance_id"] for action in watched()["would_end"]] == [idle]

    sweep(at, watch_days=7)

    assert [action["instance_id"] for action in watched()["would_end"]] == [idle, second]
    assert len(fleet.heard()) == 2


def test_one_that_is_used_again_is_reported_as_a_mistake_that_was_not_made(fleet, sweep, idle, past_grace):  # noqa: F811
    later = AFTER_GRACE + timedelta(hours=1)
    fleet.heartbeats([idle], idle_hours=-1.4, until=later, over_hours=1)

    sweep(later, watch_days=7)

    (entry,) = watched()["would_end"]
    assert entry["used_again_at"] == format_time(later)
    assert watched()["marks"] == {}


def test_one_that_is_used_again_says_nothing_of_another():
    would_end = [{"instance_id": key, "used_again_at": None} for key in ("i-1", "i-2")]
    watch, used = watching.Watch(NOW, would_end=would_end), Instance("i-1", "", "running", NOW)

    watch.note(Plan((Decision(used, Verdict.UNMARK, "in use"),)), NOW)

    assert [entry["used_again_at"] for entry in watch.would_end] == [format_time(NOW), None]


def test_after_the_last_day_it_sums_up_marks_and_acts(fleet, sweep, idle, past_grace):  # noqa: F811
    end = NOW + WEEK + timedelta(minutes=1)
    fleet.heartbeats([idle], idle_hours=2.5, until=end)

    _, report = sweep(end, watch_days=7)
    _, after = sweep(end, watch_days=7)

    assert report["marked"] == [idle]
    assert after["watched_until"] is None
    subjects = [mail["Subject"] for mail in fleet.heard()]
    assert subjects[1].startswith("test: watched 7 days, 1 instance would have been stopped or terminated, 0")
    assert len(subjects) == 3


def test_a_stack_without_the_key_acts_at_once_and_its_marks_are_removed_where_it_watches(fleet, sweep, idle):  # noqa: F811
    _, report = sweep(NOW)
    sweep(NOW, watch_days=7)

    assert report["marked"] == [idle]
    assert not {TAG_IDLE_SINCE, TAG_REAP_AFTER} & fleet.tags(idle).keys()


def test_nothing_is_done_where_the_start_of_watching_is_unknown(fleet, sweep, idle):  # noqa: F811
    sweep(NOW, watch_days=7)
    client("s3").put_object(Bucket=BUCKET, Key="reaper/watch.json", Body=b'{"began": "soon"}')

    result, _ = sweep(AFTER_GRACE, watch_days=7)

    assert result.exit_code == 1
    assert f"to begin the watch anew delete s3://{BUCKET}/reaper/watch.json" in result.output
    assert fleet.state(idle) == "running"
    client("s3").delete_object(Bucket=BUCKET, Key="reaper/watch.json")
    assert sweep(AFTER_GRACE, watch_days=7)[0].exit_code == 0


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_pool_is_watched_and_none_is_asked_to_answer(cloud):
    world = World()
    asking = pool_policy(**POOL, require_acknowledgement=True)
    checked = policy({"a": asking, "b": asking}, CLOUDS[cloud] | {"watch_days": 7})
    made = [world.start(TAGS | {TAG_POOL: pool}, busy=False) for pool in ("a", "b")]
    world.pass_minutes(90)

    for _ in range(4):
        watch = sweep_world(world, checked).watch
        world.pass_minutes(10)

    assert sorted(action["instance_id"] for action in watch.would_end) == sorted(one.id for one in made)
    assert world.ends == []
    assert not any(TAG_REAP_AFTER in resource.tags for resource in made)
    assert "ListObjectsV2" not in world.calls, "nobody is heard, for nobody is asked"


def test_on_alibaba_cloud_the_way_to_begin_anew_names_what_a_plain_deletion_leaves():
    """In a bucket with versions, a deleted object is still read by its older versions."""
    world = World()
    store = OssStore(Bucket(world), Calls(world.clock), "oss://records/reaper")
    watching.save(store, watching.Watch(world.now))
    world.objects["reaper/watch.json.000000000001"] = (b'{"began": "soon"}', '"made-up"')

    with pytest.raises(CloudError) as refused:
        watching.load(store, world.now)

    named = "oss://records/reaper/watch.json"
    remedy = f"delete all versions of {named} and of every object whose name begins with {named}."
    assert str(refused.value).endswith(remedy)
    for key in [key for key in world.objects if key.startswith("reaper/watch.json")]:
        del world.objects[key]
    assert watching.load(store, later := world.now + WEEK).began == later
