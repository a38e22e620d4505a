"""The queue on AWS: secrets in Secrets Manager, instances in EC2, records in S3."""

from datetime import UTC, datetime
from typing import Any

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.providers.aws import instances, session
from gpu_fleet_image.slurm import munge


class AwsQueue:
    """Implementation of ``cloud.QueueCloud``."""

    def __init__(self, instance: InstanceFile) -> None:
        self._instance = instance
        self._calls = Calls(lambda: datetime.now(UTC))
        self._ec2: Any = None

    def key(self, secret: str, *, may_make: bool) -> bytes:
        """Return munge's key as the protocol."""
        client = session.client("secretsmanager", self._instance.region)
        return munge.fetched(client, secret, may_make=may_make)

    def states(self, ids: list[str]) -> dict[str, str]:
        """Return instances' states as the protocol."""
        self._ec2 = self._ec2 or session.client("ec2", self._instance.region)
        return instances.states_of(self._calls, self._ec2, ids)

    def store(self) -> Store:
        """Return the stack's records as the protocol."""
        s3 = session.client("s3", self._instance.region)
        return Store(s3, self._calls, self._instance.records_uri)


def connect(instance: InstanceFile) -> AwsQueue:
    """Return the cloud of this instance."""
    return AwsQueue(instance)
