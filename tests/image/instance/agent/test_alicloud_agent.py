"""The agent on Alibaba Cloud: heartbeats, notices, the sweep's mark, the hook."""

import json
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from gpu_fleet_image.core import instance_file, paths
from gpu_fleet_image.core.alicloud_credentials import Credentials
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.metrics import CODE_UNFIT
from gpu_fleet_image.core.model import TAG_REAP_AFTER
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.instance.agent import alicloud as alicloud_agent
from gpu_fleet_image.instance.agent import aws as aws_agent
from gpu_fleet_image.instance.agent.alicloud import CloudMonitor, Notices
from gpu_fleet_image.instance.agent.notices import Notice
from gpu_fleet_image.instance.agent.publish import Publisher, heartbeat
from gpu_fleet_image.providers.alicloud.lifecycle import Hook
from tests.image.alicloud_server import ENVIRON, RefusedError, clients, serving
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.metadata_server import metadata_server
from tests.image.programs import running
from tests.image.samples import NOON, judgement
from tests.ran import ran

INSTANCE = "i-1"
SPOT_TIME = "instance/spot/termination-time"


class OneInstance:
    def __init__(self):
        self.state, self.tags, self.strategy = "InService", {}, "NoSpot"
        self.leaving = [INSTANCE]
        self.prolonged, self.released, self.metrics = [], [], []

    def describe_scaling_instances(self, ask):
        assert ask["InstanceIds"] == [INSTANCE]
        row = {"ScalingGroupId": "asg-1", "InstanceId": INSTANCE, "LifecycleState": self.state}
        return {"ScalingInstances": [row] if self.state else [], "TotalCount": 1}

    def describe_instances(self, ask):
        tags = [{"TagKey": key, "TagValue": value} for key, value in self.tags.items()]
        row = {"InstanceId": INSTANCE, "Tags": {"Tag": tags}, "SpotStrategy": self.strategy}
        return {"Instances": {"Instance": [row]}}

    def set_instances_protection(self, ask):
        assert (ask["ScalingGroupId"], ask["InstanceIds"]) == ("asg-1", [INSTANCE])
        assert ask["ProtectedFromScaleIn"] == "true"
        self.state = "Protected"
        return {}

    def describe_scaling_activities(self, ask):
        assert (ask["ScalingGroupId"], ask["StatusCode"]) == ("asg-1", "InProgress")
        return {"ScalingActivities": [{"ScalingActivityId": "asa-1"}]}

    def describe_lifecycle_actions(self, ask):
        own = {"LifecycleHookId": "ash-1", "LifecycleActionToken": "token", "InstanceIds": self.leaving}
        other = {"LifecycleHookId": "ash-1", "LifecycleActionToken": "other", "InstanceIds": ["i-2"]}
        return {"LifecycleActions": [other, own]}

    def complete_lifecycle_action(self, ask):
        names = ("LifecycleHookId", "LifecycleActionToken", "LifecycleActionResult")
        self.released.append(tuple(ask[name] for name in names))
        return {}

    def record_lifecycle_action_heartbeat(self, ask):
        self.prolonged.append((ask["lifecycleHookId"], ask["lifecycleActionToken"]))
        return {}

    def put_custom_metric(self, ask):
        self.metrics += ask["MetricList"]
        return {"Code": "200"}


@pytest.fixture
def cloud():
    with serving(OneInstance()) as server:
        yield server


@pytest.fixture
def metadata(monkeypatch):
    with metadata_server("alicloud") as server:
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", server.base)
        yield server


@pytest.fixture
def listening(cloud, metadata):
    """Return the agent's listener for notices, with a clock that stands still."""
    made = SimpleNamespace(now=NOON)
    made.notices = Notices(Metadata("alicloud"), clients(cloud), INSTANCE, lambda: made.now)
    made.find, made.mark = made.notices.find, made.notices.mark
    return made


def refuse(_):
    raise RefusedError("Forbidden.RAM", 403)


def test_an_instance_is_drained_once_its_group_terminates_it(cloud, listening):
    found = {}
    for cloud.actions.state in ("InService", "Removing", "Removing:Wait"):
        listening.now += timedelta(minutes=2)
        found[cloud.actions.state] = listening.find()

    leaves = Notice("the scaling group terminates this instance")
    assert found == {"Protected": None, "Removing": leaves, "Removing:Wait": leaves}
    assert listening.mark() is None


def test_a_spot_notice_says_until_when_with_no_further_call_or_is_reported(cloud, metadata, listening):
    metadata.says(SPOT_TIME, "2026-11-21T12:05:00Z")

    notice = Notice("spot interruption of this instance: terminate", NOON + timedelta(minutes=5))
    assert listening.find() == notice
    assert not cloud.asked, "a cloud that does not answer hides none"
    metadata.says(SPOT_TIME, "soon")
    with pytest.raises(CloudError, match="termination-time: 'soon' cannot be read"):
        listening.find()


def test_the_cloud_is_asked_for_group_and_mark_every_two_minutes_and_for_protection_once(cloud, listening):
    """The metadata service is asked each time."""
    cloud.actions.tags = {TAG_REAP_AFTER: format_time(NOON)}
    for _ in range(25):  # two minutes, every five seconds
        listening.find()
        listening.now += timedelta(seconds=5)

    assert cloud.asked["DescribeScalingInstances"] == cloud.asked["DescribeInstances"] == 2
    assert (cloud.actions.state, cloud.asked["SetInstancesProtection"]) == ("Protected", 1)
    assert listening.mark() == NOON
    cloud.actions, listening.now = None, listening.now + timedelta(minutes=2)
    with pytest.raises(CloudError):  # a cloud that does not answer says nothing
        listening.find()


def test_an_instance_of_the_spot_market_is_left_to_it(cloud, listening):
    cloud.actions.strategy = "SpotAsPriceGo"

    listening.find()

    assert cloud.actions.state == "InService"


def test_a_group_that_refuses_protection_is_reported_and_hides_no_mark(cloud, listening, caplog):
    cloud.actions.set_instances_protection = refuse
    cloud.actions.tags = {TAG_REAP_AFTER: format_time(NOON)}

    assert listening.find() is None
    assert listening.mark() == NOON
    assert "event=not-protected group=asg-1" in caplog.text


def test_the_hook_is_prolonged_and_completed_by_its_own_token_which_no_other_instance_shares(cloud):
    hook = Hook(clients(cloud).ess, INSTANCE)

    hook.heartbeat()
    hook.complete()

    assert cloud.actions.prolonged == [("ash-1", "token")]
    assert cloud.actions.released == [("ash-1", "token", "CONTINUE")]
    for name, value, said in (
        ("leaving", [INSTANCE, "i-2"], "1 other instances share its token"),
        ("state", "", "i-1 is in no scaling group"),
    ):
        setattr(cloud.actions, name, value)
        with pytest.raises(CloudError, match=said):
            Hook(clients(cloud).ess, INSTANCE).complete()
    assert len(cloud.actions.released) == 1


def test_a_heartbeat_names_instance_and_stack_as_sweep_and_alarms_look_for_them_or_is_reported(cloud, caplog):
    """Alarms of Auto Scaling cannot use a metric of group 0, where the sweep reads everything else."""
    publisher = Publisher(CloudMonitor(clients(cloud).cms, "alicloud-dev", "4711"), "", batched=False)

    publisher.add(heartbeat(judgement(idle_s=600.0, gpu_memory_used_percent=50.0), INSTANCE, "dev"), NOON)

    sent = {
        (metric["MetricName"], metric["Dimensions"], metric["GroupId"]): json.loads(metric["Values"])["value"]
        for metric in cloud.actions.metrics
    }
    assert sent == {
        ("SecondsSinceActivity_alicloud_dev", '{"InstanceId": "i-1"}', "0"): 600.0,
        ("ActiveFraction_alicloud_dev", '{"InstanceId": "i-1"}', "0"): 0.0,
        ("GpuMemoryUsedPercent_alicloud_dev", '{"InstanceId": "i-1"}', "0"): 50.0,
        ("GpuMemoryUsedPercent", '{"Pool": "dev", "Stack": "alicloud-dev"}', "4711"): 50.0,
    }
    assert all("Time" not in metric for metric in cloud.actions.metrics), "the time of receipt counts"
    cloud.actions.put_custom_metric = refuse
    publisher.add(heartbeat(judgement(), INSTANCE, "dev"), NOON)
    assert "event=heartbeat-lost" in caplog.text


@pytest.fixture
def environment(cloud, metadata, tmp_path):
    text = INSTANCE_TOML.replace('"aws"', '"alicloud"\nmonitor_group = "4711"').replace("s3:", "oss:")
    (tmp_path / "instance.toml").write_text(text.replace("aws-dev", "alicloud-dev"))
    (tmp_path / "run").mkdir(mode=0o755)
    return {
        **ENVIRON,
        "GPU_FLEET_ALICLOUD_ENDPOINT": cloud.url,
        "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT": metadata.base,
        "GPU_FLEET_INSTANCE_FILE": str(tmp_path / "instance.toml"),
        "GPU_FLEET_RUN_DIR": str(tmp_path / "run"),
    }


@pytest.fixture
def agent_cloud(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return alicloud_agent.AgentCloud(instance_file.load(paths.instance_file()), Metadata("alicloud"))


def test_an_instance_reaches_its_bucket_inside_the_network_and_the_group_that_its_file_names(agent_cloud):
    assert agent_cloud.bucket().meta.endpoint_url == "https://s3.oss-us-east-1-internal.aliyuncs.com"
    assert agent_cloud.metrics()._group == "4711"


@pytest.mark.parametrize("takes", [True, False])
def test_an_instance_that_was_started_without_tokens_asks_for_them_or_says_that_it_cannot(
    cloud, metadata, agent_cloud, caplog, takes
):
    """An instance that requires tokens already does not change."""
    hardened = []
    if takes:
        cloud.actions.modify_instance_metadata_options = lambda ask: hardened.append(ask["HttpTokens"]) or {}

    agent_cloud.harden(Metadata("alicloud"), INSTANCE)
    assert not cloud.asked
    metadata.open = True
    agent_cloud.harden(Metadata("alicloud"), INSTANCE)

    assert hardened == (["required"] if takes else [])
    assert ("event=metadata-not-hardened" in caplog.text) is not takes


def test_an_instance_s_keys_are_its_role_s_and_new_before_they_end(metadata):
    metadata.says("ram/security-credentials/", "role")
    now, key_ids = NOON, []
    keys = {"AccessKeySecret": "s", "SecurityToken": "t", "Expiration": "2026-11-21T18:00:00Z"}
    credentials = Credentials({}, Metadata("alicloud"), lambda: now)

    for key_id, minutes in (("STS.1", 0), ("STS.2", 0), ("STS.2", 355)):
        metadata.says("ram/security-credentials/role", json.dumps({"AccessKeyId": key_id} | keys))
        now = NOON + timedelta(minutes=minutes)
        key_ids.append(credentials.current().key_id)

    assert key_ids == ["STS.1", "STS.1", "STS.2"]


def test_the_environment_s_keys_come_first_and_an_instance_without_any_says_so(metadata):
    keys = Credentials(ENVIRON, None).current()

    assert keys.key_id == "made-up"
    assert "made-up" not in repr(keys).replace("key_id='made-up'", "")
    with pytest.raises(ConfigurationError, match="no RAM role"):
        Credentials({}, Metadata("alicloud")).current()
    metadata.says("ram/security-credentials/", "role")
    metadata.says("ram/security-credentials/role", "{}")
    with pytest.raises(CloudError, match="cannot be read"):
        Credentials({}, Metadata("alicloud")).current()


def test_what_the_gate_itself_failed_reaches_the_cloud_in_every_heartbeat(cloud, environment, tmp_path):
    """Run the gate's own program on an instance without its GPU, and then the agent for half an hour."""

    def run(*words):
        return ran([sys.executable, "-m", *words], env=environment, timeout=120)

    gate = run("gpu_fleet_image.instance.gate")
    with running("sleep", "600") as process:
        watched = ("--watch-pid", str(process.pid), "--clock-speed", "3600", "--duration", "1800")
        agent = run("gpu_fleet_image.console", "agent", *watched)

    name = "SecondsSinceActivity_alicloud_dev"
    own = [metric for metric in cloud.actions.metrics if metric["MetricName"] == name]
    assert (gate.returncode, agent.returncode) == (1, 0), agent.stderr
    assert not json.loads((tmp_path / "run/ready.json").read_text())["checks"]["gpu_count"]["ok"]
    assert {metric["Dimensions"] for metric in own} == {'{"InstanceId": "i-1"}'}
    assert [json.loads(metric["Values"])["value"] for metric in own] == [CODE_UNFIT] * 30


def test_the_agent_s_cloud_has_what_aws_s_has():
    def public(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(alicloud_agent.AgentCloud) == public(aws_agent.AgentCloud)
