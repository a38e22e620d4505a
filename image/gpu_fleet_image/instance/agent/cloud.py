"""Protocol of an agent's cloud, which ``aws.py`` and ``alicloud.py`` beside it implement."""

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
    """Tag of the instance on itself, which denies a stop to the sweep's role."""

    def raise_for(self, mark: datetime) -> None:
        """Set the tag for a mark; raises CloudError."""

    def lower_but(self, mark: datetime | None) -> None:
        """Remove a tag that was set for another mark, or any tag without a mark; raises CloudError."""


class NoFence:
    """Absent fence of a cloud whose policies cannot distinguish the instances of one role."""

    def raise_for(self, mark: datetime) -> None:
        """Do nothing."""

    def lower_but(self, mark: datetime | None) -> None:
        """Do nothing."""


class AgentCloud(Protocol):
    """Clients of one instance's cloud."""

    def metrics(self) -> Any:
        """Return the client for heartbeats, with ``put_metric_data`` as CloudWatch's."""

    def bucket(self) -> Any:
        """Return boto3's S3 client."""

    def store(self) -> Store:
        """Return the stack's records, where the agent replies to the sweep. Raises CloudError."""

    def caller(self, instance_id: str) -> str:
        """Return the cloud's name for the instance's credentials, ``:`` or ``.``, its id.

        Raises CloudError.
        """

    def tagging(self) -> Tagging:
        """Return the writer of a user's hold on this instance, as tags.

        Raises:
            ConfigurationError: instances of this cloud may not tag; the message names the user's alternative.
        """

    def fence(self, instance_id: str) -> Fence:
        """Return the tag that denies stops and terminations of this instance."""

    def hook(self, instance_id: str) -> Holds:
        """Return the hook that delays the instance's termination."""

    def harden(self, metadata: Metadata, instance_id: str) -> None:
        """Make the metadata service require tokens, if the instance was started without."""

    def name_users(self, instance_id: str, users: Sequence[User]) -> None:
        """Publish the users seen on this instance, newest first; raises CloudError."""

    def notices(self, metadata: Metadata, instance_id: str, now: Callable[[], datetime]) -> Notices:
        """Return the source of its interruption and termination notices, and of the sweep's mark."""


def connect(instance: InstanceFile, metadata: Metadata | None) -> AgentCloud:
    """Return the clients of the instance's cloud; no module of the other cloud is loaded."""
    made: AgentCloud = importlib.import_module(f"gpu_fleet_image.instance.agent.{instance.cloud}").AgentCloud(
        instance, metadata
    )
    return made
