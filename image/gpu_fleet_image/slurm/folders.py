"""Folders on the shared homes, where root of any instance of the stack can write anything.

When the controller's root gives a folder there to an account, it must be the one that it checked: a link
could lead to the controller's own files. So folders are opened without following links, and changed by
descriptor.
"""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_fleet_image.core.files import FOLDER

OWNER_ALONE = 0o700


@contextmanager
def made(name: str | Path, parent: int | None = None) -> Iterator[int]:
    """Open a folder, which is made if it does not exist; yield its descriptor.

    Raises OSError if it cannot be made, or is a link or a file (``NotADirectoryError``).
    """
    with suppress(FileExistsError):
        os.mkdir(name, OWNER_ALONE, dir_fd=parent)
    descriptor = os.open(name, FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def give(folder: int, user: int, group: int, mode: int = OWNER_ALONE) -> None:
    """Give a folder to an account. Raises OSError."""
    os.fchown(folder, user, group)
    os.fchmod(folder, mode)


def give_files(folder: int, user: int, group: int) -> None:
    """Give the regular files of a folder to an account; links stay unchanged. Raises OSError."""
    for name in os.listdir(folder):
        if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chown(name, user, group, dir_fd=folder, follow_symlinks=False)


def lay_state(state: Path, account: str = "slurm") -> None:
    """Make slurmctld's folder and its parent for its account, whose number may differ between controllers.

    Raises OSError if one cannot be made, or is a link.
    """
    owner = pwd.getpwnam(account)
    with made(state.parent) as parent, made(state.name, parent) as own:
        for folder in (parent, own):
            give(folder, owner.pw_uid, owner.pw_gid)
