"""The same run on Alibaba Cloud: every call goes through the official SDK to a server that speaks its RPC."""

import base64
import io
import json
import re
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

from gpu_fleet_image.providers.alicloud.session import PRODUCTS
from gpu_fleet_stacks import acceptance, catalog
from gpu_fleet_stacks.acceptance import plan, variant
from gpu_fleet_stacks.acceptance.alicloud import AlicloudAccount
from gpu_fleet_stacks.acceptance.alicloud_calls import ACTIONS, CALLS
from gpu_fleet_stacks.acceptance.command import Surroundings, accept
from gpu_fleet_stacks.acceptance.errors import NotReachableError
from gpu_fleet_stacks.clients.alicloud import Alicloud
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.settings import stack_files
from tests.image.alicloud_server import ENVIRON, serving
from tests.stacks.acceptance.pretend import BUCKETS, PretendClock, PretendCloud, room
from tests.stacks.alicloud_examples import pool, stack

ACCOUNT = "1234567890123456"
TYPE = "ecs.gn7i-c8g1.2xlarge"
STATES = {"running": "Running"}


def bucket_name(kind: str) -> str:
    return f"gpu-fleet-alicloud-dev-accept-{kind}-{ACCOUNT}"


class Rpc:
    """A pretended cloud as Alibaba Cloud's API shows it: released instances are not told of any more."""

    def __init__(self, cloud: PretendCloud) -> None:
        self.cloud = cloud
        self.commands: dict[str, str] = {}
        self.assistant = "true"
        self.groups: dict[str, dict[str, object]] = {}
        self.traffic = ["Standard"]
        self.inflow = {"flow": 120.5, "reaper": 3.0}

    def get_caller_identity(self, _):
        return {"AccountId": ACCOUNT}

    def describe_instances(self, ask):
        assert ask["Tag"] == [{"Key": "gpu-fleet:stack", "Value": "alicloud-dev-accept"}]
        rows = [self._described(instance) for instance in self.cloud.instances() if not instance.ended]
        start = int(ask.get("NextToken") or 0)
        more = {"NextToken": str(start + 1)} if start + 1 < len(rows) else {}
        return {"Instances": {"Instance": rows[start : start + 1]}, **more}

    def _described(self, instance):
        return {
            "InstanceId": instance.id,
            "InstanceType": instance.type,
            "Status": STATES[instance.state],
            "StartTime": f"{instance.launched_at:%Y-%m-%dT%H:%MZ}",
            "SpotStrategy": "SpotAsPriceGo" if instance.spot else "NoSpot",
            "Tags": {"Tag": [{"TagKey": key, "TagValue": value} for key, value in instance.tags.items()]},
        }

    def describe_cloud_assistant_status(self, ask):
        rows = [{"InstanceId": name, "CloudAssistantStatus": self.assistant} for name in ask["InstanceId"]]
        return {"InstanceCloudAssistantStatusSet": {"InstanceCloudAssistantStatus": rows}}

    def run_command(self, ask):
        sent = ask["Type"], ask["ContentEncoding"], ask["KeepCommand"]
        assert sent == ("RunShellScript", "Base64", "false")
        script = base64.b64decode(ask["CommandContent"]).decode()
        return {"InvokeId": self.cloud.run(ask["InstanceId"][0], script)}

    def describe_invocation_results(self, ask):
        said = self.cloud.said(ask["InvokeId"], ask["InstanceId"])
        row = {
            "InvocationStatus": "Success" if said.code == 0 else "Failed",
            "ExitCode": said.code,
            "Output": base64.b64encode(said.output.encode()).decode(),
        }
        return {"Invocation": {"InvocationResults": {"InvocationResult": [row]}}}

    def describe_metric_list(self, ask):
        assert ask["Namespace"] == f"acs_customMetric_{ACCOUNT}"
        assert ask["MetricName"] == "SecondsSinceActivity_alicloud_dev_accept"
        (wanted,) = json.loads(ask["Dimensions"])
        instance = wanted["dimension"].removeprefix("InstanceId=")
        box = self.cloud.boxes[instance]
        both = self.cloud.first_heartbeat, self.cloud.newest_heartbeat
        heard = {beat(instance, box.instance.launched_at) for beat in both} - {None}
        points = [{"timestamp": at.timestamp() * 1000, "dimension": wanted["dimension"]} for at in heard]
        return {"Code": "200", "Datapoints": json.dumps(points)}

    def describe_metric_last(self, ask):
        assert (ask["Namespace"], ask["MetricName"]) == ("acs_sls_dashboard", "LogInflow")
        (place,) = json.loads(ask["Dimensions"])
        assert place["project"] == f"gpu-fleet-alicloud-dev-accept-{place['logstore']}-{ACCOUNT}"
        points = [{**place, "timestamp": 0, "Average": self.inflow[place["logstore"]]}]
        return {"Code": "200", "Datapoints": json.dumps(points)}

    def describe_metric_rule_list(self, ask):
        assert ask["RuleName"] == "gpu-fleet-alicloud-dev-accept"
        return {"Alarms": {"Alarm": [{"RuleName": f"{ask['RuleName']}-actual-80"}]}}

    def tag_resources(self, ask):
        self.cloud.tag(ask["ResourceId"][0], {tag["Key"]: tag["Value"] for tag in ask["Tag"]})
        return {}

    def untag_resources(self, ask):
        self.cloud.untag(ask["ResourceId"][0], ask["TagKey"])
        return {}

    def describe_scaling_groups(self, ask):
        """https://www.alibabacloud.com/help/en/auto-scaling/developer-reference/api-describescalinggroups"""
        (group,) = ask["ScalingGroupIds"]
        own = {"SpotInstanceRemedy": True, "CapacityOptions": {}, "DesiredCapacity": 1}
        if group == "group-people":
            own = {"EnableDesiredCapacity": False, "DesiredCapacity": 0}
            own |= {"SuspendedProcesses": ["HealthCheck"]}
        return {"ScalingGroups": [{"LifecycleState": "Active"} | own | self.groups.get(group, {})]}

    def describe_scaling_configurations(self, _):
        modes = [{"NetworkInterfaceTrafficMode": mode} for mode in self.traffic]
        return {"ScalingConfigurations": [{"NetworkInterfaces": modes}]}

    def scale_with_adjustment(self, ask):
        assert (ask["AdjustmentType"], ask["AdjustmentValue"]) == ("QuantityChangeInCapacity", "1")
        self.cloud._start_if_room(ask["ScalingGroupId"].removeprefix("group-"))
        return {"ScalingActivityId": "asa-1"}

    def describe_scaling_activities(self, ask):
        return {"ScalingActivities": [{"StatusMessage": self.cloud.why_none(ask["ScalingGroupId"])}]}

    def delete_instances(self, ask):
        for key in ask["InstanceId"]:
            self.cloud._end(self.cloud.boxes[key])
        return {}

    def describe_disks(self, _):
        return {"Disks": {"Disk": []}}

    def describe_nat_gateways(self, _):
        rows = [{"NatGatewayId": "ngw-1", "Status": "Available"}] if self.cloud.stands else []
        return {"NatGateways": {"NatGateway": rows}}

    def describe_eip_addresses(self, _):
        return {"EipAddresses": {"EipAddress": []}}

    def list_tag_resources(self, ask):
        assert json.loads(ask["Tags"]) == {"gpu-fleet:stack": "alicloud-dev-accept"}
        arns = [f"arn:acs:kms:cn-shenzhen:{ACCOUNT}:key/k-1"]
        kinds = BUCKETS if self.cloud.stands else ()
        arns += [f"arn:acs:oss:cn-shenzhen:{ACCOUNT}:bucket/{bucket_name(kind)}" for kind in kinds]
        return {"TagResources": [{"ResourceARN": arn} for arn in arns]}

    def describe_key(self, ask):
        assert ask["KeyId"] == "k-1"
        return {"KeyMetadata": {"KeyState": self.cloud.key}}

    def schedule_key_deletion(self, ask):
        assert ask["PendingWindowInDays"] == "7"
        self.cloud.let_keys_go()
        return {}


class Oss:
    """The pretended cloud's objects as boto3 shows OSS."""

    def __init__(self, cloud: PretendCloud) -> None:
        self._cloud = cloud

    def _of(self, bucket: str) -> list[str]:
        return sorted(key for key in self._cloud.objects if key.startswith(f"s3://{bucket}/"))

    def list_objects_v2(self, Bucket, Prefix):  # noqa: N803 - boto3's
        found = self._cloud.keys(f"s3://{Bucket}/{Prefix}")
        return {"Contents": [{"Key": key, "LastModified": at} for key, at in found.items()]}

    def get_object(self, Bucket, Key):  # noqa: N803 - boto3's
        return {"Body": io.BytesIO(self._cloud.read(f"s3://{Bucket}/{Key}"))}

    def list_object_versions(self, Bucket, MaxKeys):  # noqa: N803 - boto3's
        if not self._cloud.stands:
            raise ClientError({"Error": {"Code": "NoSuchBucket", "Message": ""}}, "ListObjectVersions")
        rows = [{"Key": key, "VersionId": "1"} for key in self._of(Bucket)]
        return {"Versions": rows[:MaxKeys]}

    def list_multipart_uploads(self, Bucket):  # noqa: N803 - boto3's
        return {}

    def delete_object(self, Bucket, Key, VersionId):  # noqa: N803 - boto3's
        del self._cloud.objects[Key]
        return {}


class AlicloudCloud(PretendCloud):
    """What differs of a stack there."""

    def bucket(self, kind):
        return f"s3://{bucket_name(kind)}"

    def outputs(self):
        groups = super().outputs()["group_names"]
        uris = {kind: f"oss://{bucket_name(kind)}" for kind in BUCKETS}
        return {"group_names": groups, "group_ids": groups, "contact_group": "people", "bucket_uris": uris}


@pytest.fixture
def cloud():
    return AlicloudCloud(PretendClock(), interrupts_spot=False, kind=TYPE, made_empty=("people",))


@pytest.fixture
def account(cloud, monkeypatch):
    """(account, what answers it); its stack is the shipped one, with a rate for its budget."""
    rpc = Rpc(cloud)
    with serving(rpc) as server:
        asking = Alicloud("cn-shenzhen", ENVIRON, server.url.removeprefix("http://"))

        def made(stack, clock):
            return AlicloudAccount(stack, clock, asking, lambda region: Oss(cloud))

        yield made, rpc


@pytest.fixture
def rated(monkeypatch):
    def changed(path, config_of=stack_files.config_of):
        config = config_of(path)
        return config | {"gpu-fleet:budget": config["gpu-fleet:budget"] | {"cny_per_usd": 7.2}}

    monkeypatch.setattr(stack_files, "config_of", changed)


@pytest.fixture
def play(account, cloud, rated, tmp_path):
    made, _ = account

    def played(*arguments):
        world = Surroundings(
            account=made,
            engine=lambda name, log: cloud,
            clock=cloud.clock,
            look=room(cloud),
            stack_folder=tmp_path,
            evidence_folder=tmp_path / "evidence",
        )
        command = ["alicloud-dev", "--yes", "--max-usd", "40", "--unpriced-per-hour", "2", *arguments]
        result = CliRunner().invoke(accept, command, obj=world, catch_exceptions=False)
        (file,) = (tmp_path / "evidence").glob("*.json")
        return result, json.loads(file.read_text())

    return played


def test_the_whole_run_passes_with_the_stop_file_and_leaves_nothing(play, cloud):
    result, evidence = play()
    calls = [call for step in evidence["steps"] for call in step["calls"]]

    assert result.exit_code == 0, result.output
    assert [step["name"] for step in evidence["steps"]] == [*[step.name for step in plan.STEPS], "tear-down"]
    assert {step["status"] for step in evidence["steps"]} == {"ok"}
    assert "this cloud has no way to ask for a spot interruption" in evidence["notes"][0]
    assert evidence["currency"] == "CNY"
    assert cloud.key == "PendingDeletion"
    assert not cloud.stands
    asked = {call["name"].split(".")[0] for call in calls}
    unanswered = {call["name"] for call in calls if not call["request_id"] and not call["error"]}
    assert asked == {"cms", "ecs", "ess", "kms", "oss", "tag", "vpc"}
    assert all(call["doc"] == CALLS[call["name"]] for call in calls)
    assert all(name.startswith("oss.") for name in unanswered)


ODD = {
    "group-people": {"EnableDesiredCapacity": True, "SuspendedProcesses": [], "LifecycleState": "Inactive"},
    "group-spot": {"SpotInstanceRemedy": False, "CapacityOptions": {"SpotAutoReplaceOnDemand": True}},
}
NOT_AS_ASKED = (
    "group-people: EnableDesiredCapacity True, asked False",
    "group-people: HealthCheck suspended False, asked True",
    "group-people: LifecycleState Inactive, asked Active",
    "group-spot: SpotInstanceRemedy False, asked True",
    "group-spot: SpotAutoReplaceOnDemand True, asked False",
)


def test_groups_that_are_not_as_asked_and_a_log_store_that_takes_no_lines_fail_the_run(play, account):
    """A role that cannot use the store's own key shows nowhere else: the store is made all the same."""
    _, rpc = account
    rpc.groups |= ODD
    rpc.inflow["reaper"] = 0

    result, evidence = play()

    observed = {step["name"]: step["observed"] for step in evidence["steps"]}
    assert result.exit_code == 1
    assert [words for words in NOT_AS_ASKED if words not in observed["groups"]] == []
    assert "something in every log store: not seen" in observed["logs"]
    assert evidence["steps"][-1]["status"] == "ok", "torn down all the same"


NONE = {"min": 0, "desired": 0, "max": 1}


def test_an_erdma_pool_is_held_to_its_interface(account, cloud):
    made, rpc = account
    pools = [pool(name="people", types=["ecs.gn8v-8x.48xlarge"], erdma=True, size=NONE)]

    for traffic, kept in (("HighPerformance", True), ("Standard", False)):
        rpc.traffic = [traffic]
        found = made(stack(pools=pools), cloud.clock).kept({"people": ["group-people"]})
        (row,) = [row for row in found if row.setting == "NetworkInterfaceTrafficMode"]
        assert (row.asked == row.actual) is kept


def test_a_stack_with_erdma_has_it_proven_where_the_type_can():
    cluster = stack(pools=[pool(name="cluster", types=["ecs.gn8v-8x.48xlarge"], erdma=True)])

    for kind, erdma in (("ecs.gn8is.2xlarge", True), (TYPE, False)):
        people, spot = variant.pools(cluster, catalog.load().find(kind))
        assert (people.get("erdma", False), spot.get("erdma", False)) == (erdma, False)
        assert people["size"] == NONE


def test_a_group_without_capacity_is_reported_in_the_words_of_the_cloud(play, cloud):
    cloud.broken = {"no capacity spot"}
    result, evidence = play()

    (failed,) = [step["observed"] for step in evidence["steps"] if step["status"] == "failed"]
    assert result.exit_code == 1
    assert "group-spot: InsufficientInstanceCapacity" in failed
    assert not cloud.stands


def test_a_plan_without_a_rate_or_a_published_price_is_refused_with_what_to_set(request):
    without_rate = CliRunner().invoke(accept, ["alicloud-dev"])
    request.getfixturevalue("rated")
    unpriced = CliRunner().invoke(accept, ["alicloud-dev", "--max-usd", "40"])

    assert (without_rate.exit_code, unpriced.exit_code) == (1, 1)
    assert "set budget.cny_per_usd in the stack file" in without_rate.output
    assert "no public price is known for nat_gateway" in unpriced.output


def test_an_instance_whose_assistant_is_silent_takes_no_commands_yet(account, cloud, rated):
    made, rpc = account
    rpc.assistant = "false"

    with pytest.raises(NotReachableError, match="does not answer yet"):
        made(stack_files.settings_of("alicloud-dev"), cloud.clock).run("i-1", "true")


def test_a_refusal_keeps_the_code_of_the_cloud(cloud, rated):
    asked = AlicloudAccount(stack_files.settings_of("alicloud-dev"), cloud.clock, Alicloud("cn-shenzhen", {}))

    with pytest.raises(CannotCheckError, match="no credentials"):
        asked.identity()
    assert asked.calls[-1].error == "NoAnswer"


def test_the_modules_ask_for_what_is_in_the_table_with_the_page_of_its_documented_version():
    source = "\n".join(path.read_text() for path in Path(acceptance.__path__[0]).glob("alicloud*.py"))
    asked = set(re.findall(r'"((?:cms|ecs|ess|kms|sts|tag|vpc)\.[A-Z]\w+)"', source))
    pages = {}
    for name in (name for name in CALLS if not name.startswith("oss.")):
        product, action = (name[0].upper() + name[1:]).split(".")
        version = PRODUCTS[product][0]
        pages[name] = f"https://api.alibabacloud.com/document/{product}/{version}/{action}"

    assert asked == {f"{product}.{name}" for product, names in ACTIONS.items() for name in names}
    assert {name: CALLS[name] for name in pages} == pages
