"""`gpu-fleet destroy` from the shell to moto, with a fake of the Pulumi CLI on PATH."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import CliRunner

from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import stack_files
from gpu_fleet_stacks.teardown import command
from gpu_fleet_stacks.teardown.aws import connect
from gpu_fleet_stacks.teardown.command import destroy
from gpu_fleet_stacks.teardown.state import StateResource
from tests.stacks.standing import usable
from tests.stacks.teardown import pulumi_stand_in

REGION = "us-east-1"
KEY, BUCKET = "aws:kms/key:Key", "aws:s3/bucket:Bucket"


@dataclass
class Fleet:
    """A deployed stack in moto, a `pulumi` with its state, and the command."""

    name: str
    rehearsed: Rehearsed
    state: Path

    def client(self, service: str) -> Any:
        return boto3.client(service, region_name=REGION)

    def run(self, *arguments: str, typed: str = ""):
        return CliRunner().invoke(destroy, [self.name, *arguments], input=typed)

    def destroy(self, *arguments: str):
        done = self.run(*arguments)
        assert done.exit_code == 0, done.output
        return done

    @property
    def key_id(self) -> str:
        return self.rehearsed.of_type(KEY)[0].id

    @property
    def buckets(self) -> dict[str, str]:
        return {resource.name.rpartition("-")[2]: resource.id for resource in self.rehearsed.of_type(BUCKET)}

    def fill(self, *kinds: str) -> None:
        for kind in kinds:
            for content in (b"old", b"new"):
                self.client("s3").put_object(Bucket=self.buckets[kind], Key="run/last", Body=content)

    def start(self) -> str:
        """Start one instance in the first group, as a user does; return its id."""
        name = self.rehearsed.outputs["group_names"]["dev"][0]
        autoscaling = self.client("autoscaling")
        autoscaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)
        (group,) = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return str(group["Instances"][0]["InstanceId"])

    def tag(self, instance: str, tags: dict[str, str]) -> None:
        wire = [{"Key": key, "Value": value} for key, value in tags.items()]
        self.client("ec2").create_tags(Resources=[instance], Tags=wire)

    def instances(self) -> list[str]:
        """Return the ids of those that are not terminated."""
        parts = self.client("ec2").describe_instances()["Reservations"]
        found = [instance for part in parts for instance in part["Instances"]]
        return [each["InstanceId"] for each in found if each["State"]["Name"] != "terminated"]

    def key_state(self) -> str:
        return self.client("kms").describe_key(KeyId=self.key_id)["KeyMetadata"]["KeyState"]

    def destroys(self) -> list[list[str]]:
        return [call for call in pulumi_stand_in.calls(self.state) if call[0] == "destroy"]

    def left(self) -> set[str]:
        return {resource.type for resource in pulumi_stand_in.read(self.state)}


@contextmanager
def fleet(name: str, folder: Path, monkeypatch) -> Iterator[Fleet]:
    with usable(name) as rehearsed, pulumi_stand_in.installed(folder, rehearsed.registrations) as state:
        monkeypatch.setenv(pulumi_stand_in.VARIABLE, str(state))
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        yield Fleet(name, rehearsed, state)


@pytest.fixture
def dev(tmp_path, monkeypatch) -> Iterator[Fleet]:
    with fleet("aws-dev", tmp_path, monkeypatch) as found:
        yield found


def test_data_that_was_not_given_up_stays_readable_under_its_settings_and_everything_else_is_deleted(dev):
    dev.start()
    dev.fill("checkpoints", "records")

    done = dev.destroy("--yes")

    assert dev.instances() == []
    assert dev.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    s3, kept = dev.client("s3"), dev.buckets["checkpoints"]
    assert s3.get_object(Bucket=kept, Key="run/last")["Body"].read() == b"new"
    assert s3.get_bucket_versioning(Bucket=kept)["Status"] == "Enabled"
    assert s3.get_public_access_block(Bucket=kept)
    assert dev.key_state() == "Enabled"
    assert "keep      checkpoints" in done.output
    assert "the key, with its alias and policy (the data that stays needs it)" in done.output
    names = [resource.name for resource in pulumi_stand_in.read(dev.state) if resource.type == BUCKET]
    # the records hold the payload, which instances of older launch templates may still ask for
    assert sorted(names) == ["gpu-fleet-aws-dev-checkpoints", "gpu-fleet-aws-dev-records"]
    assert {KEY, "aws:kms/alias:Alias", "aws:s3/bucketPolicy:BucketPolicy"} <= dev.left()
    # a home too, although its size is unknown
    (files,) = dev.client("efs").describe_file_systems()["FileSystems"]
    assert files["KmsKeyId"].endswith(dev.key_id)
    assert "home: " in done.output


def test_all_data_given_up_is_deleted_when_nothing_writes_and_leaves_a_key_that_waits_for_its_end(dev):
    dev.fill("data", "checkpoints", "records")

    done = dev.destroy("--yes", "--delete-data", "all")

    assert dev.client("s3").list_buckets()["Buckets"] == []
    assert dev.client("efs").describe_file_systems()["FileSystems"] == []
    assert dev.key_state() == "PendingDeletion"
    assert dev.left() == set()
    assert "aws-dev is destroyed." in done.output
    excluded = pulumi_stand_in.excluded(dev.destroys()[0])
    assert {resource.urn for resource in dev.rehearsed.of_type(BUCKET)} <= excluded
    assert not {resource.urn for resource in dev.rehearsed.of_type("aws:lambda/function:Function")} & excluded


def test_a_snapshot_under_the_key_keeps_the_key(dev):
    ec2, (key,) = dev.client("ec2"), dev.rehearsed.of_type(KEY)
    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
    taken = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    # moto 5.2.5 forgets the key of a snapshot, and keeps that of a copy
    ec2.copy_snapshot(
        SourceRegion=REGION, SourceSnapshotId=taken, Encrypted=True, KmsKeyId=key.outputs["arn"]
    )

    done = dev.destroy("--yes", "--delete-data", "all")

    assert dev.key_state() == "Enabled"
    assert "needed by 1 snapshots" in done.output
    assert KEY in dev.left()


def test_a_dry_run_touches_nothing(dev):
    started = dev.start()
    dev.fill("checkpoints")

    done = dev.run("--dry-run", "--delete-data", "all")

    assert done.exit_code == 0
    assert f"terminate {started} g5.xlarge, pool dev: has its lifecycle hook's time to save" in done.output
    assert "delete    checkpoints: " in done.output
    assert "2 versions of objects" in done.output
    assert (dev.instances(), dev.destroys()) == ([started], [])


def test_without_yes_only_the_stacks_name_typed_at_a_terminal_confirms(dev, monkeypatch):
    nowhere = dev.run()
    monkeypatch.setattr(command, "_at_a_terminal", lambda: True)
    wrong = dev.run(typed="aws-prod\n")

    assert "there is no terminal to confirm at" in str(nowhere.exception)
    assert (wrong.exit_code, dev.destroys()) == (1, [])
    assert dev.run(typed="aws-dev\n").exit_code == 0
    assert dev.destroys()


def test_a_held_instance_stops_everything_until_a_reason_is_given(dev):
    held = dev.start()
    until = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    dev.tag(held, {"gpu-fleet:keep-until": until, "gpu-fleet:keep-reason": "deadline"})

    refused = dev.run("--yes")
    dev.destroy("--yes", "--ignore-holds", "account closes on Friday")

    assert f"{held} (" in str(refused.exception)
    assert "deadline" in str(refused.exception)
    assert "gpu-fleet destroy, holds ignored: account closes on Friday" in dev.destroys()[0]


def test_instances_that_nothing_reaps_are_seen_and_drained_too(dev):
    """With `image.mode: none` the sweep has no licence, and a user may still hold an instance."""
    instance = dev.start()
    dev.client("ec2").delete_tags(Resources=[instance], Tags=[{"Key": "gpu-fleet:managed"}])
    dev.tag(instance, {"gpu-fleet:protected": "true"})

    refused = dev.run("--yes")
    done = dev.run("--yes", "--ignore-holds", "they know")

    assert f"{instance} (dev) is held, gpu-fleet:protected is set" in str(refused.exception)
    assert f"terminate {instance} g5.xlarge, pool dev: runs no agent and saves nothing" in done.output
    assert dev.instances() == []


def test_what_the_sweep_stopped_is_terminated_only_where_asked(dev):
    stopped = dev.start()
    name = dev.rehearsed.outputs["group_names"]["dev"][0]
    dev.client("autoscaling").detach_instances(
        AutoScalingGroupName=name, InstanceIds=[stopped], ShouldDecrementDesiredCapacity=True
    )
    dev.client("ec2").stop_instances(InstanceIds=[stopped])

    refused = dev.run("--yes")

    assert f"{stopped}: stopped by the sweep, in no group" in str(refused.exception)
    assert stopped in dev.instances()
    assert dev.run("--yes", "--terminate-stopped").exit_code == 0
    assert dev.instances() == []


def test_a_build_that_is_half_done_is_waited_for(dev):
    """Its instance uses the network, so a destroy would stop in the middle."""
    made = dev.client("ec2").run_instances(
        ImageId="ami-0123456789abcdef0", MinCount=1, MaxCount=1, InstanceType="c7i.2xlarge"
    )
    builder = made["Instances"][0]["InstanceId"]
    dev.tag(builder, {"gpu-fleet:stack": "aws-dev", "CreatedBy": "EC2 Image Builder"})

    refused = dev.run("--yes")

    assert dev.destroys() == []
    assert f"{builder}: an image is being built there; wait until it has ended" in str(refused.exception)


def test_a_protected_stack_keeps_its_data_and_says_how_to_lift_that(tmp_path, monkeypatch):
    with fleet("aws-prod", tmp_path, monkeypatch) as prod:
        refused = prod.run("--yes", "--delete-data", "checkpoints")
        lift = "--delete-data checkpoints: it is protected; set `gpu-fleet:protected: false`"
        assert lift in str(refused.exception)
        assert prod.destroys() == []

        done = prod.destroy("--yes")

        stored = prod.client("s3").list_buckets()["Buckets"]
        assert {bucket["Name"] for bucket in stored} == set(prod.buckets.values())
        assert prod.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
        assert prod.key_state() == "Enabled"
        assert "set `gpu-fleet:protected: false` in stacks/Pulumi.aws-prod.yaml" in done.output


def test_a_state_of_an_older_release_keeps_its_data_too(dev):
    """Its buckets name no key, and its settings would be deleted first."""
    old = [
        replace(
            registration,
            deleted_with="",
            retained=registration.retained and registration.type != KEY,
            dependencies=() if registration.type == BUCKET else registration.dependencies,
        )
        for registration in dev.rehearsed.registrations
    ]
    pulumi_stand_in.write(dev.state, old)
    dev.fill("checkpoints")

    dev.destroy("--yes")

    assert dev.key_state() == "Enabled"
    assert dev.client("s3").get_public_access_block(Bucket=dev.buckets["checkpoints"])


def test_what_a_user_deleted_beside_pulumi_is_no_obstacle(dev):
    (group, *_) = dev.rehearsed.of_type("aws:autoscaling/group:Group")
    dev.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=group.id, ForceDelete=True)
    dev.client("s3").delete_bucket(Bucket=dev.buckets["data"])

    done = dev.run("--dry-run")
    connect(stack_files.settings_of("aws-dev")).drain(StateResource(group.urn, group.type, group.id))

    assert done.exit_code == 0, done.output
    assert f"delete    data: {dev.buckets['data']}, empty" in done.output
