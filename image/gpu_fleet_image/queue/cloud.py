"""What the queue asks of its cloud: munge's key, what became of instances, the stack's records."""

import importlib
from typing import Protocol

from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.store import Store


class QueueCloud(Protocol):
    """The cloud of one controller or node."""

    def key(self, secret: str, *, may_make: bool) -> bytes:
        """Munge's key.

        Args:
            secret: the secret's name.
            may_make: make the key where there is none yet; the controller alone may.

        Raises:
            NotReadyError: there is none yet, it is damaged, or the secret cannot be read.
        """

    def states(self, ids: list[str]) -> dict[str, str]:
        """Instance id -> its state in EC2's words, of those that the cloud still knows. Raises CloudError."""

    def store(self) -> Store:
        """The stack's records. Raises CloudError."""


def of(instance: InstanceFile) -> QueueCloud:
    """The cloud of this instance; the other's SDK is not loaded."""
    module = importlib.import_module(f"gpu_fleet_image.queue.{instance.cloud}")
    own: QueueCloud = module.connect(instance)
    return own
