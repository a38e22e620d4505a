"""The sweep's module for Alibaba Cloud, by the real SDK against a local server: pages, limits, refusals."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from botocore.awsrequest import AWSResponse

from gpu_fleet_image.controllers.meter import team_budgets
from gpu_fleet_image.core import job_use, keys
from gpu_fleet_image.core.alicloud_credentials import Credentials
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import Query, Span
from gpu_fleet_image.core.job_use import DayUse
from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY, Figure
from gpu_fleet_image.core.model import TAG_IDLE_SINCE, Decision, Kind, OrphanedResource, Verdict
from gpu_fleet_image.core.oss import bucket_client
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.providers.alicloud import connect as alicloud_connect
from gpu_fleet_image.providers.alicloud.connect import spot_prices
from gpu_fleet_image.providers.alicloud.instances import TAG_STOPPED_AT, Instances, instance_of
from gpu_fleet_image.providers.alicloud.metrics import Heartbeats
from gpu_fleet_image.providers.alicloud.orphaned_resources import OrphanedResources
from gpu_fleet_image.providers.alicloud.oss import OssStore
from gpu_fleet_image.providers.alicloud.session import ATTEMPTS, flat, host_inside, host_of
from gpu_fleet_image.providers.aws import connect as aws_connect
from tests.image import alicloud_world
from tests.image.alicloud_server import ENVIRON, RefusedError, clients, nested, serving
from tests.image.alicloud_world import Actions, Bucket
from tests.image.situations import TAGS, make_instance
from tests.image.sweeping import policy, sweep_world
from tests.image.world import EPOCH, World
from tests.image.world_clients import _S3

STACK = "test"
CLOUD = {"cloud": "alicloud", "region": "cn-wulanchabu"}
POLICY = policy(top=CLOUD, idle_after_hours=1, grace_minutes=20, min_uptime_minutes=30)


@pytest.fixture
def stage():
    """A world behind a server, with a sweep's clients."""
    world = World()
    with serving(Actions(world)) as server:
        made, calls = clients(server), Calls(world.clock)
        yield SimpleNamespace(
            server=server,
            world=world,
            actions=server.actions,
            calls=calls,
            clients=made,
            instances=Instances(made, calls, STACK),
            heartbeats=Heartbeats(made.cms, calls, STACK, lambda: "1"),
        )


def idle_world(count=2):
    world = World()
    world.group("pool", min_size=0)
    for _ in range(count):
        world.join("pool", TAGS, busy=False)
    world.pass_minutes(90)
    return world


def sweep_until_they_go(world):
    for _ in range(4):
        result = sweep_world(world, POLICY, override_breaker=True)
        world.pass_minutes(10)
        if result.done.ended or result.done.failures:
            return result
    return result


def refusing(code, status=400):
    """An action that refuses."""
    return Mock(side_effect=RefusedError(code, status))


# what is asked, and how often


def test_a_throttled_call_is_made_again_and_given_up_at_last_and_each_try_counts(stage):
    answer = stage.actions.describe_instances({"MaxResults": 100})
    throttled = RefusedError("Throttling.User")
    stage.actions.describe_instances = Mock(side_effect=[throttled, throttled, answer, *[throttled] * 9])

    stage.instances.fleet()
    assert stage.server.asked["DescribeInstances"] == 3
    assert stage.calls.reads == 3 + 1, "and one for the groups"

    with pytest.raises(CloudError, match=r"DescribeInstances: Throttling\.User"):
        stage.instances.fleet()
    assert stage.calls.reads == 3 + 1 + ATTEMPTS


@pytest.mark.parametrize(
    ("end", "call", "fault", "code"),
    [
        (Instances.terminate, "DeleteInstances", "throttled", "Throttling.User"),
        (Instances.stop, "StopInstances", "throttled", "Throttling.User"),
        (Instances.terminate, "DeleteInstances", "after_commit", "InternalError"),
    ],
)
def test_an_end_that_failed_is_left_to_the_next_sweep_which_looks_anew(stage, end, call, fault, code):
    instance = stage.world.start(TAGS)
    setattr(stage.world.faults, fault, 1.0)

    with pytest.raises(CloudError, match=code):
        end(stage.instances, [instance.id])
    assert stage.server.asked[call] == 1


def test_a_signature_with_another_secret_is_refused(stage, monkeypatch):
    monkeypatch.setattr("tests.image.alicloud_server.SECRET", "another")

    with pytest.raises(CloudError, match="SignatureDoesNotMatch"):
        stage.instances.fleet()


def test_a_refusal_inside_an_answer_of_success_is_one(stage):
    stage.world.faults.deaf = 1.0

    with pytest.raises(CloudError, match="PutCustomMetric: 400: deaf"):
        stage.heartbeats.publish([Figure("SweepRuns", 1)])


def test_a_figure_is_of_its_pool_or_of_the_whole_stack(stage):
    found = [stage.heartbeats._dimensions(figure) for figure in (Figure("X", 2.5, "dev"), Figure("X", 1))]

    assert found == [{"Stack": STACK, "Pool": "dev"}, {"Stack": STACK}]


def test_a_dry_run_changes_nothing(stage):
    stage.instances = Instances(stage.clients, Calls(stage.world.clock, read_only=True), STACK)

    with pytest.raises(CloudError, match="TagResources in a dry run"):
        stage.instances.tag(["i-1"], {"a": "b"})
    assert not stage.server.asked


IDLE = Decision(make_instance("i-1", tags=TAGS | {"gpu-fleet:owner": "vision"}), Verdict.MARK, "idle")
MAILED = {"users": {"ada": "ada@example.com"}, "sender": "fleet@mail.example.com"}


def announced(stage, roster, users=("ada:login",)):
    """Announce by the notifier of the sweep's function, with a roster and the users of ``i-1``."""
    store = OssStore(Bucket(stage.world), stage.calls, "oss://records/reaper")
    nobody = {"users": {}, "operators": ["ops@example.com"], "sender": None, "webhooks": []}
    for content in (nobody, nobody | roster):
        store.put("roster.json", content)
    store.put("users/dev/i-1.json", {"users": users})
    stage.actions.put_custom_metric = lambda _: {}
    checked = policy(top=CLOUD | {"notify_users": True})
    environ = {"GPU_FLEET_LEDGER_URI": "oss://records/reaper", "GPU_FLEET_ACCOUNT_ID": "1"}
    made = replace(stage.clients, s3=Bucket(stage.world))
    return alicloud_connect.connect(checked, stage.calls, environ, made).notifier.announce("test", [IDLE])


def test_those_whom_the_agent_named_are_mailed_by_direct_mail(stage):
    stage.actions.single_send_mail = mail = Mock(return_value={"EnvId": "1"})

    done = announced(stage, MAILED)

    (asked,) = mail.call_args.args
    names = ("AccountName", "ToAddress", "AddressType", "ReplyToAddress")
    assert [asked[name] for name in names] == [MAILED["sender"], "ada@example.com", "1", "false"]
    assert "gpu-fleet keep 8h" in asked["TextBody"]
    assert (mail.call_count, done.notified, done.unreached) == (1, [IDLE], {})


def test_a_mail_that_direct_mail_refuses_names_the_user(stage):
    stage.actions.single_send_mail = refusing("InvalidMailAddress.NotFound", 404)

    done = announced(stage, MAILED)

    assert list(done.unreached) == ["ada"]
    assert "SingleSendMail: InvalidMailAddress.NotFound" in done.unreached["ada"]
    assert done.notified == [IDLE], "operators hear the alarm"


@pytest.mark.parametrize("users", [7, "ada:login", [7, None, {}], {"ada": 1}])
def test_whatever_an_instance_writes_of_its_users_the_operators_are_notified(stage, users):
    done = announced(stage, {}, users)

    assert (done.notified, done.unreached) == ([IDLE], {})


def test_a_webhooks_address_is_read_from_its_secret_and_never_shown(stage, caplog):
    stage.actions.get_secret_value = secret = Mock(return_value={"SecretData": "http://S3CRET"})

    done = announced(stage, {"webhooks": [{"kind": "dingtalk", "secret": "rooms/vision"}]})

    assert [ask.args[0]["SecretName"] for ask in secret.call_args_list] == ["rooms/vision"]
    assert "the secret must hold an https address" in done.unreached["dingtalk webhook 'rooms/vision'"]
    assert "S3CRET" not in caplog.text + str(done)


def test_tags_go_to_instances_disks_and_addresses_in_their_own_ways(stage):
    asked = []
    stage.actions.tag_resources = lambda ask: (
        asked.append((ask["ResourceType"], len(ask["ResourceId"]), ask["Version"])) or {}
    )
    stage.actions.un_tag_resources = lambda ask: asked.append(("untag", ask["ResourceId"])) or {}

    stage.instances.tag([*(f"i-{number}" for number in range(60)), "d-1", "eip-1"], {"a": "b"})
    stage.instances.untag(["eip-1"], ["a"])

    ecs, vpc = "2014-05-26", "2016-04-28"
    assert asked == [
        *(("instance", 50, ecs), ("instance", 10, ecs), ("disk", 1, ecs)),
        *(("EIP", 1, vpc), ("untag", ["eip-1"])),
    ]


def test_every_page_is_read_and_of_numbered_ones_an_empty_ends_it_whatever_the_total_says(stage):
    for number in range(120):
        stage.world.group(f"g-{number}", min_size=0)
    for _ in range(250):
        stage.world.start(TAGS)

    fleet = stage.instances.fleet()
    assert ([group.pool for group in fleet.groups], len(fleet.instances)) == (["dev"] * 120, 250)
    assert stage.server.asked == {"DescribeInstances": 3, "DescribeScalingGroups": 3}
    plain = stage.actions.describe_scaling_groups
    stage.actions.describe_scaling_groups = lambda ask: plain(ask) | {"TotalCount": 1000}

    assert len(stage.instances.fleet().groups) == 120
    assert stage.server.asked["DescribeScalingGroups"] == 3 + 4


def test_parameters_are_flattened_as_rpc_wants_them_and_read_back():
    asked = {"Tag": [{"Key": "a", "Value": "b"}, {"Key": "c"}], "Force": True, "Id": ["x", "y"], "Size": 3}

    wire = dict(flat(asked))

    assert wire["Tag.2.Key"] == "c"
    assert nested(wire) == {**asked, "Force": "true", "Size": "3"}


def test_each_product_is_asked_where_it_answers_for_the_region():
    """Mail uses the nearest region with Direct Mail."""
    hosts = {
        ("Ess", "cn-shenzhen"): "ess.aliyuncs.com",
        ("Ess", "cn-wulanchabu"): "ess.cn-wulanchabu.aliyuncs.com",
        ("Ecs", "cn-hangzhou"): "ecs-cn-hangzhou.aliyuncs.com",
        ("Ecs", "cn-shenzhen"): "ecs.cn-shenzhen.aliyuncs.com",
        ("Cms", "cn-shenzhen"): "metrics.cn-shenzhen.aliyuncs.com",
        ("Dm", "cn-wulanchabu"): "dm.aliyuncs.com",
        ("Dm", "cn-hongkong"): "dm.ap-southeast-1.aliyuncs.com",
        ("Dm", "eu-central-1"): "dm.eu-central-1.aliyuncs.com",
        ("Dm", "ap-northeast-1"): "dm.ap-southeast-1.aliyuncs.com",
    }

    assert {asked: host_of(*asked) for asked in hosts} == hosts


def test_an_instance_asks_inside_its_network_where_that_has_a_name():
    metrics, cms = "metrics-vpc.cn-beijing.aliyuncs.com", "cms-vpc.cn-beijing.aliyuncs.com"
    hosts = {(metrics, cms): metrics, (cms,): cms, (): "metrics.cn-beijing.aliyuncs.com"}

    assert {known: host_inside("Cms", "cn-beijing", known.__contains__) for known in hosts} == hosts


def test_both_clouds_have_the_same_functions():
    names = ("connect", "instances", "bucket_client", "caller", "account_id")

    assert all(callable(getattr(each, name)) for each in (aws_connect, alicloud_connect) for name in names)


# instances


def described(**changes):
    raw = {
        "InstanceId": "i-1",
        "InstanceType": "ecs.gn7i-c8g1.2xlarge",
        "Status": "Running",
        "CreationTime": "2026-03-02T08:00Z",
        "StartTime": "2026-03-02T08:00Z",
    }
    return instance_of(raw | changes)


def locks(reason):
    return {"OperationLocks": {"LockReason": [{"LockReason": reason}]}}


def noted(at, status="Stopped"):
    """What ECS says of an instance on which the sweep has noted its stop."""
    return {"Status": status, "Tags": {"Tag": [{"TagKey": TAG_STOPPED_AT, "TagValue": at}]}}


# ECS says the minute of the last start: its end counts. A stop is noted after the last start, or void.
READ = [
    ({}, "launched_at", EPOCH + timedelta(minutes=1)),
    ({"StartTime": "2026-03-05T08:00Z"}, "launched_at", EPOCH + timedelta(days=3, minutes=1)),
    ({"StartTime": ""}, "launched_at", EPOCH + timedelta(minutes=1)),
    (locks("financial"), "locked", "locked by the cloud: financial"),
    (locks("Recycling"), "locked", "locked by the cloud: Recycling"),
    ({"DeletionProtection": True}, "locked", "deletion protection is on"),
    ({"DeletionProtection": False, "OperationLocks": {"LockReason": []}}, "locked", ""),
    ({"SpotStrategy": "SpotWithPriceLimit"}, "spot", True),
    ({"SpotStrategy": "NoSpot"}, "spot", False),
    (noted("2026-03-03T00:00:00+00:00"), "stopped_at", datetime(2026, 3, 3, tzinfo=UTC)),
    (noted("2026-03-01T00:00:00+00:00"), "stopped_at", None),
    (noted("yesterday"), "stopped_at", None),
    (noted("2026-03-03T00:00:00+00:00", "Running"), "stopped_at", None),
]


def test_an_instance_is_read_as_ecs_and_the_sweep_s_own_notes_describe_it():
    assert [row for row in READ if getattr(described(**row[0]), row[1]) != row[2]] == []


def test_a_locked_instance_is_kept_with_the_reason(monkeypatch):
    plain = alicloud_world._described
    monkeypatch.setattr(alicloud_world, "_described", lambda instance: plain(instance) | locks("security"))

    result = sweep_world(idle_world(), POLICY)

    why = "idle for 90 min, but locked by the cloud: security: lift it, or keep the instance"
    assert {(each.verdict, each.reason, each.alert) for each in result.plan.decisions} == {
        (Verdict.KEEP_PROTECTED, why, True)
    }


def test_an_instance_that_was_released_is_gone_and_one_of_another_stack_is_left_out(stage):
    mine, released = stage.world.start(TAGS), stage.world.start(TAGS)
    other = stage.world.start(TAGS | {"gpu-fleet:stack": "other"})
    released.state = "terminated"

    fresh = stage.instances.again([mine.id, released.id, other.id], ())

    assert [instance.id for instance in fresh.instances] == [mine.id]
    assert [(instance.id, instance.state) for instance in fresh.gone] == [(released.id, "terminated")]


def test_the_newest_spot_price_of_the_dearest_zone_counts(stage):
    rows = [
        ("a", "2026-03-02T07:00:00Z", 9.0),
        ("a", "2026-03-02T08:00:00Z", 3.5),
        ("b", "2026-03-02T08:00:00Z", 4),
    ]
    prices = [{"ZoneId": zone, "Timestamp": at, "SpotPrice": price} for zone, at, price in rows]

    def history(ask):
        start = int(ask["Offset"])
        page = prices[start : start + 2] if ask["InstanceType"] == "gn7i" else []
        following = start + 2 if start + 2 < len(prices) else 0
        return {"Currency": "CNY", "SpotPrices": {"SpotPriceType": page}, "NextOffset": following}

    stage.actions.describe_spot_price_history = history

    assert spot_prices(stage.clients.ecs, stage.calls, "CNY", ["gn7i", "gn8v"]) == {"gn7i": Decimal(4)}
    assert spot_prices(stage.clients.ecs, stage.calls, "USD", ["gn7i"]) == {}


# ends


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("expects", [True, False], ids=["an expected number", "none, as of desired 0"])
def test_forgotten_instances_leave_their_group_as_far_as_its_minimum(expects, least):
    """The group's own protection is none from the sweep."""
    world = idle_world(3)
    world.groups["pool"] |= {"expects": expects, "min": least}
    world.lifecycle = dict.fromkeys(world.instances, "Protected") if least else {}

    result = sweep_until_they_go(world)

    assert len(result.done.ended) == len(world.ends) == 3 - least
    assert world.groups["pool"]["desired"] == least
    order = [name for name in world.calls if name in ("DetachInstances", "DeleteInstances")]
    assert order == ["DetachInstances", "DeleteInstances"]


def test_a_group_in_the_midst_of_a_scaling_activity_gives_its_instances_to_a_later_sweep():
    """DetachInstances is refused during a scaling activity, and no instance is terminated without it."""
    world = idle_world(2)
    sweep_world(world, POLICY, override_breaker=True)
    world.pass_minutes(25)
    world.groups["pool"]["busy"] = True

    refused = sweep_world(world, POLICY, override_breaker=True)
    world.groups["pool"]["busy"] = False
    world.pass_minutes(10)
    sweep_world(world, POLICY, override_breaker=True)

    assert "ScalingActivityInProgress" in refused.done.failures[0].error
    assert refused.done.ended == []
    assert len(world.ends) == 2


def test_an_instance_that_vanishes_keeps_no_other_from_going():
    world = idle_world(3)
    vanishing = next(iter(world.instances.values()))
    world.on_call("DeleteInstances", lambda: setattr(vanishing, "state", "terminated"), 1)

    result = sweep_until_they_go(world)

    assert len(world.ends) == 2
    assert result.done.failures == [], "the one that vanished is gone, which is what was wanted"


@pytest.mark.parametrize(
    ("code", "state", "was_done"),
    [("IncorrectInstanceStatus", "stopped", False), ("OperationDenied", "running", False)]
    + [("InternalError", "running", was_done) for was_done in (False, True)],
)
def test_a_stop_that_fails_is_noted_where_it_was_done_and_nowhere_else(stage, code, state, was_done):
    """Otherwise a later stop by the user would count as the sweep's, and the disk would be deleted."""
    instance = stage.world.start(TAGS, state=state)
    plain = stage.actions.stop_instances

    def fail(ask):
        if was_done or state == "stopped":
            plain(ask)
        raise RefusedError(code, 500 if code == "InternalError" else 403)

    stage.actions.stop_instances = fail

    with pytest.raises(CloudError, match=code):
        stage.instances.stop([instance.id])
    assert (TAG_STOPPED_AT in instance.tags) is was_done


def test_a_frozen_group_starts_nothing_until_it_is_opened(stage):
    asked = []
    for name in ("modify_scaling_group", "suspend_processes", "resume_processes"):
        setattr(stage.actions, name, lambda ask, name=name: asked.append((name, ask.get("MaxSize"))) or {})

    stage.instances.limit("asg-1", 3)
    stage.instances.close("asg-1")
    stage.instances.open("asg-1")

    assert asked == [("modify_scaling_group", "3"), ("suspend_processes", None), ("resume_processes", None)]


def test_an_alarm_that_fires_is_reported_by_its_name(stage):
    stage.world.alarms = {"low", "other"}

    assert stage.instances.alarms_firing(["low", "quiet"]) == {"low"}


# heartbeats


def read(stage, count, minutes, enough_below_s=3600, of=None, **more):
    """Start instances, let minutes pass, and read the heartbeats of all or of the first ones."""
    for _ in range(count):
        stage.world.start(TAGS, **more)
    stage.world.pass_minutes(minutes)
    queries = [
        Query(key, METRIC_SECONDS_SINCE_ACTIVITY, 900, enough_below_s)
        for key in sorted(stage.world.instances)[:of]
    ]
    span = Span(stage.world.now - timedelta(hours=3), stage.world.now + timedelta(minutes=20))
    answers, failures = stage.heartbeats.read(queries, span)
    assert failures == []
    return [answers[query] for query in queries]


def test_the_newest_heartbeat_of_busy_instances_is_enough_and_takes_one_call(stage):
    answers = read(stage, 120, 120)

    assert all(answer.complete and len(answer.points) == 1 for answer in answers)
    assert stage.server.asked == {"DescribeMetricLast": 1}


def test_the_window_of_an_idle_instance_is_read_in_whole_quarter_hours(stage):
    (answer,) = read(stage, 1, 120, busy=False)

    starts = [at for at, _ in answer.points]
    assert len(starts) == len(set(starts)) == 9, "eight whole quarters, and the one that has just begun"
    assert all(at.timestamp() % 900 == 0 for at in starts)
    assert sorted(answer.points) == sorted(answer.points, key=lambda point: point[1])


def test_instances_are_asked_for_by_fifty(stage):
    read(stage, 120, 10, enough_below_s=0, busy=False)

    assert stage.server.asked == {"DescribeMetricList": 3}


def test_windows_are_read_where_the_newest_cannot_be_had(stage):
    stage.actions.describe_metric_last = refusing("Forbidden.RAM", 403)

    (answer,) = read(stage, 1, 30)

    assert answer.complete
    assert len(answer.points) > 1


def test_an_instance_that_publishes_for_absent_ones_hides_no_heartbeats(stage, monkeypatch):
    monkeypatch.setattr("gpu_fleet_image.providers.alicloud.metrics.MAX_POINTS", 20)
    (answer,) = read(stage, 301, 30, of=1)

    assert answer.complete
    assert stage.server.asked == {"DescribeMetricLast": 10, "DescribeMetricList": 1}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RefusedError("Forbidden.RAM", 403), "Forbidden.RAM"),
        ({"Code": "200", "Datapoints": json.dumps([{"a": 1}])}, "data points cannot be read"),
    ],
)
def test_a_window_that_cannot_be_read_is_no_idle_instance(stage, answer, error):
    instance = stage.world.start(TAGS, busy=False)
    stage.actions.describe_metric_list = Mock(side_effect=[answer])
    query = Query(instance.id, METRIC_SECONDS_SINCE_ACTIVITY, 60)

    answers, failures = stage.heartbeats.read([query], Span(EPOCH, EPOCH + timedelta(hours=1)))

    assert not answers[query].complete
    assert [(failure.instance_id, error in failure.error) for failure in failures] == [(instance.id, True)]


# orphans


NOTED = {TAG_IDLE_SINCE: "2026-03-01T08:00Z"}


class Left(Actions):
    """Fake with two pages of everything; the first disk that is free was attached before."""

    def describe_disks(self, ask):
        number, status = 2 if ask.get("NextToken") else 1, ask.get("Status", "of an instance")
        was_attached = number == 1 or status == "In_use"
        disk = {
            "DiskId": f"{status}-{number}",
            "Size": 100,
            "Category": "cloud_essd",
            "DetachedTime": "2026-03-01T08:00Z" if was_attached else "",
            "Tags": {"Tag": [{"TagKey": key, "TagValue": value} for key, value in NOTED.items()]},
        }
        return {"Disks": {"Disk": [disk]}, "NextToken": "more" if number == 1 else ""}

    def describe_eip_addresses(self, ask):
        rows = [("eip-1", "Available", TAGS), ("eip-2", "InUse", NOTED), ("eip-3", "InUse", TAGS)]
        name, status, tags = rows[int(ask["PageNumber"]) - 1]
        listed = {"Tag": [{"Key": key, "Value": value} for key, value in tags.items()]}
        address = {"AllocationId": name, "Status": status, "Tags": listed}
        return {"EipAddresses": {"EipAddress": [address]}, "TotalCount": len(rows)}

    def describe_snapshots(self, ask):
        assert ask["Status"] == "accomplished"
        made = [{"CreationTime": "2026-03-01T09:00:00Z"}, {"CreationTime": "2026-03-02T09:00:00Z"}]
        return {"Snapshots": {"Snapshot": made}, "NextToken": ""}

    def delete_disk(self, ask):
        raise RefusedError("DependencyViolation")


@pytest.fixture
def left():
    with serving(Left(World())) as server:
        yield OrphanedResources(clients(server), Calls(lambda: EPOCH), STACK)


def disk(name, **more):
    return OrphanedResource(Kind.VOLUME, name, NOTED, 100, "cloud_essd", **more)


def test_every_page_of_what_is_free_stopped_or_used_again_is_read_with_the_time_of_its_last_use(left):
    stopped = described(Status="Stopped")

    assert left.find([stopped]) == [
        disk("Available-1", unused_since=EPOCH - timedelta(days=1)),
        disk("Available-2"),
        disk("In_use-1", in_use=True),
        disk("In_use-2", in_use=True),
        OrphanedResource(Kind.ADDRESS, "eip-1", TAGS),
        OrphanedResource(Kind.ADDRESS, "eip-2", NOTED, in_use=True),
        OrphanedResource(Kind.INSTANCE, "i-1", stopped.tags, 200, "cloud_essd"),
    ]
    assert left.snapshots(["d-1"]) == {"d-1": EPOCH + timedelta(hours=1)}


def test_a_disk_that_something_hangs_on_stays_and_is_reported(left):
    with pytest.raises(CloudError, match="DeleteDisk: DependencyViolation"):
        left.remove(disk("Available-1"))


def test_removing_takes_a_disk_or_an_address_and_never_an_instance():
    actions = Left(World())
    actions.delete_disk, actions.release_eip_address = made = Mock(return_value={}), Mock(return_value={})
    with serving(actions) as server:
        left = OrphanedResources(clients(server), Calls(lambda: EPOCH), STACK)
        for orphan in (disk("d-1"), OrphanedResource(Kind.ADDRESS, "eip-1")):
            left.remove(orphan)
        with pytest.raises(ValueError, match="cannot be removed here"):
            left.remove(OrphanedResource(Kind.INSTANCE, "i-1"))

    asked = [each.call_args.args[0] for each in made]
    assert server.asked == {"DeleteDisk": 1, "ReleaseEipAddress": 1}
    assert (asked[0]["DiskId"], asked[1]["AllocationId"]) == ("d-1", "eip-1")


# OSS


def store_of(world, bucket=Bucket):
    return OssStore(bucket(world), Calls(world.clock), "oss://records/reaper")


class Unversioned(_S3):
    """A bucket without versions, which can refuse a forbidden write."""

    def list_object_versions(self, Bucket, Prefix, MaxKeys):  # noqa: N803 - boto3's
        keys = sorted(key for key in self._world.objects if key.startswith(Prefix))[:MaxKeys]
        return {"Versions": [{"Key": key, "VersionId": "null"} for key in keys]}


@pytest.fixture
def store():
    return store_of(World())


@pytest.mark.parametrize("bucket", [Bucket, Unversioned])
def test_a_version_is_followed_by_one_alone_and_the_newest_is_read(bucket):
    store = store_of(World(), bucket)
    assert store.replace("lease.json", {}, "never held") is store.get("lease.json") is None
    first = version = store.create("lease.json", {"n": 0})
    assert first is not None
    assert store.create("lease.json", {"n": 0}) is None
    for number in range(1, 12):
        version = store.replace("lease.json", {"n": number}, version)

    assert store.replace("lease.json", {"n": 12}, first) is None
    found = store.get("lease.json")
    assert (found.content, found.version) == ({"n": 11}, version)


def test_what_one_writer_replaces_is_charged_by_its_newest_version(store):
    for seconds in (300, 600):
        use = DayUse("2026-11-26", {"i-1": {"ada/x": seconds}})
        store.put(job_use.key_of(use.day), use.to_json())
    for team in ("vision", "audio"):
        ada = {"name": "ada", "uid": 6001, "keys": [], "team": team, "team_gid": 30_001, "admin": False}
        store.put(keys.ACCOUNTS, {"schema_version": 1, "users": [ada]})

    assert job_use.load(store, "2026-11-26").used == {"i-1": {"ada/x": 600}}
    assert team_budgets.members_of(store) == {"ada": "audio"}


def test_of_two_that_write_one_state_at_the_same_moment_the_first_alone_has_it():
    world = World()
    first, second = store_of(world), store_of(world)
    version = first.create("lease.json", {"holder": "nobody"})
    taken = []
    # between the first one's look and its write
    world.on_call(
        "PutObject", lambda: taken.append(second.replace("lease.json", {"holder": "second"}, version)), 1
    )

    late = first.replace("lease.json", {"holder": "first"}, version)

    assert (taken, late) == (["1"], None)
    assert first.get("lease.json").content == {"holder": "second"}


def test_boto3_forbids_an_overwrite_by_oss_s_own_header_without_new_checksums():
    seen = []
    client = bucket_client("cn-wulanchabu", Credentials(ENVIRON))

    def answer(request, **_):
        seen.append(request)
        return AWSResponse(request.url, 200, {"ETag": '"1"'}, SimpleNamespace(stream=lambda: iter(())))

    client.meta.events.register("before-send.s3.PutObject", answer)
    client.put_object(Bucket="records", Key="a", Body=b"{}", IfNoneMatch="*")

    (request,) = seen
    assert request.url == "https://records.s3.oss-cn-wulanchabu.aliyuncs.com/a"
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers["x-oss-forbid-overwrite"] == b"true"
    assert "if-none-match" not in headers
    assert not [name for name in headers if "checksum" in name]
