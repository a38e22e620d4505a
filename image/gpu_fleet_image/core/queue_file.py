"""``/etc/gpu-fleet/queue.json``: the stack's queue, as the user data describes it."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from gpu_fleet_image.core.document import TEXT, Record, parse
from gpu_fleet_image.core.queue_errors import QueueFileError


class QueueRole(StrEnum):
    """Role of an instance in the queue."""

    CONTROLLER = "controller"
    NODE = "node"


@dataclass(frozen=True)
class QueueFile(Record):
    """Queue settings of one instance.

    Attributes:
        address: the controller's, which stays the same when the controller is replaced.
        secret: name of the secret with munge's key.
    """

    role: QueueRole
    address: Annotated[str, TEXT]
    secret: Annotated[str, TEXT]


def path() -> Path:
    """Return the path of the file (``GPU_FLEET_QUEUE_FILE``)."""
    return Path(os.environ.get("GPU_FLEET_QUEUE_FILE", "/etc/gpu-fleet/queue.json"))


def load(file: Path) -> QueueFile:
    """Read and check the file. Raises QueueFileError, which names what is wrong."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise QueueFileError(f"queue file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise QueueFileError(f"queue file {file}: not UTF-8: {error}") from error
    return parse(QueueFile, text, QueueFileError, f"queue file {file}")
