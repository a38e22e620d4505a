"""`gpu-fleet destroy` of an Alibaba Cloud stack: a server of this computer answers its calls."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import CliRunner

from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.teardown import command
from gpu_fleet_stacks.teardown.alicloud import connect
from gpu_fleet_stacks.teardown.command import destroy
from tests.stacks.alicloud_account import Account, Refusal, serving
from tests.stacks.alicloud_programs import shipped
from tests.stacks.teardown import pulumi_stand_in
from tests.stacks.teardown.pulumi_stand_in import excluded

NAME, ACCOUNT_ID = "alicloud-dev", "1234567890123456"
TAGS = {"gpu-fleet:pool": "dev", "gpu-fleet:managed": "true"}
KEY, BUCKET = "alicloud:kms/key:Key", "alicloud:oss/bucket:Bucket"
GROUP = "alicloud:ess/scalingGroup:ScalingGroup"


# API DescribeScalingGroups (2022-02-22): whether a group expects a number is a field of its own.
EXPECTS = {"EnableDesiredCapacity": True, "DesiredCapacity": 1}
EXPECTS_NONE = {"EnableDesiredCapacity": False, "DesiredCapacity": 0}


@dataclass
class World:
    """State of the fake cloud.

    Attributes:
        groups: group id -> ids of its instances.
        states: instance id -> status.
        protected: instances that their group must not terminate.
        tags: instance id -> more tags.
        snapshots: id -> key.
        pending: keys with a scheduled deletion.
    """

    rehearsed: Rehearsed
    groups: dict[str, list[str]]
    states: dict[str, str] = field(default_factory=dict)
    protected: set[str] = field(default_factory=set)
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    capacity: dict[str, Any] = field(default_factory=lambda: EXPECTS)
    guarded: bool = False

    def answers(self) -> dict[str, Any]:
        files = [{"MeteredSize": 3 * 2**30, "Capacity": 100}]
        return {
            "GetCallerIdentity": {"AccountId": ACCOUNT_ID},
            "DescribeInstances": self._instances,
            "DescribeScalingInstances": self._members,
            "DescribeScalingGroups": lambda _: {"ScalingGroups": [self.capacity]},
            "SetInstancesProtection": self._unprotect,
            "ModifyScalingGroup": self._modify,
            "DeleteInstances": self._delete,
            "DescribeFileSystems": {"FileSystems": {"FileSystem": files}},
            "DescribeSnapshots": self._snapshots,
            "DescribeImages": {"TotalCount": 0, "Images": {"Image": []}},
            "DescribeDisks": {"Disks": {"Disk": []}},
            "DescribeKey": self._key,
            "ScheduleKeyDeletion": self._schedule,
            "SetDeletionProtection": self._lift,
        }

    def _instances(self, asked):
        assert (asked["Tag.1.Key"], asked["Tag.1.Value"]) == ("gpu-fleet:stack", NAME)
        assert "Tag.2.Key" not in asked
        shown = {"InstanceType": "ecs.gn7i-c8g1.2xlarge", "CreationTime": "2026-11-01T08:00Z"}
        found = []
        for name, status in self.states.items():
            tags = TAGS | self.tags.get(name, {})
            listed = [{"TagKey": key, "TagValue": value} for key, value in tags.items()]
            found.append(shown | {"InstanceId": name, "Status": status, "Tags": {"Tag": listed}})
        return {"Instances": {"Instance": found}}

    def _snapshots(self, _):
        found = [{"SnapshotId": snapshot, "KMSKeyId": key} for snapshot, key in self.snapshots.items()]
        return {"Snapshots": {"Snapshot": found}}

    def _members(self, asked):
        rows = [
            {"InstanceId": group, "LifecycleState": "Protected" if group in self.protected else "InService"}
            for group in self.groups[asked["ScalingGroupId"]]
        ]
        return {"TotalCount": len(rows), "ScalingInstances": rows}

    def _unprotect(self, asked):
        assert asked["ProtectedFromScaleIn"] == "false"
        self.protected -= {value for key, value in asked.items() if key.startswith("InstanceIds.")}
        return {}

    def _modify(self, asked):
        expected = "0" if self.capacity["EnableDesiredCapacity"] else None
        assert (asked["MinSize"], asked["MaxSize"], asked.get("DesiredCapacity")) == ("0", "0", expected)
        members = self.groups[asked["ScalingGroupId"]]
        for item in [member for member in members if member not in self.protected]:
            members.remove(item)
            del self.states[item]
        return {}

    def _delete(self, asked):
        ids = [value for key, value in asked.items() if key.startswith("InstanceId.")]
        if any(self.states[instance_id] != "Stopped" for instance_id in ids):
            return Refusal("IncorrectInstanceStatus", "not stopped")
        for each_instance_id in ids:
            del self.states[each_instance_id]
        return {}

    def _key(self, asked):
        state = "PendingDeletion" if asked["KeyId"] in self.pending else "Enabled"
        guard = {"Arn": "acs:kms:key", "DeletionProtection": "Enabled" if self.guarded else "Disabled"}
        return {"KeyMetadata": {"KeyState": state} | guard}

    def _lift(self, asked):
        assert asked["ProtectedResourceArn"] == "acs:kms:key"
        self.guarded = asked["EnableDeletionProtection"] == "true"
        return {}

    def _schedule(self, asked):
        if self.guarded:  # API ScheduleKeyDeletion, error codes
            return Refusal("Rejected.DeletionProtected", "deletion protection is on")
        self.pending[asked["KeyId"]] = asked["PendingWindowInDays"]
        return {}


@dataclass
class Fleet:
    world: World
    account: Account
    state: Path
    s3: Any

    def run(self, *arguments: str):
        return CliRunner().invoke(destroy, [NAME, *arguments])

    def destroy(self, *arguments: str):
        done = self.run(*arguments)
        assert done.exit_code == 0, done.output
        return done

    def of_type(self, token):
        return self.world.rehearsed.of_type(token)

    @property
    def buckets(self) -> dict[str, str]:
        return {resource.name.rpartition("-")[2]: resource.id for resource in self.of_type(BUCKET)}

    def versions(self, kind: str) -> int:
        found = self.s3.list_object_versions(Bucket=self.buckets[kind])
        return len(found.get("Versions", [])) + len(found.get("DeleteMarkers", []))

    def asked(self, action: str) -> list[dict[str, str]]:
        return [parameters for name, parameters in self.account.asked if name == action]

    def destroys(self) -> list[list[str]]:
        return [call for call in pulumi_stand_in.calls(self.state) if call[0] == "destroy"]


@pytest.fixture
def fleet(tmp_path, monkeypatch) -> Iterator[Fleet]:
    rehearsed = shipped(NAME)
    monkeypatch.setenv(pulumi_stand_in.VARIABLE, str(tmp_path / "state.json"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    first, *others = [resource.id for resource in rehearsed.of_type(GROUP)]
    world = World(rehearsed, {first: ["i-busy"], **{other: [] for other in others}}, {"i-busy": "Running"})
    world.protected.add("i-busy")
    account = Account(world.answers())
    with (
        moto_server("us-east-1"),
        pulumi_stand_in.installed(tmp_path, rehearsed.registrations) as state,
        serving(account) as cloud,
    ):
        s3 = boto3.client("s3", region_name="us-east-1")
        for made in rehearsed.of_type(BUCKET):
            s3.create_bucket(Bucket=made.id)
            s3.put_bucket_versioning(Bucket=made.id, VersioningConfiguration={"Status": "Enabled"})
            for content in (b"old", b"new"):
                s3.put_object(Bucket=made.id, Key="run/last", Body=content)
        monkeypatch.setattr(command, "cloud_of", lambda stack: connect(stack, cloud, s3))
        yield Fleet(world, account, state, s3)


# One that was made with 0 expects no number, and refuses to be given one: its limit alone empties it.
@pytest.mark.parametrize("capacity", [EXPECTS, EXPECTS_NONE])
def test_protected_instances_leave_through_their_group_and_data_its_key_and_its_settings_stay(
    fleet, capacity
):
    fleet.world.capacity = capacity

    done = fleet.destroy("--yes")

    assert fleet.world.states == {}
    assert fleet.asked("DeleteInstances") == []
    assert [call["InstanceIds.1"] for call in fleet.asked("SetInstancesProtection")] == ["i-busy"]
    left = {resource.type for resource in pulumi_stand_in.read(fleet.state)}
    assert {KEY, "alicloud:kms/alias:Alias", BUCKET, "alicloud:oss/bucketPolicy:BucketPolicy"} <= left
    assert not {GROUP, "alicloud:fc/v3Function:V3Function"} & left
    assert fleet.versions("checkpoints") == 2
    assert fleet.asked("ScheduleKeyDeletion") == []
    assert "keep      checkpoints" in done.output


@pytest.mark.parametrize("guarded", [False, True], ids=["a key", "a key under deletion protection"])
def test_data_that_is_given_up_is_deleted_after_the_fleet_and_the_key_after_the_data(fleet, guarded):
    fleet.world.guarded = guarded

    fleet.destroy("--yes", "--delete-data", "all")

    assert {kind: fleet.versions(kind) for kind in fleet.buckets} == dict.fromkeys(fleet.buckets, 0)
    (key,) = fleet.of_type(KEY)
    assert fleet.world.pending == {key.id: "7"}
    assert pulumi_stand_in.read(fleet.state) == []
    first, second, last = map(excluded, fleet.destroys())
    buckets = {resource.urn for resource in fleet.of_type(BUCKET)}
    assert buckets <= first
    assert not buckets & second
    assert key.urn in second
    assert last == set()


def test_a_snapshot_under_the_key_keeps_the_key(fleet):
    (key,) = fleet.of_type(KEY)
    fleet.world.snapshots = {"s-1": key.id, "s-2": "another-key"}

    done = fleet.destroy("--yes", "--delete-data", "all")

    assert fleet.world.pending == {}
    assert "needed by 1 snapshots" in done.output


def test_what_the_sweep_stopped_is_released_only_where_asked(fleet):
    fleet.world.states["i-stopped"] = "Stopped"

    refused = fleet.run("--yes")

    assert "i-stopped: stopped by the sweep, in no group" in str(refused.exception)
    assert fleet.destroys() == []
    fleet.destroy("--yes", "--terminate-stopped")
    assert fleet.world.states == {}
    assert [call["InstanceId.1"] for call in fleet.asked("DeleteInstances")] == ["i-stopped"]


def test_whatever_may_be_held_is_seen(fleet):
    """A hold that cannot be read, and an instance that nothing reaps."""
    for tags, says in (
        ({"gpu-fleet:keep-until": "friday"}, "kept until friday"),
        ({"gpu-fleet:managed": "", "gpu-fleet:protected": "true"}, "gpu-fleet:protected is set"),
    ):
        fleet.world.tags["i-busy"] = tags
        assert f"i-busy (dev) is held, {says}" in str(fleet.run("--yes").exception)


def test_groups_that_the_cloud_itself_guards_are_named_with_how_to_lift_that(fleet):
    export = fleet.state.with_name("export.json")
    content = json.loads(export.read_text())
    for resource in content["deployment"]["resources"]:
        if resource["type"] == GROUP:
            resource["inputs"]["groupDeletionProtection"] = True
    export.write_text(json.dumps(content))

    done = fleet.run("--yes")

    assert "protected against deletion; set `gpu-fleet:protected: false`" in str(done.exception)


def test_a_denied_question_or_another_account_is_said_and_nothing_is_touched(fleet):
    for action, answer, says in (
        ("DescribeSnapshots", Refusal(), "denied ecs:DescribeSnapshots"),
        ("GetCallerIdentity", {"AccountId": "42"}, "the credentials are of account 42"),
    ):
        fleet.account.answers[action] = answer
        assert says in str(fleet.run("--yes").exception)
    assert fleet.destroys() == []
