"""What the log of either cloud can do, and how it says no."""

import importlib
from collections.abc import Sequence
from typing import Protocol

from image.instance.errors import InstanceError
from image.instance.instance_file import InstanceFile
from image.instance.metadata import Metadata
from image.logs.buffer import BatchLimits
from image.logs.lines import Line

QUEUE_FOLDER = "queue"


class LinesNotTakenError(InstanceError):
    """Nothing was written now: throttled, not reached, not allowed. The same lines may be sent again."""


class LinesRefusedError(InstanceError):
    """Nothing was written, and these lines will never be taken."""


class LogService(Protocol):
    """Where lines go."""

    limits: BatchLimits

    def size(self, line: Line) -> int:
        """The bytes that a line takes of a batch."""

    def send(self, lines: Sequence[Line]) -> int:
        """Write a batch, by time; gives how many of its lines the service left out by their age.

        Raises:
            LinesNotTakenError: nothing was written; try again later.
            LinesRefusedError: nothing was written, and never will be.
        """


def connect(instance: InstanceFile, metadata: Metadata) -> LogService:
    """The log that the instance's stack declares; nothing of the other cloud is loaded.

    Raises:
        CloudError: the metadata service does not answer.
    """
    made: LogService = importlib.import_module(f"image.logs.{instance.cloud}").connect(instance, metadata)
    return made


def source(instance: InstanceFile, instance_id: str) -> str:
    """What one instance's lines stand under: its pool and its id; the queue's controller is in no pool."""
    return f"{instance.pool or QUEUE_FOLDER}/{instance_id}"
