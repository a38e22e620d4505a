"""Two bakes of the same inputs, file by file: ``gpu-fleet image compare ROOT_A ROOT_B``.

Only files that are named here, each with its reason, may differ.
"""

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import click

# pattern of paths -> why two bakes differ there
VOLATILE = {
    "etc/shadow*": "the day an account was made",
    "opt/gpu-fleet/venv/*/_distutils_hack/__pycache__/*": "Python's own start loads it while it is compiled",
    "var/cache/apt/archives/partial": "whether apt fetched anything, which it does as a user of its own",
    "var/cache/apt/*.bin": "apt writes them when somebody asks it something",
    "var/lib/dkms/*/make.log": "when the modules were compiled",
    "var/lib/dpkg/*": "the order in which packages were unpacked",
    "var/log/*": "what happened when",
}


@dataclass(frozen=True)
class Entry:
    """One file as far as a bake decides it.

    Attributes:
        mode: type and permissions.
        owner: user and group id.
        content: SHA-256 of a file, target of a link, empty for the rest.
    """

    mode: int
    owner: tuple[int, int]
    content: str


def listing(root: Path) -> dict[str, Entry]:
    """Every file below a root: path -> entry. Times are left out: they decide nothing on a machine."""
    return {str(path.relative_to(root)): _entry(path) for path in _below(root)}


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (Path(folder) / name for name in (*folders, *files))


def _entry(path: Path) -> Entry:
    found = path.lstat()
    content = ""
    if stat.S_ISLNK(found.st_mode):
        content = str(path.readlink())
    elif stat.S_ISREG(found.st_mode):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    return Entry(found.st_mode, (found.st_uid, found.st_gid), content)


def differences(one: dict[str, Entry], other: dict[str, Entry]) -> dict[str, str]:
    """What differs and may not: path -> how, in the order of paths."""
    found = {path: _how(one.get(path), other.get(path)) for path in sorted(one.keys() | other.keys())}
    return {path: how for path, how in found.items() if how and not volatile(path)}


def volatile(path: str) -> bool:
    """Whether two bakes may differ in a file."""
    return any(fnmatch(path, pattern) for pattern in VOLATILE)


def _how(one: Entry | None, other: Entry | None) -> str:
    if one is None or other is None:
        return "only in the second" if one is None else "only in the first"
    if one.mode != other.mode:
        return f"mode {one.mode:o} and {other.mode:o}"
    if one.owner != other.owner:
        return f"owner {one.owner} and {other.owner}"
    return "" if one.content == other.content else "content"


@click.command(epilog="\b\nExample:\n  gpu-fleet image compare build/one/rootfs build/two/rootfs")
@click.argument("one", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("other", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(one: Path, other: Path) -> None:
    """Compare two root file systems; exit status 1 when they differ where they may not."""
    found = differences(listing(one), listing(other))
    for path, how in found.items():
        click.echo(f"{path}: {how}")
    click.echo(f"{len(found)} files differ, {len(VOLATILE)} patterns left out")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
