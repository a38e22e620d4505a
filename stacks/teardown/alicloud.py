"""Taking a stack down on Alibaba Cloud: what it holds, and the few calls that change something."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from stacks.calls.alicloud import KEY_ID, KEY_SECRET, TOKEN, Alicloud, listed
from stacks.errors import CannotCheckError
from stacks.settings import Stack
from stacks.teardown import state
from stacks.teardown.errors import TeardownError
from stacks.teardown.holdings import (
    TAG_MANAGED,
    TAG_POOL,
    TAG_STACK,
    Holdings,
    Instance,
    Note,
    Remnant,
    Store,
    gib,
    hold_of,
)
from stacks.teardown.state import Resource

# www.alibabacloud.com/help/en/oss/developer-reference/use-amazon-s3-sdks-to-access-oss
OSS = "https://s3.oss-{region}.aliyuncs.com"
PAGE = 100  # DescribeInstances, DescribeDisks, DescribeSnapshots, DescribeImages
MEMBERS_PAGE = 50  # DescribeScalingInstances, DescribeScalingGroups
UNPROTECTED_AT_ONCE = 20  # SetInstancesProtection
TERMINATED_AT_ONCE = 100  # DeleteInstances
COUNTED_PAGES = 20
DELETING_THREADS = 16
# Somebody deleted it beside Pulumi: error codes of OSS and NAS.
ABSENT = ("NoSuchBucket", "InvalidFileSystem.NotFound")


def connect(stack: Stack, cloud: Alicloud | None = None, s3: Any = None) -> "AlicloudStack":
    """The stack in its account.

    Args:
        stack: the settings.
        cloud: whom to ask; by default with the credentials of the environment.
        s3: boto3's client for OSS.

    Raises:
        TeardownError: the credentials are of another account, or there are none.
    """
    asked = cloud or Alicloud(stack.region)
    try:
        account = str(asked.ask("sts", "GetCallerIdentity")["AccountId"])
    except CannotCheckError as error:
        raise TeardownError(f"Alibaba Cloud cannot be asked what {stack.name} holds: {error}") from error
    if account != stack.account_id:
        raise TeardownError(
            f"the credentials are of account {account}, and {stack.name} is in {stack.account_id}; set"
            f" {KEY_ID} and {KEY_SECRET} of that one"
        )
    return AlicloudStack(stack, asked, s3 or bucket_client(stack.region, os.environ))


def bucket_client(region: str, environ: Mapping[str, str]) -> Any:
    """boto3's client for OSS, which knows neither the newer checksums nor path addressing."""
    return boto3.client(
        "s3",
        region_name=region,
        endpoint_url=OSS.format(region=region),
        aws_access_key_id=environ.get(KEY_ID),
        aws_secret_access_key=environ.get(KEY_SECRET),
        aws_session_token=environ.get(TOKEN),
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": 3},
            connect_timeout=5,
            read_timeout=20,
            max_pool_connections=DELETING_THREADS,
            s3={"addressing_style": "virtual"},
        ),
    )


class AlicloudStack:
    """One stack on Alibaba Cloud; see ``holdings.Cloud``.

    Args:
        stack: the settings.
        cloud: makes every call but those to OSS.
        s3: makes those.
    """

    def __init__(self, stack: Stack, cloud: Alicloud, s3: Any) -> None:
        self._stack, self._cloud, self._s3 = stack, cloud, s3

    def look(self, resources: Sequence[Resource], now: datetime) -> Holdings:
        """What the stack holds now. Changes nothing."""
        instances = self.instances(resources, now)
        stores = state.of(resources, state.BUCKETS | state.FILE_SYSTEMS)
        own = {one.id for one in instances}
        return Holdings(
            instances,
            tuple(self._store(one) for one in stores),
            tuple(one for key in state.of(resources, state.KEYS) for one in self._remnants(key.id, own)),
        )

    def instances(self, resources: Sequence[Resource], now: datetime) -> tuple[Instance, ...]:
        """Every instance that the stack's groups started, wherever it is now."""
        members = {
            str(row["InstanceId"]): group.id
            for group in state.of(resources, state.GROUPS)
            for row in self._members(group.id)
        }
        tags = {"Tag.1.Key": TAG_STACK, "Tag.1.Value": self._stack.name}
        raw = self._tokens("DescribeInstances", "Instances", "Instance", **tags)
        made = (_instance(one, members.get(one["InstanceId"], ""), now) for one in raw)
        return tuple(one for one in made if one.group or one.managed)

    def _members(self, group: str) -> Iterator[dict[str, Any]]:
        """The instances of a group, protected or not."""
        seen, number = 0, 1
        while True:
            page = self._cloud.ask(
                "ess",
                "DescribeScalingInstances",
                RegionId=self._stack.region,
                ScalingGroupId=group,
                PageNumber=str(number),
                PageSize=str(MEMBERS_PAGE),
            )
            rows = page["ScalingInstances"]
            yield from rows
            seen, number = seen + len(rows), number + 1
            if not rows or seen >= int(page["TotalCount"]):
                return

    def _tokens(self, action: str, *keys: str, **chosen: str) -> Iterator[dict[str, Any]]:
        """Every page of a list of ECS."""
        token: dict[str, str] = {}
        while True:
            page = self._cloud.ask(
                "ecs", action, RegionId=self._stack.region, MaxResults=str(PAGE), **chosen, **token
            )
            yield from listed(page, *keys)
            if not page.get("NextToken"):
                return
            token = {"NextToken": str(page["NextToken"])}

    def _store(self, one: Resource) -> Store:
        kind = state.kind_of(self._stack.name, one)
        try:
            if one.type in state.FILE_SYSTEMS:
                holds, empty = self._size(one.id), False
            else:
                holds, empty = self._versions(one.id)
        except CannotCheckError as error:
            if not any(code in str(error) for code in ABSENT):
                raise
            holds, empty = "gone already", True
        return Store(kind, one.urn, one.id, holds, empty, one.protected)

    def _size(self, file_system: str) -> str:
        answer = self._cloud.ask(
            "nas", "DescribeFileSystems", RegionId=self._stack.region, FileSystemId=file_system
        )
        (found,) = listed(answer, "FileSystems", "FileSystem")
        return f"{gib(float(found['MeteredSize']))} of {found['Capacity']} GiB"

    def _versions(self, bucket: str) -> tuple[str, bool]:
        """What a bucket holds, in words, and whether that is nothing at all."""
        count, size, more = 0, 0, False
        for number, page in enumerate(self._version_pages(bucket)):
            if number == COUNTED_PAGES:
                more = True
                break
            count += len(_versions_in(page))
            size += sum(one["Size"] for one in page.get("Versions", ()))
        words = f"{count:,} versions of objects, {gib(size)}"
        return (f"at least {words}" if more else words), count == 0

    def _version_pages(self, bucket: str) -> Iterator[dict[str, Any]]:
        after: dict[str, str] = {}
        while True:
            page = _oss(self._s3.list_object_versions, Bucket=bucket, **after)
            yield page
            if not page.get("IsTruncated"):
                return
            after = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    def _remnants(self, key_id: str, instances: set[str]) -> Iterator[Remnant]:
        """What is under the key and in no state: nothing of it can be read once the key is gone."""
        snapshots = self._tokens("DescribeSnapshots", "Snapshots", "Snapshot", Encrypted="true")
        mine = {one["SnapshotId"] for one in snapshots if one.get("KMSKeyId") == key_id}
        yield from (Remnant("snapshot", one) for one in sorted(mine))
        for image in self._images():
            disks = listed(image, "DiskDeviceMappings", "DiskDeviceMapping")
            if mine & {disk.get("SnapshotId") for disk in disks}:
                yield Remnant("image", image["ImageId"])
        for disk in self._tokens("DescribeDisks", "Disks", "Disk", Encrypted="true"):
            if disk.get("KMSKeyId") == key_id and disk.get("InstanceId") not in instances:
                yield Remnant("volume", disk["DiskId"])

    def _images(self) -> Iterator[dict[str, Any]]:
        """The account's own images; this list goes by numbers."""
        seen, number = 0, 1
        while True:
            page = self._cloud.ask(
                "ecs",
                "DescribeImages",
                RegionId=self._stack.region,
                ImageOwnerAlias="self",
                PageNumber=str(number),
                PageSize=str(PAGE),
            )
            rows = listed(page, "Images", "Image")
            yield from rows
            seen, number = seen + len(rows), number + 1
            if not rows or seen >= int(page["TotalCount"]):
                return

    def drain(self, group: Resource) -> None:
        """Size zero, and no instance protected any more: the group then ends each of them by its hook.

        A group that was made without an expected number takes none later; its limit alone then empties it.
        """
        self._unprotect(group.id)
        (found,) = self._cloud.ask(
            "ess",
            "DescribeScalingGroups",
            **{"RegionId": self._stack.region, "ScalingGroupIds.1": group.id},
        )["ScalingGroups"]
        expected = {} if found.get("DesiredCapacity") is None else {"DesiredCapacity": "0"}
        self._cloud.ask(
            "ess",
            "ModifyScalingGroup",
            RegionId=self._stack.region,
            ScalingGroupId=group.id,
            MinSize="0",
            MaxSize="0",
            **expected,
        )
        self._unprotect(group.id)  # what started in between may have had itself protected

    def _unprotect(self, group: str) -> None:
        ids = [
            str(row["InstanceId"]) for row in self._members(group) if row.get("LifecycleState") == "Protected"
        ]
        for start in range(0, len(ids), UNPROTECTED_AT_ONCE):
            some = ids[start : start + UNPROTECTED_AT_ONCE]
            named = {f"InstanceIds.{number}": one for number, one in enumerate(some, 1)}
            self._cloud.ask(
                "ess",
                "SetInstancesProtection",
                RegionId=self._stack.region,
                ScalingGroupId=group,
                ProtectedFromScaleIn="false",
                **named,
            )

    def terminate(self, ids: Sequence[str]) -> None:
        """Release stopped instances that no group has."""
        for start in range(0, len(ids), TERMINATED_AT_ONCE):
            some = ids[start : start + TERMINATED_AT_ONCE]
            named = {f"InstanceId.{number}": one for number, one in enumerate(some, 1)}
            self._cloud.ask("ecs", "DeleteInstances", RegionId=self._stack.region, Force="true", **named)

    def empty(self, bucket: str, note: Note) -> None:
        """Delete every version of every object in a bucket, and what was never uploaded to its end.

        One by one: OSS wants an MD5 for a deletion of many, which boto3 no longer sends.

        Raises:
            CannotCheckError: OSS refused one.
        """
        for upload in _oss(self._s3.list_multipart_uploads, Bucket=bucket).get("Uploads", ()):
            named = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
            _oss(self._s3.abort_multipart_upload, Bucket=bucket, **named)
        removed = 0
        with ThreadPoolExecutor(DELETING_THREADS) as pool:
            while found := _versions_in(_oss(self._s3.list_object_versions, Bucket=bucket)):
                list(pool.map(lambda one: self._delete(bucket, one), found))
                removed += len(found)
                note(f"{bucket}: {removed:,} versions deleted")

    def _delete(self, bucket: str, one: Mapping[str, Any]) -> None:
        _oss(self._s3.delete_object, Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])

    def schedule_key_deletion(self, key: Resource, days: int) -> None:
        """Let the key go after so many days; quiet where it is going already."""
        found = self._cloud.ask("kms", "DescribeKey", KeyId=key.id)["KeyMetadata"]
        if found["KeyState"] == "PendingDeletion":
            return
        if found.get("DeletionProtection") == "Enabled":
            self._cloud.ask(
                "kms",
                "SetDeletionProtection",
                ProtectedResourceArn=found["Arn"],
                EnableDeletionProtection="false",
            )
        self._cloud.ask("kms", "ScheduleKeyDeletion", KeyId=key.id, PendingWindowInDays=str(days))


def _instance(raw: Mapping[str, Any], group: str, now: datetime) -> Instance:
    tags = {tag["TagKey"]: tag["TagValue"] for tag in listed(dict(raw), "Tags", "Tag")}
    return Instance(
        id=raw["InstanceId"],
        type=raw["InstanceType"],
        state=raw["Status"].lower(),
        pool=tags.get(TAG_POOL, ""),
        group=group,
        hold=hold_of(tags, now),
        managed=tags.get(TAG_MANAGED) == "true",
    )


def _versions_in(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]


def _oss(call: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
    """One call to OSS.

    Raises:
        CannotCheckError: it was refused or not answered.
    """
    try:
        return call(**arguments)
    except ClientError as error:
        said = error.response["Error"]
        raise CannotCheckError(
            f"{error.operation_name}: {said.get('Code', '')}: {said.get('Message', '')}"
        ) from error
    except BotoCoreError as error:
        raise CannotCheckError(" ".join(str(error).split())) from error
