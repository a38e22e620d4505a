"""Files and names in folders that are down before anything goes on."""

import errno
import os
import socket
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Of a disk, a file server or the network: the same may well go right on another instance, or in a minute.
PASSING = (
    *DISK_FULL,
    *(errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT),
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ENETDOWN),
    *(errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, socket.EAI_AGAIN),
)


def may_pass(error: BaseException) -> bool:
    """Whether an error is of a disk, a file server or the network, and another try may end otherwise.

    A library that raises one of its own for it, as of an address that does not answer, has it as its cause.
    """
    if not isinstance(error, OSError):
        return False
    if isinstance(error, ConnectionError | TimeoutError) or error.errno in PASSING:
        return True
    reason = error.__cause__ or error.__context__
    while reason is not None and not isinstance(reason, OSError):
        reason = reason.__cause__ or reason.__context__
    return reason is not None and may_pass(reason)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file and waits until it is down."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are down."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
