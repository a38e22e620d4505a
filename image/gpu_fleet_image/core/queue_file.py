"""``/etc/gpu-fleet/queue.json``: the stack's queue, as the user data describes it."""

import json
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_fleet_image.core.queue_errors import QueueFileError

TEXTS = ("role", "address", "secret")


class QueueRole(StrEnum):
    """Role of an instance in the queue."""

    CONTROLLER = "controller"
    NODE = "node"


@dataclass(frozen=True)
class QueueFile:
    """Queue settings of one instance.

    Attributes:
        address: the controller's, which stays the same when the controller is replaced.
        secret: name of the secret with munge's key.
    """

    role: QueueRole
    address: str
    secret: str


def path() -> Path:
    """Return the path of the file (``GPU_FLEET_QUEUE_FILE``)."""
    return Path(os.environ.get("GPU_FLEET_QUEUE_FILE", "/etc/gpu-fleet/queue.json"))


def load(file: Path) -> QueueFile:
    """Read and check the file. Raises QueueFileError, which names what is wrong."""
    try:
        raw: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise QueueFileError(f"queue file {file}: {error.strerror}") from error
    except ValueError as error:
        raise QueueFileError(f"queue file {file}: not JSON: {error}") from error
    table = raw if isinstance(raw, dict) else {}
    wrong = [key for key in TEXTS if not isinstance(table.get(key), str) or not table[key]]
    if wrong:
        raise QueueFileError(
            "\n".join(f"queue file {file}: {key} = {table.get(key)!r}; allowed: a text" for key in wrong)
        )
    if table["role"] not in tuple(QueueRole):
        allowed = ", ".join(QueueRole)
        raise QueueFileError(f"queue file {file}: role = {table['role']!r}; allowed: {allowed}")
    return QueueFile(QueueRole(table["role"]), table["address"], table["secret"])
