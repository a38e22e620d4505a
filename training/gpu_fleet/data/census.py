"""Census of a data set's files: the number that a reader leaves out, by reason, with an example."""

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_fleet.core.errors import DataError

# Names that systems and programs leave in any folder; they hold no samples.
OF_SYSTEM = ("lost+found", "__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information")
OF_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
HIDDEN = "hidden files and folders"
DANGLING = "links that lead nowhere"
SPECIAL = "devices, pipes and sockets"
LOOPS = "links to a folder above"
TWICE = "folders that are links to another one of these data"
OTHERS = "files of other kinds"
UNSEEN = "Cf"  # category of Unicode: characters without a look, such as a zero-width space
ZEROS = re.compile(r"^([+-]?[0-9]+)\.0+$")  # a whole number that was written as a real one


@dataclass
class Census:
    """Record of the things that a reader leaves out: for each reason their number and the first of them."""

    left_out: dict[str, tuple[int, str]] = field(default_factory=dict)
    _files: dict[tuple[int, int], Path] = field(default_factory=dict)  # by device and inode

    def leave(self, reason: str, example: object, count: int = 1) -> None:
        """Count things that are left out, such as "hidden files and folders"."""
        before, first = self.left_out.get(reason, (0, shown(example)))
        if count:
            self.left_out[reason] = before + count, first

    def once(self, file: Path) -> None:
        """Note a file of samples; raises DataError if it was noted by another name, as of another split."""
        about = file.stat()
        if (other := self._files.setdefault((about.st_dev, about.st_ino), file)) != file:
            raise DataError(f"{shown(other)} and {shown(file)} are links to one file: remove one")

    def add(self, other: "Census") -> None:
        for reason, (count, example) in other.left_out.items():
            self.leave(reason, example, count)

    def table(self) -> dict[str, Any]:
        return {
            reason: {"count": count, "example": example} for reason, (count, example) in self.left_out.items()
        }

    def __str__(self) -> str:
        parts = (f"{reason}: {count}, as {example}" for reason, (count, example) in self.left_out.items())
        return "; ".join(parts) or "nothing"


def shown(name: object) -> str:
    """Return a name for a message, with unprintable characters, such as a byte order mark, escaped."""
    text = str(name)
    return text if text.isprintable() else repr(text)[1:-1]


def is_hidden(name: str) -> bool:
    """Return whether a name is hidden, or one that a system or a program leaves in any folder."""
    return name.startswith(".") or name.lower() in (*OF_SYSTEM, *OF_SYSTEM_FILES)


def check_unlinked(training: Iterable[Path], held_out: Iterable[Path]) -> None:
    """Raise DataError for a file that links put into both splits; repeats within a split may be meant."""
    known = {inode: file for file, inode in _with_inodes(held_out)}
    for file, inode in _with_inodes(training):
        if (other := known.get(inode)) and Path(file).samefile(other):  # not of two disks
            raise DataError(
                f"{shown(file)} of train and {shown(other)} of val are links to one file: remove one"
            )


def _with_inodes(files: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Yield files with inodes out of their folders' listings: calls for each take minutes by a network."""
    wanted: dict[str, set[str]] = {}
    for folder, name in map(os.path.split, files):
        wanted.setdefault(folder, set()).add(name)
    for folder, names in wanted.items():
        for entry in entries(Path(folder), Census()):
            if entry.name in names:
                yield entry.path, entry.stat().st_ino if entry.is_symlink() else entry.inode()


def walked(root: Path, census: Census, seen: dict[tuple[int, int], str] | None = None) -> Iterator[Path]:
    """Yield all files below a folder, sorted, before those of its subfolders; raises DataError.

    Others are counted in `census`, also second links to a folder, which `seen` has from earlier walks.
    """
    seen = {} if seen is None else seen
    if not root.is_dir():
        return
    about = root.stat()
    if seen.setdefault((about.st_dev, about.st_ino), str(root)) != str(root):
        census.leave(TWICE, root)
        return
    folders = []
    for entry in entries(root, census):
        if entry.is_dir():
            folders.append(entry)
        elif entry.is_file():
            yield Path(entry.path)
        else:
            census.leave(DANGLING if entry.is_symlink() else SPECIAL, entry.path)
    for entry in folders:
        if entry.is_symlink() and root.resolve().is_relative_to(Path(entry.path).resolve()):
            census.leave(LOOPS, entry.path)
        else:
            yield from walked(Path(entry.path), census, seen)


def entries(root: Path, census: Census) -> list[os.DirEntry[str]]:
    """Return the entries, sorted by name, without hidden ones and links to themselves; raises DataError."""
    try:
        with os.scandir(root) as scanned:
            listed = sorted(scanned, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{shown(root)}: cannot be read: {error.strerror}") from error
    kept = []
    for entry in listed:
        reason = HIDDEN if is_hidden(entry.name) else ""
        try:
            entry.is_dir()
        except OSError:  # a link to itself
            reason = reason or DANGLING
        if reason:
            census.leave(reason, entry.path)
        else:
            kept.append(entry)
    return kept


def check_apart(names: Iterable[str], what: str) -> None:
    """Raise DataError if two names differ only in case, spaces, Unicode form, unseen signs, or zeros."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(_folded(name), name)
        if other != name:
            raise DataError(
                f"{what} '{shown(other)}' and '{shown(name)}' differ only in spelling, and would be two "
                "classes: spell both alike, or rename one"
            )


def _folded(name: str) -> str:
    seen = "".join(sign for sign in name if unicodedata.category(sign) != UNSEEN)
    plain = unicodedata.normalize("NFC", seen.strip())
    return plain if len(plain) == 1 else ZEROS.sub(r"\1", plain.casefold())  # `a` and `A` may be two letters
