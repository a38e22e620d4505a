"""What an agent needs of its cloud: an ``AgentCloud``, as ``aws.py`` and ``alicloud.py`` beside it have."""

import importlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from gpu_fleet_image.core.holds import Tagging
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.model import User
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.instance.agent.drain import Holds
from gpu_fleet_image.instance.agent.notices import Notices


class Fence(Protocol):
    """A tag of the instance's own on itself, which keeps the sweep's role from stopping it."""

    def raise_for(self, mark: datetime) -> None:
        """Set it for a mark; raises CloudError."""

    def lower_but(self, mark: datetime | None) -> None:
        """Remove what was set for any other mark, or for any; raises CloudError."""


class NoFence:
    """For a cloud whose policies cannot distinguish instances of one role."""

    def raise_for(self, mark: datetime) -> None:
        """Nothing."""

    def lower_but(self, mark: datetime | None) -> None:
        """Nothing."""


class AgentCloud(Protocol):
    """The cloud of one instance."""

    def metrics(self) -> Any:
        """Where heartbeats go: has ``put_metric_data`` as CloudWatch's client."""

    def bucket(self) -> Any:
        """boto3's S3 client."""

    def store(self) -> Store:
        """The stack's records, where the sweep is answered.

        Raises:
            CloudError: there is no such place, or no key to it.
        """

    def caller(self, instance_id: str) -> str:
        """The cloud's name for the instance's credentials, ``:`` or ``.``, its id. Raises CloudError."""

    def tagging(self) -> Tagging:
        """What sets a user's hold on this instance, as tags.

        Raises:
            ConfigurationError: instances of this cloud may not; the message names what a user can do.
        """

    def fence(self, instance_id: str) -> Fence:
        """The second fence against a stop."""

    def hook(self, instance_id: str) -> Holds:
        """What holds the instance while it is terminated."""

    def harden(self, metadata: Metadata, instance_id: str) -> None:
        """Make the metadata service ask for tokens, where the instance was started without."""

    def name_users(self, instance_id: str, users: Sequence[User]) -> None:
        """Say who was seen on this instance, newest first; raises CloudError."""

    def notices(self, metadata: Metadata, instance_id: str, now: Callable[[], datetime]) -> Notices:
        """Its interruption and termination notices, and the sweep's mark."""


def connect(instance: InstanceFile, metadata: Metadata | None) -> AgentCloud:
    """The cloud that the instance is in; nothing of the other one is loaded."""
    made: AgentCloud = importlib.import_module(f"gpu_fleet_image.instance.agent.{instance.cloud}").AgentCloud(
        instance, metadata
    )
    return made
