"""The agent's clients of AWS: CloudWatch, its buckets, its group's lifecycle hook, its own tag."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.model import TAG_USERS, TAG_WITHDRAWN, User
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.instance.agent import notices
from gpu_fleet_image.providers.aws.instances import Tags


class Hook:
    """Lifecycle hook of one instance's group."""

    def __init__(self, autoscaling: Any, name: str, instance_id: str) -> None:
        self._client = autoscaling
        self._name = name
        self._instance_id = instance_id
        self._group = ""

    def heartbeat(self) -> None:
        """Ask for more time: restart the hook's timeout. Raises CloudError."""
        self._call("record_lifecycle_action_heartbeat")

    def complete(self) -> None:
        """Let the termination continue. Raises CloudError."""
        self._call("complete_lifecycle_action", LifecycleActionResult="CONTINUE")

    def _call(self, method: str, **arguments: str) -> None:
        try:
            getattr(self._client, method)(
                LifecycleHookName=self._name,
                AutoScalingGroupName=self._group or self._find_group(),
                InstanceId=self._instance_id,
                **arguments,
            )
        except (BotoCoreError, ClientError) as error:
            raise CloudError(f"lifecycle hook {self._name}: {error}") from error

    def _find_group(self) -> str:
        answer = self._client.describe_auto_scaling_instances(InstanceIds=[self._instance_id])
        if not answer["AutoScalingInstances"]:
            raise CloudError(f"{self._instance_id} is in no scaling group")
        self._group = str(answer["AutoScalingInstances"][0]["AutoScalingGroupName"])
        return self._group


# Gives up before the agent misses many looks.
_LIMITS = Config(connect_timeout=3, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2})
# A reply is only as fresh as the look before it: a delayed one is dropped, and the next look repeats it.
_ONCE = Config(connect_timeout=1, read_timeout=3, retries={"mode": "standard", "total_max_attempts": 1})


class AgentCloud:
    """The cloud of one instance.

    Args:
        metadata: its metadata service; boto3 finds it by itself.
    """

    def __init__(self, instance: InstanceFile, metadata: Metadata | None) -> None:
        self._metadata = metadata
        self._instance = instance
        self._replies = cache(partial(boto3.client, "s3", region_name=instance.region, config=_ONCE))

    def metrics(self) -> Any:
        """Return CloudWatch's client."""
        return boto3.client("cloudwatch", region_name=self._instance.region, config=_LIMITS)

    def bucket(self) -> Any:
        """Return boto3's S3 client."""
        return boto3.client("s3", region_name=self._instance.region)

    def store(self) -> Store:
        """Return the stack's records."""
        return Store(self._replies(), Calls(lambda: datetime.now(UTC)), self._instance.records_uri)

    def caller(self, instance_id: str) -> str:
        """Return ``aws:userid``: of an instance's role ``AROA...:i-0123``, below which only it can write.

        https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html
        """
        sts = boto3.client("sts", region_name=self._instance.region, config=_LIMITS)
        caller = str(_asked(sts.get_caller_identity)["UserId"])
        # a rehearsal's keys are a user's
        return caller if caller.endswith(f":{instance_id}") else f"{caller}:{instance_id}"

    def tagging(self) -> Tags:
        """Return the reader and writer of this instance's tags.

        Its role may set a hold's tags on itself alone.
        """
        ec2 = boto3.client("ec2", region_name=self._instance.region, config=_LIMITS)
        return Tags(ec2, Calls(lambda: datetime.now(UTC)))

    def fence(self, instance_id: str) -> "WithdrawnTag":
        """Return the tag that denies stops and terminations to the sweep's role."""
        return WithdrawnTag(self._instance.region, self._metadata, instance_id)

    def hook(self, instance_id: str) -> Hook:
        """Return the hook that delays the instance's termination."""
        autoscaling = boto3.client("autoscaling", region_name=self._instance.region)
        return Hook(autoscaling, self._instance.lifecycle_hook, instance_id)

    def harden(self, metadata: Metadata, instance_id: str) -> None:
        """Do nothing: every launch template requires session tokens."""

    def name_users(self, instance_id: str, users: Sequence[User]) -> None:
        """Tag this instance with the users' names, which the sweep reads as it lists the fleet."""
        ec2 = boto3.client("ec2", region_name=self._instance.region, config=_LIMITS)
        tag = {"Key": TAG_USERS, "Value": " ".join(str(user) for user in users)}
        Calls(lambda: datetime.now(UTC)).change(ec2.create_tags, Resources=[instance_id], Tags=[tag])

    def notices(
        self, metadata: Metadata, instance_id: str, now: Callable[[], datetime]
    ) -> notices.FromMetadata:
        """Return the source of interruption and termination notices: the metadata service has all of them."""
        del instance_id
        return notices.FromMetadata(metadata, now)


class WithdrawnTag:
    """Fence of this instance: while ``gpu-fleet:withdrawn`` is set, the sweep may not stop or terminate it.

    Args:
        instance_id: the instance; its role may set the tag on itself alone.
    """

    def __init__(self, region: str, metadata: Metadata | None, instance_id: str) -> None:
        self._region = region
        self._metadata = metadata
        self._instance_id = instance_id

    def raise_for(self, mark: datetime) -> None:
        """Set the tag for a mark; raises CloudError."""
        wire = [{"Key": TAG_WITHDRAWN, "Value": format_time(mark)}]
        _asked(self._ec2().create_tags, Resources=[self._instance_id], Tags=wire)

    def lower_but(self, mark: datetime | None) -> None:
        """Remove a tag that was set for another mark, or any tag without a mark; raises CloudError."""
        stands = self._metadata.get(f"{notices.TAGS}/{TAG_WITHDRAWN}") if self._metadata else None
        if stands is not None and (mark is None or stands != format_time(mark)):
            wire = [{"Key": TAG_WITHDRAWN}]
            _asked(self._ec2().delete_tags, Resources=[self._instance_id], Tags=wire)

    def _ec2(self) -> Any:
        return boto3.client("ec2", region_name=self._region, config=_LIMITS)


def _asked(method: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Make a call and return its answer; raises CloudError."""
    return Calls(lambda: datetime.now(UTC)).change(method, **arguments)
