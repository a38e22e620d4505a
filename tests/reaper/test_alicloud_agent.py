"""The agent on Alibaba Cloud: heartbeats, notices, the sweep's mark, the hook."""

import json
import subprocess
import sys
from datetime import timedelta

import pytest

from image.instance import instance_file
from image.instance.alicloud_credentials import Credentials
from image.instance.instance_file import load
from image.instance.metadata import Metadata
from image.reaper.agent.notices import Notice
from image.reaper.agent.publish import Publisher, heartbeat
from image.reaper.alicloud import agent as alicloud_agent
from image.reaper.alicloud.agent import CloudMonitor, Notices
from image.reaper.alicloud.lifecycle import Hook
from image.reaper.aws import agent as aws_agent
from image.reaper.errors import CloudError, ConfigurationError
from image.reaper.metrics import CODE_UNFIT
from image.reaper.model import TAG_REAP_AFTER
from image.reaper.times import format_time
from tests.reaper.alicloud_server import ENVIRON, RefusedError, clients, serving
from tests.reaper.instance_toml import INSTANCE_TOML
from tests.reaper.metadata_server import metadata_server
from tests.reaper.samples import NOON, judgement

INSTANCE = "i-1"


class OneInstance:
    """What the cloud knows of one instance of a group."""

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
        self.released.append(
            (ask["LifecycleHookId"], ask["LifecycleActionToken"], ask["LifecycleActionResult"])
        )
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


class Listening:
    """The agent's ear, with a clock that stands still."""

    def __init__(self, cloud):
        self.now = NOON
        self.notices = Notices(Metadata("alicloud"), clients(cloud), INSTANCE, lambda: self.now)


def test_an_instance_in_service_without_a_mark_hears_nothing(cloud, metadata):
    listening = Listening(cloud)

    assert listening.notices.find() is None
    assert listening.notices.mark() is None


def test_a_spot_notice_says_until_when_with_no_further_call(cloud, metadata):
    metadata.says("instance/spot/termination-time", "2026-11-21T12:05:00Z")

    notice = Listening(cloud).notices.find()

    assert notice == Notice("spot interruption of this instance: terminate", NOON + timedelta(minutes=5))
    assert not cloud.asked


def test_a_spot_notice_that_cannot_be_read_is_reported(cloud, metadata):
    metadata.says("instance/spot/termination-time", "soon")

    with pytest.raises(CloudError, match="termination-time: 'soon' cannot be read"):
        Listening(cloud).notices.find()


@pytest.mark.parametrize("state", ["Removing", "Removing:Wait"])
def test_an_instance_that_its_group_terminates_is_drained(cloud, metadata, state):
    cloud.actions.state = state

    assert Listening(cloud).notices.find() == Notice("the scaling group terminates this instance")


def test_the_sweep_s_mark_is_read_from_the_instance_s_tags(cloud, metadata):
    cloud.actions.tags = {TAG_REAP_AFTER: format_time(NOON)}
    listening = Listening(cloud)

    listening.notices.find()

    assert listening.notices.mark() == NOON


def test_the_cloud_is_asked_every_two_minutes_the_metadata_service_each_time(cloud, metadata):
    listening = Listening(cloud)
    for _ in range(25):  # two minutes, every five seconds
        listening.notices.find()
        listening.now += timedelta(seconds=5)

    assert cloud.asked["DescribeScalingInstances"] == cloud.asked["DescribeInstances"] == 2


def test_an_instance_has_its_group_protect_it_once(cloud, metadata):
    listening = Listening(cloud)

    for _ in range(3):
        listening.notices.find()
        listening.now += timedelta(minutes=2)

    assert cloud.actions.state == "Protected"
    assert cloud.asked["SetInstancesProtection"] == 1


def test_an_instance_of_the_spot_market_is_left_to_it(cloud, metadata):
    cloud.actions.strategy = "SpotAsPriceGo"

    Listening(cloud).notices.find()

    assert cloud.actions.state == "InService"


def test_a_group_that_refuses_protection_is_reported_and_hides_no_mark(cloud, metadata, caplog):
    def refuse(_):
        raise RefusedError("Forbidden.RAM", 403)

    cloud.actions.set_instances_protection = refuse
    cloud.actions.tags = {TAG_REAP_AFTER: format_time(NOON)}
    listening = Listening(cloud)

    assert listening.notices.find() is None
    assert listening.notices.mark() == NOON
    assert "event=not-protected group=asg-1" in caplog.text


def test_a_cloud_that_does_not_answer_hides_no_spot_notice(cloud, metadata):
    cloud.actions = None
    listening = Listening(cloud)
    with pytest.raises(CloudError):
        listening.notices.find()
    metadata.says("instance/spot/termination-time", "2026-11-21T12:05:00Z")

    assert listening.notices.find() is not None


def test_the_hook_is_completed_and_its_timeout_begins_anew_by_its_own_token(cloud):
    hook = Hook(clients(cloud).ess, INSTANCE)
    hook.heartbeat()
    hook.complete()

    assert cloud.actions.prolonged == [("ash-1", "token")]
    assert cloud.actions.released == [("ash-1", "token", "CONTINUE")]


def test_a_token_that_other_instances_hang_on_is_left_alone(cloud):
    cloud.actions.leaving = [INSTANCE, "i-2"]

    with pytest.raises(CloudError, match="1 other instances leave by the same token"):
        Hook(clients(cloud).ess, INSTANCE).complete()

    assert cloud.actions.released == []


def test_an_instance_of_no_group_has_no_hook(cloud):
    cloud.actions.state = ""

    with pytest.raises(CloudError, match="i-1 is in no scaling group"):
        Hook(clients(cloud).ess, INSTANCE).complete()


def test_a_heartbeat_names_instance_and_stack_as_sweep_and_alarms_look_for_them(cloud):
    """Alarms of Auto Scaling know no metric of group 0; the sweep reads everything else there."""
    publisher = Publisher(CloudMonitor(clients(cloud).cms, "alicloud-dev", "4711"), "", batched=False)

    publisher.add(heartbeat(judgement(idle_s=600.0, gpu_memory_used_percent=50.0), INSTANCE, "dev"), NOON)

    sent = {
        (metric["MetricName"], metric["Dimensions"]): json.loads(metric["Values"])["value"]
        for metric in cloud.actions.metrics
    }
    assert sent == {
        ("SecondsSinceActivity_alicloud_dev", '{"InstanceId": "i-1"}'): 600.0,
        ("ActiveFraction_alicloud_dev", '{"InstanceId": "i-1"}'): 0.0,
        ("GpuMemoryUsedPercent_alicloud_dev", '{"InstanceId": "i-1"}'): 50.0,
        ("GpuMemoryUsedPercent", '{"Pool": "dev", "Stack": "alicloud-dev"}'): 50.0,
    }
    assert all("Time" not in metric for metric in cloud.actions.metrics), "the time of receipt counts"
    groups = {metric["MetricName"]: metric["GroupId"] for metric in cloud.actions.metrics}
    assert groups.pop("GpuMemoryUsedPercent") == "4711"
    assert set(groups.values()) == {"0"}


def test_the_application_group_is_what_the_instance_file_names(tmp_path):
    path = tmp_path / "instance.toml"
    path.write_text(INSTANCE_TOML.replace('cloud = "aws"', 'cloud = "alicloud"\nmonitor_group = "4711"'))

    assert load(path).monitor_group == "4711"


def test_a_heartbeat_that_is_refused_is_reported_and_dropped(cloud, caplog):
    def refuse(_):
        raise RefusedError("Forbidden.RAM", 403)

    cloud.actions.put_custom_metric = refuse
    publisher = Publisher(CloudMonitor(clients(cloud).cms, "s"), "", batched=False)

    publisher.add(heartbeat(judgement(), INSTANCE, "dev"), NOON)

    assert "event=heartbeat-lost" in caplog.text


@pytest.fixture
def agent_cloud(cloud, metadata, monkeypatch, tmp_path):
    for name, value in {**ENVIRON, "GPU_FLEET_ALICLOUD_ENDPOINT": cloud.url}.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "instance.toml"
    path.write_text(INSTANCE_TOML.replace('"aws"', '"alicloud"'))
    return alicloud_agent.AgentCloud(instance_file.load(path), Metadata("alicloud"))


def test_an_instance_reaches_its_bucket_inside_the_network(agent_cloud):
    assert agent_cloud.bucket().meta.endpoint_url == "https://s3.oss-us-east-1-internal.aliyuncs.com"


@pytest.mark.parametrize("is_open", [False, True])
def test_an_instance_that_was_started_without_tokens_asks_for_them_from_now_on(
    cloud, metadata, agent_cloud, caplog, is_open
):
    metadata.open, hardened = is_open, []
    cloud.actions.modify_instance_metadata_options = lambda ask: hardened.append(ask["HttpTokens"]) or {}

    agent_cloud.harden(Metadata("alicloud"), INSTANCE)

    assert hardened == (["required"] if is_open else [])
    assert "event=metadata-not-hardened" not in caplog.text


def test_an_instance_that_cannot_be_hardened_says_so_and_continues(metadata, agent_cloud, caplog):
    metadata.open = True

    agent_cloud.harden(Metadata("alicloud"), INSTANCE)

    assert "event=metadata-not-hardened" in caplog.text


ROLE = {
    "AccessKeyId": "STS.1",
    "AccessKeySecret": "s",
    "SecurityToken": "t",
    "Expiration": "2026-11-21T18:00:00Z",
}


def test_an_instance_s_keys_are_its_role_s_and_new_before_they_end(metadata):
    metadata.says("ram/security-credentials/", "gpu-fleet-role")
    metadata.says("ram/security-credentials/gpu-fleet-role", json.dumps(ROLE))
    now = NOON
    credentials = Credentials({}, Metadata("alicloud"), lambda: now)
    assert credentials.current().key_id == "STS.1"
    metadata.says("ram/security-credentials/gpu-fleet-role", json.dumps(ROLE | {"AccessKeyId": "STS.2"}))
    assert credentials.current().key_id == "STS.1"

    now = NOON + timedelta(hours=5, minutes=55)

    assert credentials.current().key_id == "STS.2"


def test_the_environment_s_keys_come_first():
    keys = Credentials(ENVIRON, None).current()

    assert keys.key_id == "made-up"
    assert "made-up" not in repr(keys).replace("key_id='made-up'", "")


def test_an_instance_without_a_role_or_with_keys_that_cannot_be_read_says_so(metadata):
    with pytest.raises(ConfigurationError, match="no RAM role"):
        Credentials({}, Metadata("alicloud")).current()
    metadata.says("ram/security-credentials/", "role")
    metadata.says("ram/security-credentials/role", "{}")

    with pytest.raises(CloudError, match="cannot be read"):
        Credentials({}, Metadata("alicloud")).current()


def environment(cloud, metadata, folder):
    """What a program of the instance is started with."""
    text = (
        INSTANCE_TOML.replace('"aws"', '"alicloud"').replace("aws-dev", "alicloud-dev").replace("s3:", "oss:")
    )
    (folder / "instance.toml").write_text(text)
    (folder / "run").mkdir(mode=0o755)
    return {
        **ENVIRON,
        "GPU_FLEET_ALICLOUD_ENDPOINT": cloud.url,
        "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT": metadata.base,
        "GPU_FLEET_INSTANCE_FILE": str(folder / "instance.toml"),
        "GPU_FLEET_RUN_DIR": str(folder / "run"),
    }


def heartbeats_of_half_an_hour(cloud, environment):
    """Seconds since the last activity, as a real agent publishes them of a program that does nothing."""
    sleeper = subprocess.Popen(["sleep", "600"])
    command = [sys.executable, "-m", "image.reaper", "agent", "--watch-pid", str(sleeper.pid)]
    try:
        ended = subprocess.run(
            [*command, "--clock-speed", "1200", "--duration", "1800"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        sleeper.kill()
        sleeper.wait()
    assert ended.returncode == 0, ended.stderr
    own = [
        metric
        for metric in cloud.actions.metrics
        if metric["MetricName"] == "SecondsSinceActivity_alicloud_dev"
    ]
    assert {datum["Dimensions"] for datum in own} == {'{"InstanceId": "i-1"}'}
    return [json.loads(datum["Values"])["value"] for datum in own]


def test_what_the_gate_itself_failed_reaches_the_cloud_in_every_heartbeat(cloud, metadata, tmp_path):
    """The gate's own program, on an instance whose GPU is not there; then the agent's."""
    given = environment(cloud, metadata, tmp_path)
    gate = subprocess.run(
        [sys.executable, "-m", "image.readiness"], env=given, capture_output=True, check=False
    )
    assert gate.returncode == 1
    assert not json.loads((tmp_path / "run/ready.json").read_text())["checks"]["gpu_count"]["ok"]

    assert heartbeats_of_half_an_hour(cloud, given) == [CODE_UNFIT] * 30


def test_the_agent_s_cloud_has_what_aws_s_has():
    own, other = (
        {name for name in vars(module.AgentCloud) if not name.startswith("_")}
        for module in (alicloud_agent, aws_agent)
    )

    assert own == other
