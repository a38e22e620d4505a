"""Protocol of the queue's cloud: munge's key, states of instances, the stack's records."""

import importlib
from typing import Protocol

from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.store import Store


class QueueCloud(Protocol):
    """Cloud of one controller or node."""

    def key(self, secret: str, *, may_make: bool) -> bytes:
        """Return munge's key.

        Args:
            may_make: make the key if there is none yet; only the controller may.

        Raises NotReadyError if there is none yet, it is damaged, or the secret cannot be read.
        """

    def states(self, ids: list[str]) -> dict[str, str]:
        """Return instance id -> state in EC2's words, of instances that the cloud still knows.

        Raises CloudError.
        """

    def store(self) -> Store:
        """Return the stack's records. Raises CloudError."""


def of(instance: InstanceFile) -> QueueCloud:
    """Return the cloud of this instance; the other's SDK is not loaded."""
    module = importlib.import_module(f"gpu_fleet_image.slurm.{instance.cloud}")
    own: QueueCloud = module.connect(instance)
    return own
