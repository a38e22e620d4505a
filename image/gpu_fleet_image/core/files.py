"""Small files that root's programs write whole and read back, protected from the instance's users.

If a program that runs as root opens a predictable name in a folder where users may write, it opens what they
put there: a link to a file that only root may access, or a pipe that never answers. So a file is made under a
name that nobody can guess, put in place by one rename, and read without following a link or waiting. A folder
that others may write to is refused. https://cwe.mitre.org/data/definitions/59.html
"""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

ROOT = 0
LARGEST_READ_BYTES = 2**20  # of a file that agent or gate wrote; theirs have a few KiB
_READABLE_BY_ALL, OWN = 0o644, 0o600
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# without O_NONBLOCK, opening a pipe without a writer would block
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def replace_text(path: Path, text: str, mode: int = _READABLE_BY_ALL) -> None:
    """Write a file at once, so that nobody reads half of it.

    Args:
        path: of the file; its folder must exist.

    Raises OSError if it cannot be written, or others may write to its folder (``PermissionError``).
    """
    with _folder(path.parent) as folder:
        unfinished = f".{path.name}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(unfinished, flags, OWN, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(descriptor, mode)
            os.rename(unfinished, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(unfinished, dir_fd=folder)
            raise


def read_text(path: Path) -> str:
    """Return the whole text of a file that root or this program's own user wrote.

    Raises:
        OSError: it cannot be read, is a link, a pipe or too large, or belongs to another user.
        UnicodeDecodeError: it is not UTF-8.
    """
    descriptor = os.open(path, FILE)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if status.st_uid not in (ROOT, os.geteuid()):
            raise PermissionError(errno.EPERM, f"belongs to user {status.st_uid}", str(path))
        content = file.read(LARGEST_READ_BYTES + 1)
    if len(content) > LARGEST_READ_BYTES:
        raise OSError(errno.EFBIG, f"holds more than {LARGEST_READ_BYTES} bytes", str(path))
    return content.decode("utf-8")


@contextmanager
def opened(folder: Path, relative: PurePath) -> Iterator[int]:
    """Open a regular file below a folder for reading, following no link on the way; yield its descriptor.

    For folders in which users move things while root reads: an earlier check of the path proves nothing.

    Raises OSError if a part of the path is a link, or the path leads to no regular file.
    """
    parent = os.open(folder, FOLDER)
    try:
        for name in relative.parts[:-1]:
            child = os.open(name, FOLDER, dir_fd=parent)
            os.close(parent)
            parent = child
        descriptor = os.open(relative.name, FILE, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(folder / relative))
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock against other programs of root; they wait.

    No other user can open the lock: whoever may read a file can lock it, and block root for ever.

    Args:
        path: of the lock; its folder must exist.

    Raises OSError if it cannot be opened, or others may write to its folder (``PermissionError``).
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with _folder(path.parent) as folder:
        descriptor = os.open(path.name, flags, OWN, dir_fd=folder)
    try:
        os.fchmod(descriptor, OWN)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open a folder that is safe to write to; yield its descriptor, by which names are looked up."""
    descriptor = os.open(path, FOLDER)
    try:
        why = unsafe(os.fstat(descriptor), os.geteuid())
        if why:
            raise PermissionError(errno.EPERM, why, str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def unsafe(folder: os.stat_result, user: int) -> str:
    """Return why a user must not write a predictable name in a folder; empty if it is safe. Pure.

    Only root is refused a group's folder: a developer's own group often has no other member (umask 002).
    """
    if folder.st_uid not in (ROOT, user):
        return f"the folder belongs to user {folder.st_uid}"
    if folder.st_mode & stat.S_IWOTH:
        return "everybody may write in the folder"
    if user == ROOT and folder.st_mode & stat.S_IWGRP and folder.st_gid != ROOT:
        return f"group {folder.st_gid} may write in the folder"
    return ""
