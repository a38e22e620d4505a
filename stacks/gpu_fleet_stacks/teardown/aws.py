"""Teardown on AWS: the stack's holdings, and the calls that change something."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from gpu_fleet_image.core.model import TAG_STACK
from gpu_fleet_image.providers.aws.instances import instance_of
from gpu_fleet_stacks.clients import buckets
from gpu_fleet_stacks.clients.aws import Aws, Clients, clients_in
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.teardown import state
from gpu_fleet_stacks.teardown.errors import TeardownError
from gpu_fleet_stacks.teardown.holdings import HeldInstance, Holdings, Note, Remnant, gib, held, store_of
from gpu_fleet_stacks.teardown.state import StateResource

# Image Builder sets this tag on its instances (its user guide, "Resources created").
BUILDER = {"Key": "CreatedBy", "Value": "EC2 Image Builder"}
# Every state but `terminated`; an instance that shuts down still has its volumes.
THERE = ("pending", "running", "shutting-down", "stopping", "stopped")
EFS = "aws:efs/fileSystem:FileSystem"
UNPROTECTED_AT_ONCE = 50  # SetInstanceProtection
NAMED_AT_ONCE = 50  # DescribeAutoScalingGroups
# Error codes of S3, EFS and FSx for a resource that a user deleted outside Pulumi.
ABSENT = ("NoSuchBucket", "FileSystemNotFound")


def connect(stack: Stack, clients: Clients | None = None) -> "AwsStack":
    """Return the stack in its account.

    Args:
        clients: service -> boto3 client; by default with the credentials of the environment.

    Raises TeardownError if the credentials are of another account, or there are none.
    """
    aws = Aws(clients or clients_in(stack.region, stack.endpoint_url))
    try:
        account = aws.ask("sts", "get_caller_identity")["Account"]
    except CannotCheckError as error:
        raise TeardownError(f"AWS cannot be asked what {stack.name} holds: {error}") from error
    if not stack.emulated and account != stack.account_id:
        raise TeardownError(
            f"the credentials are of account {account}, and {stack.name} is in {stack.account_id}; choose"
            " another AWS_PROFILE"
        )
    return AwsStack(stack, aws)


class AwsStack:
    """One stack on AWS; see ``holdings.TeardownCloud``."""

    def __init__(self, stack: Stack, aws: Aws) -> None:
        self._stack, self._aws = stack, aws
        self._s3_ask = partial(aws.ask, "s3")

    def look(self, resources: Sequence[StateResource], now: datetime) -> Holdings:
        """Return what the stack holds now; change nothing."""
        raw, instances = self._raw(), self.instances(resources, now)
        stores = state.of(resources, state.BUCKETS | state.FILE_SYSTEMS)
        own = {instance.id for instance in instances}
        return Holdings(
            instances,
            tuple(
                store_of(self._stack.name, store, size=self._size, ask=self._s3_ask, absent=ABSENT)
                for store in stores
            ),
            tuple(
                remnant for key in state.of(resources, state.KEYS) for remnant in self._remnants(key.id, own)
            ),
            tuple(item["InstanceId"] for item in raw if BUILDER in item.get("Tags", [])),
        )

    def instances(self, resources: Sequence[StateResource], now: datetime) -> tuple[HeldInstance, ...]:
        """Return every instance that the stack's groups started, inside a group or outside."""
        members = self._members(state.of(resources, state.GROUPS))
        made = (held(instance_of(item), members.get(item["InstanceId"], ""), now) for item in self._raw())
        return tuple(instance for instance in made if instance.group or instance.managed)

    def _raw(self) -> list[dict[str, Any]]:
        filters = [
            {"Name": f"tag:{TAG_STACK}", "Values": [self._stack.name]},
            {"Name": "instance-state-name", "Values": list(THERE)},
        ]
        return list(self._aws.instances(filters))

    def _members(self, groups: Sequence[StateResource]) -> dict[str, str]:
        """Return instance id -> its group."""
        members: dict[str, str] = {}
        names = [group.id for group in groups]
        for start in range(0, len(names), NAMED_AT_ONCE):
            some = names[start : start + NAMED_AT_ONCE]
            for group in self._groups(some):
                members |= {
                    instance["InstanceId"]: group["AutoScalingGroupName"] for instance in group["Instances"]
                }
        return members

    def _groups(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        return self._aws.pages(
            "autoscaling",
            "describe_auto_scaling_groups",
            "AutoScalingGroups",
            AutoScalingGroupNames=list(names),
        )

    def _size(self, resource: StateResource) -> str:
        if resource.type == EFS:
            (file_system,) = self._aws.ask("efs", "describe_file_systems", FileSystemId=resource.id)[
                "FileSystems"
            ]
            return gib(file_system["SizeInBytes"]["Value"])
        (file_system,) = self._aws.ask("fsx", "describe_file_systems", FileSystemIds=[resource.id])[
            "FileSystems"
        ]
        return f"{file_system['StorageCapacity']:,} GiB large"

    def _remnants(self, key_id: str, instances: set[str]) -> Iterator[Remnant]:
        """Yield what the key encrypts outside of Pulumi's state: deleting the key makes it unreadable."""
        encrypted = [{"Name": "encrypted", "Values": ["true"]}]
        listed = partial(self._aws.pages, "ec2")
        mine = {
            snapshot["SnapshotId"]
            for snapshot in listed("describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=encrypted)
            if _is_under(snapshot, key_id)
        }
        yield from (Remnant("snapshot", remnant_id) for remnant_id in sorted(mine))
        for image in listed("describe_images", "Images", Owners=["self"]):
            disks = [disk.get("Ebs", {}) for disk in image.get("BlockDeviceMappings", [])]
            if mine & {disk.get("SnapshotId") for disk in disks}:
                yield Remnant("image", image["ImageId"])
        for volume in listed("describe_volumes", "Volumes", Filters=encrypted):
            holders = {attachment["InstanceId"] for attachment in volume.get("Attachments", [])}
            if _is_under(volume, key_id) and not holders & instances:
                yield Remnant("volume", volume["VolumeId"])
        for backup in self._aws.pages("fsx", "describe_backups", "Backups"):
            if _is_under(backup, key_id):
                yield Remnant("backup", backup["BackupId"])

    def drain(self, group: StateResource) -> None:
        """Set size 0 and remove every protection; the group then terminates its instances through its hook.

        A group that was deleted outside Pulumi is empty.
        """
        if not list(self._groups([group.id])):
            return
        self._unprotect(group.id)
        self._aws.ask(
            "autoscaling",
            "update_auto_scaling_group",
            AutoScalingGroupName=group.id,
            MinSize=0,
            MaxSize=0,
            DesiredCapacity=0,
        )
        self._unprotect(group.id)  # an instance that launched in between is protected

    def _unprotect(self, group: str) -> None:
        for described in self._groups([group]):
            ids = [
                instance["InstanceId"]
                for instance in described["Instances"]
                if instance.get("ProtectedFromScaleIn")
            ]
            for start in range(0, len(ids), UNPROTECTED_AT_ONCE):
                self._aws.ask(
                    "autoscaling",
                    "set_instance_protection",
                    AutoScalingGroupName=group,
                    InstanceIds=ids[start : start + UNPROTECTED_AT_ONCE],
                    ProtectedFromScaleIn=False,
                )

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate stopped instances that are in no group."""
        self._aws.ask("ec2", "terminate_instances", InstanceIds=list(ids))

    def empty(self, bucket: str, note: Note) -> None:
        """Delete every version of every object in a bucket."""
        buckets.empty(self._s3_ask, bucket, note, in_batches=True)

    def schedule_key_deletion(self, key: StateResource, days: int) -> None:
        """Schedule the key's deletion after this many days; do nothing where it is scheduled already."""
        metadata = self._aws.ask("kms", "describe_key", KeyId=key.id)["KeyMetadata"]
        if metadata["KeyState"] != "PendingDeletion":
            self._aws.ask("kms", "schedule_key_deletion", KeyId=key.id, PendingWindowInDays=days)


def _is_under(encrypted: Mapping[str, Any], key_id: str) -> bool:
    """Return whether the resource is encrypted by the key."""
    return str(encrypted.get("KmsKeyId", "")).rpartition("/")[2] == key_id
