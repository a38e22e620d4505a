"""Comparison of two bakes of the same inputs, file by file.

Only files that are named here, each with its reason, may differ.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

# pattern of paths -> why two bakes differ there
_VOLATILE = {
    "etc/shadow*": "the day an account was made",
    "opt/gpu-fleet/venv/*/_distutils_hack/__pycache__/*": "Python's own start loads it while it is compiled",
    "var/cache/apt/archives/partial": "whether apt fetched anything, which it does as a user of its own",
    "var/cache/apt/*.bin": "apt writes them when it is asked something",
    "var/lib/dkms/*/make.log": "when the modules were compiled",
    "var/lib/dpkg/*": "the order in which packages were unpacked",
    "var/log/*": "what happened when",
}


@dataclass(frozen=True)
class ListedFile:
    """The part of a file that a bake decides.

    Attributes:
        mode: type and permissions.
        owner: user and group id.
        content: SHA-256 of a file, target of a link, empty for the rest.
    """

    mode: int
    owner: tuple[int, int]
    content: str


def listing(root: Path) -> dict[str, ListedFile]:
    """Return every file below a root: path -> entry. Times are left out: an instance does not use them."""
    return {str(path.relative_to(root)): _entry(path) for path in _below(root)}


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (Path(folder) / name for name in (*folders, *files))


def _entry(path: Path) -> ListedFile:
    status = path.lstat()
    content = ""
    if stat.S_ISLNK(status.st_mode):
        content = str(path.readlink())
    elif stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    return ListedFile(status.st_mode, (status.st_uid, status.st_gid), content)


def differences(first: dict[str, ListedFile], other: dict[str, ListedFile]) -> dict[str, str]:
    """Return forbidden differences: path -> description, in the order of paths."""
    changes = {path: _how(first.get(path), other.get(path)) for path in sorted(first.keys() | other.keys())}
    return {path: how for path, how in changes.items() if how and not _volatile(path)}


def _volatile(path: str) -> bool:
    """Return whether two bakes may differ in a file."""
    return any(fnmatch(path, pattern) for pattern in _VOLATILE)


def _how(first: ListedFile | None, other: ListedFile | None) -> str:
    if first is None or other is None:
        return "only in the second" if first is None else "only in the first"
    if first.mode != other.mode:
        return f"mode {first.mode:o} and {other.mode:o}"
    if first.owner != other.owner:
        return f"owner {first.owner} and {other.owner}"
    return "" if first.content == other.content else "content"
