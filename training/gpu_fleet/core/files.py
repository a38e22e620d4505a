"""Durable writes of files and folders, and errors of the operating system that may pass."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_fleet.core.errors import CheckpointError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Errors of a disk, a file server or the network: another instance, or a later try, may succeed.
PASSING = (
    *DISK_FULL,
    *(errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT),
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ENETDOWN),
    *(errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, socket.EAI_AGAIN),
)


def may_pass(error: BaseException) -> bool:
    """Return whether an error, or its cause, is of a disk, a file server or the network: it may pass."""
    reason: BaseException | None = error if isinstance(error, OSError) else None
    seen: set[int] = set()
    while reason is not None and id(reason) not in seen:  # `raise error from error` causes itself
        seen.add(id(reason))
        if isinstance(reason, ConnectionError | TimeoutError):
            return True
        if isinstance(reason, OSError) and reason.errno in PASSING:
            return True
        reason = reason.__cause__ or reason.__context__
    return False


@contextmanager
def on_disk(place: Path | str) -> Iterator[None]:
    """Turn an OSError of the block into a CheckpointError: `place` cannot be written."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be written: {error.strerror}") from error


def write_bytes(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
