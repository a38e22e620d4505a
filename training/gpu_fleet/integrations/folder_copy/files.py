"""Files of a folder at one moment: their hashes, and those that are still being written."""

import hashlib
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gpu_fleet.checkpoint import local

LIST, CONTENTS = "folder.json", "contents"  # in the store
OURS = ".gpu-fleet"  # the part of the folder that belongs to gpu-fleet; never uploaded
PERMISSIONS = 0o777  # without set-user-id and the like
QUIET_S = 2.0  # a file that was written to more recently may not be whole
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A file in the list, or a symbolic link, whose content is the path of its target."""

    size: int  # bytes
    sha256: str
    mtime_ns: int | None = field(default=None, compare=False)  # since the epoch; links have none
    link: bool = False
    mode: int | None = field(default=None, compare=False)  # permissions of owner, group and others

    @property
    def record(self) -> local.FileRecord:
        return local.FileRecord(self.size, self.sha256)


Records = dict[str, Entry]


@dataclass(frozen=True)
class Scan:
    """Files of a folder at one moment."""

    records: Records  # of whole files
    unsettled: frozenset[str]  # written to just now, so that they may not be whole


class FolderFiles:
    """Reader of a folder; each `scan` hashes only the files that have changed."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder, clock
        self._hashed: dict[str, tuple[tuple[int, int], Entry]] = {}  # with size and time at the hash
        self._first_seen: dict[str, tuple[tuple[int, int], float]] = {}  # a state that is new, and when
        self._named: set[str] = set()  # links that a warning has named

    def scan(self, *, last: bool) -> Scan:
        """Return all files and links; `last` says that no program writes any more, so that all are whole."""
        records: Records = {}
        unsettled: set[str] = set()
        outward: set[str] = set()
        for path in sorted(self._folder.rglob("*")):
            name = str(path.relative_to(self._folder))
            if self.is_ours(path):
                continue
            try:
                if path.is_symlink():
                    entry, others = self._link(path), outward
                elif path.is_file():
                    entry, others = self._entry(name, path, last=last), unsettled
                else:
                    continue
            except FileNotFoundError:  # removed meanwhile
                continue
            if entry is None:
                others.add(name)
            else:
                records[name] = entry
        self._warn(outward)
        return Scan(records, frozenset(unsettled))

    def is_ours(self, path: Path) -> bool:
        return path.relative_to(self._folder).parts[0] == OURS

    def is_as_hashed(self, name: str) -> bool:
        known = self._hashed.get(name)
        try:
            return known is not None and known[0] == _state(self._folder / name)
        except OSError:
            return False

    def target(self, name: str) -> str:
        return self._target(self._folder / name) or ""

    def _link(self, path: Path) -> Entry | None:
        """Return the entry of a link; None if it leads out of the folder."""
        if (target := self._target(path)) is None:
            return None
        content = os.fsencode(target)
        return Entry(len(content), hashlib.sha256(content).hexdigest(), link=True)

    def _entry(self, name: str, path: Path, *, last: bool) -> Entry | None:
        """Return the entry of a file; None while a program may be writing to it."""
        before = _state(path)
        known = self._hashed.get(name)
        if known is None or known[0] != before:
            if not last and self._clock() - self._changed_at(name, before) < QUIET_S:
                return None
            known = self._hashed[name] = before, Entry(**asdict(local.record_of(path)), mtime_ns=before[1])
        entry = replace(known[1], mode=path.stat().st_mode & PERMISSIONS)
        return entry if _state(path) == before else None

    def _changed_at(self, name: str, state: tuple[int, int]) -> float:
        """Return when a file was last written to; if its server's clock is ahead, when it was first seen."""
        seen = self._first_seen.get(name)
        if seen is None or seen[0] != state:
            seen = self._first_seen[name] = state, self._clock()
        return min(state[1] / 1e9, seen[1])

    def _target(self, link: Path) -> str | None:
        """Return the target of a link, relative to the link; None if it is outside the folder."""
        written = link.readlink()
        for whole in (Path.absolute, Path.resolve):
            parent, folder = whole(link.parent), whole(self._folder)
            place = os.path.normpath(parent / written)
            if Path(place).is_relative_to(folder):
                return os.path.relpath(place, parent)
        return None

    def _warn(self, outward: Collection[str]) -> None:
        fresh = sorted(set(outward) - self._named)
        if fresh:
            self._named |= set(fresh)
            log.warning(
                "event=links-left-out folder=%s names=%r help='they lead out of it: copy what they name'",
                self._folder,
                fresh,
            )


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
