"""A folder of any program's checkpoints, kept in an object store as it was at one moment.

Contents go up under their hash, and then one list of names and hashes, which is the commit: an instance that
is lost in the midst of it leaves the list before, and all that it names. A file that has just been written is
left for the next time, so that no half-written one is taken. What we know of a folder is in it, in
.gpu-fleet, which is never uploaded: that it was brought back in part only, which the next try mends, and
which list was its own. Where the bucket has another, the run went on elsewhere, and is not overwritten.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from gpu_fleet.checkpoint import local
from gpu_fleet.errors import CheckpointError, IdentityError
from gpu_fleet.files import write_bytes
from gpu_fleet.storage.object_store import ObjectStore, patiently

LIST, CONTENTS = "folder.json", "contents"
OURS, KNOWN = ".gpu-fleet", "folder.json"  # in the folder, and in that
QUIET_S = 2.0  # a file that was written to more recently may not be whole
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A file as the list has it; two are equal by content."""

    size: int  # bytes
    sha256: str
    mtime_ns: int | None = field(default=None, compare=False)  # of the epoch; lists of before have none

    @property
    def record(self) -> local.FileRecord:
        """What its content has to be."""
        return local.FileRecord(self.size, self.sha256)


Records = dict[str, Entry]


@dataclass(frozen=True)
class FolderKnowledge:
    """What this disk knows of a folder."""

    uri: str
    lists: list[str]  # hashes of those that this folder has had; two while one is being replaced
    contents: list[str]  # hashes of what they name, and of what may have been uploaded for the next
    restoring: bool = False  # it was not yet brought back as a whole

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """None where the folder was never in a bucket, as far as this disk knows."""
        try:
            return cls(**json.loads((folder / OURS / KNOWN).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise IdentityError(f"{folder / OURS / KNOWN}: cannot be read: {error}") from error

    def write(self, folder: Path) -> None:
        """As a whole or not at all."""
        try:
            (folder / OURS).mkdir(parents=True, exist_ok=True)
            staged = folder / OURS / f"{KNOWN}.{os.getpid()}"
            write_bytes(staged, json.dumps(asdict(self)).encode())
            staged.replace(folder / OURS / KNOWN)
        except OSError as error:
            raise CheckpointError(f"{folder / OURS}: cannot be written: {error.strerror}") from error


class FolderSync:
    """Keeps a folder in a store, and brings it back."""

    def __init__(
        self,
        folder: Path,
        store: ObjectStore,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`clock` gives seconds of the epoch, as the times of files are; `sleep` is between two tries."""
        self._folder, self._store, self._clock, self._sleep = folder, store, clock, sleep
        self._hashed: dict[str, tuple[tuple[int, int], Entry]] = {}  # with size and time it had
        self._listed: Records = {}  # what the list in the store says
        self._there: set[str] | None = None  # hashes whose contents are in the store
        self._known: FolderKnowledge | None = None
        self._links: set[str] = set()  # those that a warning has named

    def down(self) -> int:
        """Brings the folder back where it has no files or older ones, which it sets aside; the files brought.

        Several processes may call it at once: one brings, the others wait. Raises CheckpointError, and
        IdentityError where nothing shows which of folder and bucket is the newer.
        """
        with _alone(self._folder):
            known = self._known = FolderKnowledge.read(self._folder)
            listed = self._ask(lambda: self._store.get(LIST))
            if known is not None and known.restoring and (listed is None or known.uri != self._store.uri):
                raise IdentityError(
                    f"{self._folder} has a part of {known.uri} only, which {self._store.uri} cannot "
                    f"complete: take {known.uri}, or remove {self._folder}"
                )
            if listed is None or self._goes_on_from(listed):
                return 0
            return self._restore(listed)

    def _goes_on_from(self, listed: bytes) -> bool:
        """Whether the folder has files, and is what the bucket has or newer; else they are out of the way."""
        known, digest = self._known, _sha256(listed)
        ours = known is not None and known.uri == self._store.uri and digest in known.lists
        if known is not None and known.restoring:
            if not ours:
                self._set_aside()
            return False
        if not self._has_files():
            return False
        if ours:
            return True
        records = _records(listed)
        if self._files(last=True) == records:
            self._know([digest], _hashes(records))
            return True
        if known is None or known.uri != self._store.uri:
            raise IdentityError(
                f"{self._folder} has files that were never in {self._store.uri}, which has others: move "
                f"{self._folder} away to go on with the bucket's, or take another --uri"
            )
        self._set_aside()
        return False

    def _know(self, lists: list[str], contents: set[str], *, restoring: bool = False) -> None:
        self._known = FolderKnowledge(self._store.uri, lists, sorted(contents), restoring)
        self._known.write(self._folder)

    def _restore(self, listed: bytes) -> int:
        """Brings all files of a list; a mark says until the end that they are not all there."""
        records, digest = _records(listed), _sha256(listed)
        self._know([digest], _hashes(records), restoring=True)
        for name, record in records.items():
            self._bring(name, record)
        self._date_folders(records)
        shutil.rmtree(self._folder / OURS / "part", ignore_errors=True)
        self._know([digest], _hashes(records))
        log.info("event=folder-restored files=%d uri=%s", len(records), self._store.uri)
        return len(records)

    def _date_folders(self, records: Records) -> None:
        """Gives every folder the time of its newest file, by which programs choose the newest checkpoint."""
        times: dict[Path, int] = {}
        for name, record in records.items():
            for parent in Path(name).parents[:-1]:
                times[parent] = max(times.get(parent, 0), record.mtime_ns or 0)
        for parent, mtime_ns in times.items():
            if mtime_ns:
                os.utime(self._folder / parent, ns=(mtime_ns, mtime_ns))

    def _bring(self, name: str, record: Entry) -> None:
        file = self._folder / name
        if not file.resolve().is_relative_to(self._folder.resolve()):
            raise CheckpointError(f"{self._store.uri}: the name {name!r} leads out of {self._folder}")
        if file.is_file() and local.record_of(file) == record.record:  # by an earlier try
            return
        staged = self._folder / OURS / "part" / str(os.getpid())
        staged.parent.mkdir(parents=True, exist_ok=True)
        answer = self._ask(lambda: self._store.get(f"{CONTENTS}/{record.sha256}", staged))
        if answer is None or local.record_of(staged) != record.record:
            raise CheckpointError(f"{self._store.uri}: {name} is not what {LIST} says")
        if record.mtime_ns is not None:
            os.utime(staged, ns=(record.mtime_ns, record.mtime_ns))
        file.parent.mkdir(parents=True, exist_ok=True)
        staged.replace(file)

    def _ask(self, question: Callable[[], bytes | None]) -> bytes | None:
        return patiently(question, sleep=self._sleep)

    def _has_files(self) -> bool:
        entries = (entry for entry in self._folder.rglob("*") if not self._is_ours(entry))
        return any(entry.is_symlink() or not entry.is_dir() for entry in entries)

    def _is_ours(self, entry: Path) -> bool:
        return entry.relative_to(self._folder).parts[0] == OURS

    def _set_aside(self) -> None:
        """Moves what is in the folder to one beside it, for its owner to look at."""
        folder = self._folder.resolve()
        names = (f"{folder.name}.older{number}" for number in ("", *(f"-{n}" for n in range(2, 1000))))
        aside = next(place for name in names if not (place := folder.with_name(name)).exists())
        try:
            aside.mkdir()
            for entry in sorted(folder.iterdir()):
                if entry.name != OURS:
                    entry.rename(aside / entry.name)
        except OSError as error:
            raise IdentityError(
                f"{folder} has an older state than {self._store.uri}, and cannot be moved to {aside}: "
                f"{error.strerror}; move it away, or take another --uri"
            ) from error
        log.warning("event=folder-set-aside from=%s to=%s uri=%s", folder, aside, self._store.uri)

    def up(self, *, last: bool = False) -> bool:
        """Takes over what has changed; whether anything had. Raises CheckpointError.

        `last` says that nobody writes any more, so that all files are whole. Raises IdentityError where the
        bucket has a list that this folder never had: another process has gone on, and is not overwritten.
        """
        records = self._files(last=last)
        if records == self._listed and self._there is not None:
            return False
        with _alone(self._folder):
            known = self._known = self._known or FolderKnowledge.read(self._folder)
            own = known is not None and known.uri == self._store.uri
            lists, before = (known.lists, set(known.contents)) if known and own else ([], set())
            there = self._store.get(LIST)
            if known is not None and known.restoring:
                raise IdentityError(f"{self._folder}: has a part of {known.uri} only; it is not uploaded")
            if there is not None and _sha256(there) not in lists and _records(there) != records:
                raise IdentityError(
                    f"{self._store.uri} has files that {self._folder} never had: another process has gone on "
                    "there, and they are not overwritten; run again to go on with them, or take another --uri"
                )
            if there is None and not records:
                return False
            listed = json.dumps(
                {name: asdict(record) for name, record in records.items()}, indent=1, sort_keys=True
            ).encode()
            replaced = [] if there is None else [_sha256(there)]
            self._know([*replaced, _sha256(listed)], before | _hashes(records))
            self._upload(records, listed)
            self._remove(before - _hashes(records))
            self._know([_sha256(listed)], _hashes(records))
        self._listed = records
        log.info("event=folder-saved files=%d uri=%s", len(records), self._store.uri)
        return True

    def _upload(self, records: Records, listed: bytes) -> None:
        if self._there is None:
            self._there = set(self._store.sizes(CONTENTS))
        for name, record in records.items():
            if record.sha256 not in self._there:
                self._store.put(f"{CONTENTS}/{record.sha256}", self._folder / name)
                self._there.add(record.sha256)
        self._store.put(LIST, listed)

    def _remove(self, stale: set[str]) -> None:
        """Contents that this folder had and has no more; never those of another process."""
        for content in sorted(stale):
            self._store.delete(f"{CONTENTS}/{content}")
            if self._there is not None:
                self._there.discard(content)

    def _files(self, *, last: bool) -> Records:
        """All whole files; one that is being written is left out, as are symbolic links, with a warning."""
        records: Records = {}
        links: set[str] = set()
        for file in sorted(self._folder.rglob("*")):
            name = str(file.relative_to(self._folder))
            try:
                if file.is_symlink():
                    links.add(name)
                    continue
                if not file.is_file() or self._is_ours(file):
                    continue
                before = file.stat()
                key = before.st_size, before.st_mtime_ns
                known = self._hashed.get(name)
                if (known is None or known[0] != key) and (
                    last or self._clock() - before.st_mtime >= QUIET_S
                ):
                    known = self._hashed[name] = key, Entry(**asdict(local.record_of(file)), mtime_ns=key[1])
                if known is not None and known[0] == key:
                    records[name] = known[1]
            except FileNotFoundError:  # removed meanwhile
                continue
        if links - self._links:
            log.warning(
                "event=links-left-out folder=%s names=%r help='the bucket keeps files; copy what they name'",
                self._folder,
                sorted(links - self._links),
            )
            self._links |= links
        return records


def _records(listed: bytes) -> Records:
    return {
        name: Entry(record["size"], record["sha256"], record.get("mtime_ns"))
        for name, record in json.loads(listed).items()
    }


def _hashes(records: Records) -> set[str]:
    return {record.sha256 for record in records.values()}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process of this instance looks after the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:  # a file system without locks
            log.warning("event=no-lock folder=%s error=%r", folder, str(error))
        yield
    finally:
        os.close(descriptor)
