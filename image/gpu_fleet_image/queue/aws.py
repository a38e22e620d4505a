"""The queue on AWS: Secrets Manager, EC2, S3."""

from datetime import UTC, datetime
from typing import Any

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.providers.aws import instances, session
from gpu_fleet_image.queue import munge


class AwsQueue:
    """As ``cloud.QueueCloud``."""

    def __init__(self, instance: InstanceFile) -> None:
        self._instance = instance
        self._calls = Calls(lambda: datetime.now(UTC))
        self._ec2: Any = None

    def key(self, secret: str, *, may_make: bool) -> bytes:
        """As the protocol."""
        client = session.client("secretsmanager", self._instance.region)
        return munge.fetched(client, secret, may_make=may_make)

    def states(self, ids: list[str]) -> dict[str, str]:
        """As the protocol."""
        self._ec2 = self._ec2 or session.client("ec2", self._instance.region)
        return instances.states_of(self._calls, self._ec2, ids)

    def store(self) -> Store:
        """As the protocol."""
        s3 = session.client("s3", self._instance.region)
        return Store(s3, self._calls, self._instance.records_uri)


def connect(instance: InstanceFile) -> AwsQueue:
    """The cloud of this instance."""
    return AwsQueue(instance)
