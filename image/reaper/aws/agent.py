"""What an agent on AWS talks to: CloudWatch, its bucket, its group, the sweep's mark."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from image.instance.instance_file import InstanceFile
from image.instance.metadata import Metadata
from image.reaper.agent import notices
from image.reaper.aws.lifecycle import Hook
from image.reaper.calls import Calls
from image.reaper.errors import CloudError
from image.reaper.store import Store


class AgentCloud:
    """The cloud of one machine.

    Args:
        machine: what the stack says of it.
        metadata: its metadata service; boto3 asks it by itself.
    """

    def __init__(self, machine: InstanceFile, metadata: Metadata | None) -> None:
        del metadata
        self._machine = machine
        self._s3 = cache(self.bucket)

    def metrics(self) -> Any:
        """CloudWatch's client, which gives up before the agent misses many looks."""
        limits = Config(
            connect_timeout=3, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2}
        )
        return boto3.client("cloudwatch", region_name=self._machine.region, config=limits)

    def bucket(self) -> Any:
        """boto3's S3 client."""
        return boto3.client("s3", region_name=self._machine.region)

    def store(self) -> Store:
        """The stack's records."""
        if not self._machine.records_uri:
            raise CloudError("instance.toml has no records_uri: this instance is older than its stack")
        return Store(self._s3(), Calls(lambda: datetime.now(UTC)), self._machine.records_uri)

    def hook(self, instance_id: str) -> Hook:
        """What holds the machine while it leaves."""
        autoscaling = boto3.client("autoscaling", region_name=self._machine.region)
        return Hook(autoscaling, self._machine.lifecycle_hook, instance_id)

    def harden(self, metadata: Metadata, instance_id: str) -> None:
        """Nothing: every launch template asks for session tokens."""

    def notices(
        self, metadata: Metadata, instance_id: str, now: Callable[[], datetime]
    ) -> notices.FromMetadata:
        """Word that the machine goes: the metadata service knows it all."""
        del instance_id, now
        return notices.FromMetadata(metadata)
