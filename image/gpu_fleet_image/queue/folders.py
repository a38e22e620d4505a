"""Folders on the shared homes, where root of any instance of the stack may lay what it likes.

What root of the controller gives to an account there must be what it looked at: a link would lead it to the
controller's own files. So folders are opened without following one, and changed by what was opened.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_fleet_image.core.files import FOLDER

OWNER_ALONE = 0o700


@contextmanager
def made(name: str | Path, parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder, which is made where it is not there.

    Args:
        parent: descriptor of the folder that has it; None for a path.

    Raises:
        OSError: it cannot be made, or is a link or a file (``NotADirectoryError``).
    """
    with suppress(FileExistsError):
        os.mkdir(name, OWNER_ALONE, dir_fd=parent)
    descriptor = os.open(name, FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def give(folder: int, user: int, group: int, mode: int = OWNER_ALONE) -> None:
    """Let a folder be an account's. Raises OSError."""
    os.fchown(folder, user, group)
    os.fchmod(folder, mode)


def give_files(folder: int, user: int, group: int) -> None:
    """Let the regular files of a folder be an account's; links stay as they are. Raises OSError."""
    for name in os.listdir(folder):
        if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chown(name, user, group, dir_fd=folder, follow_symlinks=False)
