"""Teardown on Alibaba Cloud: the stack's holdings, and the calls that change something."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from gpu_fleet_image.core.alicloud_credentials import KEY_ID, SECRET
from gpu_fleet_image.core.model import TAG_STACK
from gpu_fleet_image.providers.alicloud.instances import instance_of
from gpu_fleet_stacks.clients import buckets, oss
from gpu_fleet_stacks.clients.alicloud import Alicloud, expects_a_number, listed
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.teardown import state
from gpu_fleet_stacks.teardown.errors import TeardownError
from gpu_fleet_stacks.teardown.holdings import HeldInstance, Holdings, Note, Remnant, gib, held, store_of
from gpu_fleet_stacks.teardown.state import StateResource

PAGE = 100  # DescribeInstances, DescribeDisks, DescribeSnapshots, DescribeImages
MEMBERS_PAGE = 50  # DescribeScalingInstances, DescribeScalingGroups
UNPROTECTED_AT_ONCE = 20  # SetInstancesProtection
TERMINATED_AT_ONCE = 100  # DeleteInstances
# Error codes of OSS and NAS for a resource that a user deleted outside Pulumi.
ABSENT = ("NoSuchBucket", "InvalidFileSystem.NotFound")


def connect(stack: Stack, cloud: Alicloud | None = None, s3: Any = None) -> "AlicloudStack":
    """Return the stack in its account.

    Args:
        cloud: makes the calls; by default with the credentials of the environment.
        s3: boto3's client for OSS.

    Raises TeardownError if the credentials are of another account, or there are none.
    """
    asked = cloud or Alicloud(stack.region)
    try:
        account = str(asked.ask("sts", "GetCallerIdentity")["AccountId"])
    except CannotCheckError as error:
        raise TeardownError(f"Alibaba Cloud cannot be asked what {stack.name} holds: {error}") from error
    if account != stack.account_id:
        raise TeardownError(
            f"the credentials are of account {account}, and {stack.name} is in {stack.account_id}; set"
            f" {KEY_ID} and {SECRET} of that one"
        )
    there = stack.storage.replica_region
    elsewhere = s3 or (oss.client(there) if there else None)
    return AlicloudStack(stack, asked, s3 or oss.client(stack.region), elsewhere)


class AlicloudStack:
    """One stack on Alibaba Cloud; see ``holdings.TeardownCloud``.

    Args:
        s3: boto3's client for OSS.
        elsewhere: the same for ``storage.replica_region``; OSS redirects no other region's client.
    """

    def __init__(self, stack: Stack, cloud: Alicloud, s3: Any, elsewhere: Any = None) -> None:
        self._stack, self._cloud = stack, cloud
        self._s3_ask, self._ask_elsewhere = partial(oss.ask, s3), partial(oss.ask, elsewhere)

    def look(self, resources: Sequence[StateResource], now: datetime) -> Holdings:
        """Return what the stack holds now; change nothing."""
        instances = self.instances(resources, now)
        stores = state.of(resources, state.BUCKETS | state.FILE_SYSTEMS)
        own = {instance.id for instance in instances}
        return Holdings(
            instances,
            tuple(
                store_of(
                    self._stack.name,
                    store,
                    size=self._size,
                    ask=self._ask_elsewhere if state.is_replica(store) else self._s3_ask,
                    absent=ABSENT,
                )
                for store in stores
            ),
            tuple(
                remnant for key in state.of(resources, state.KEYS) for remnant in self._remnants(key.id, own)
            ),
        )

    def instances(self, resources: Sequence[StateResource], now: datetime) -> tuple[HeldInstance, ...]:
        """Return every instance that the stack's groups started, inside a group or outside."""
        members = {
            str(row["InstanceId"]): group.id
            for group in state.of(resources, state.GROUPS)
            for row in self._members(group.id)
        }
        tags = {"Tag.1.Key": TAG_STACK, "Tag.1.Value": self._stack.name}
        raw = self._tokens("DescribeInstances", "Instances", "Instance", **tags)
        made = (held(instance_of(item), members.get(item["InstanceId"], ""), now) for item in raw)
        return tuple(instance for instance in made if instance.group or instance.managed)

    def _members(self, group: str) -> Iterator[dict[str, Any]]:
        """Yield the instances of a group, protected or not."""
        return self._cloud.numbered(
            "ess",
            "DescribeScalingInstances",
            "ScalingInstances",
            size=MEMBERS_PAGE,
            RegionId=self._stack.region,
            ScalingGroupId=group,
        )

    def _tokens(self, action: str, *keys: str, **chosen: str) -> Iterator[dict[str, Any]]:
        """Yield every page of a list of ECS."""
        token: dict[str, str] = {}
        while True:
            page = self._cloud.ask(
                "ecs", action, RegionId=self._stack.region, MaxResults=str(PAGE), **chosen, **token
            )
            yield from listed(page, *keys)
            if not page.get("NextToken"):
                return
            token = {"NextToken": str(page["NextToken"])}

    def _size(self, resource: StateResource) -> str:
        answer = self._cloud.ask(
            "nas", "DescribeFileSystems", RegionId=self._stack.region, FileSystemId=resource.id
        )
        (described,) = listed(answer, "FileSystems", "FileSystem")
        return f"{gib(float(described['MeteredSize']))} of {described['Capacity']} GiB"

    def _remnants(self, key_id: str, instances: set[str]) -> Iterator[Remnant]:
        """Yield what the key encrypts outside of Pulumi's state: deleting the key makes it unreadable."""
        snapshots = self._tokens("DescribeSnapshots", "Snapshots", "Snapshot", Encrypted="true")
        mine = {snapshot["SnapshotId"] for snapshot in snapshots if snapshot.get("KMSKeyId") == key_id}
        yield from (Remnant("snapshot", snapshot_id) for snapshot_id in sorted(mine))
        for image in self._images():
            disks = listed(image, "DiskDeviceMappings", "DiskDeviceMapping")
            if mine & {disk.get("SnapshotId") for disk in disks}:
                yield Remnant("image", image["ImageId"])
        for disk in self._tokens("DescribeDisks", "Disks", "Disk", Encrypted="true"):
            if disk.get("KMSKeyId") == key_id and disk.get("InstanceId") not in instances:
                yield Remnant("volume", disk["DiskId"])

    def _images(self) -> Iterator[dict[str, Any]]:
        """Yield the account's own images; this list pages by number."""
        return self._cloud.numbered(
            "ecs",
            "DescribeImages",
            "Images",
            "Image",
            size=PAGE,
            RegionId=self._stack.region,
            ImageOwnerAlias="self",
        )

    def drain(self, group: StateResource) -> None:
        """Set size 0 and remove every protection; the group then terminates its instances through its hook.

        A group that was made without an expected number never gets one; its maximum of 0 then empties it.
        """
        self._unprotect(group.id)
        (described,) = self._cloud.ask(
            "ess",
            "DescribeScalingGroups",
            **{"RegionId": self._stack.region, "ScalingGroupIds.1": group.id},
        )["ScalingGroups"]
        expected = {"DesiredCapacity": "0"} if expects_a_number(described) else {}
        self._cloud.ask(
            "ess",
            "ModifyScalingGroup",
            RegionId=self._stack.region,
            ScalingGroupId=group.id,
            MinSize="0",
            MaxSize="0",
            **expected,
        )
        self._unprotect(group.id)  # an instance that started in between may be protected

    def _unprotect(self, group: str) -> None:
        ids = [
            str(row["InstanceId"]) for row in self._members(group) if row.get("LifecycleState") == "Protected"
        ]
        for start in range(0, len(ids), UNPROTECTED_AT_ONCE):
            some = ids[start : start + UNPROTECTED_AT_ONCE]
            named = {f"InstanceIds.{number}": instance_id for number, instance_id in enumerate(some, 1)}
            self._cloud.ask(
                "ess",
                "SetInstancesProtection",
                RegionId=self._stack.region,
                ScalingGroupId=group,
                ProtectedFromScaleIn="false",
                **named,
            )

    def terminate(self, ids: Sequence[str]) -> None:
        """Release stopped instances that are in no group."""
        for start in range(0, len(ids), TERMINATED_AT_ONCE):
            some = ids[start : start + TERMINATED_AT_ONCE]
            named = {f"InstanceId.{number}": instance_id for number, instance_id in enumerate(some, 1)}
            self._cloud.ask("ecs", "DeleteInstances", RegionId=self._stack.region, Force="true", **named)

    def empty(self, bucket: str, note: Note) -> None:
        """Delete every version of every object in a bucket."""
        copies = {self._stack.replica_name(kind) for kind in naming.REPLICATED}
        ask = self._ask_elsewhere if bucket in copies else self._s3_ask
        buckets.empty(ask, bucket, note, in_batches=False)

    def schedule_key_deletion(self, key: StateResource, days: int) -> None:
        """Schedule the key's deletion after this many days; do nothing where it is scheduled already."""
        metadata = self._cloud.ask("kms", "DescribeKey", KeyId=key.id)["KeyMetadata"]
        if metadata["KeyState"] == "PendingDeletion":
            return
        if metadata.get("DeletionProtection") == "Enabled":
            self._cloud.ask(
                "kms",
                "SetDeletionProtection",
                ProtectedResourceArn=metadata["Arn"],
                EnableDeletionProtection="false",
            )
        self._cloud.ask("kms", "ScheduleKeyDeletion", KeyId=key.id, PendingWindowInDays=str(days))
