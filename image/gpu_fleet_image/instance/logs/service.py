"""Protocol of the log of either cloud, and its errors."""

import importlib
from collections.abc import Sequence
from typing import Protocol

from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.logs.buffer import BatchLimits
from gpu_fleet_image.instance.logs.lines import Line

_QUEUE_FOLDER = "queue"


class LinesNotTakenError(InstanceError):
    """Nothing was written now: throttled, not reached, not allowed. The same lines may be sent again."""


class LinesRefusedError(InstanceError):
    """Nothing was written, and the service will never take these lines."""


class LogService(Protocol):
    """Destination of the lines."""

    limits: BatchLimits

    def size(self, line: Line) -> int:
        """Return the bytes that a line takes of a batch."""

    def send(self, lines: Sequence[Line]) -> int:
        """Write a batch, sorted by time; return how many lines the service left out because of their age.

        Raises:
            LinesNotTakenError: nothing was written; try again later.
            LinesRefusedError: nothing was written, and the service will never take these lines.
        """


def connect(instance: InstanceFile, metadata: Metadata) -> LogService:
    """Return the log that the instance's stack declares; only that cloud's module is loaded.

    Raises CloudError if the metadata service does not answer.
    """
    made: LogService = importlib.import_module(f"gpu_fleet_image.instance.logs.{instance.cloud}").connect(
        instance, metadata
    )
    return made


def source(instance: InstanceFile, instance_id: str) -> str:
    """Return the source of an instance's lines: pool and id; the queue's controller is in no pool."""
    return f"{instance.pool or _QUEUE_FOLDER}/{instance_id}"
