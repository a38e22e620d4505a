"""Copy of a folder of any program's checkpoints in an object store, as the folder was at one moment.

Contents are uploaded under their hash. A list of names and hashes follows, and is the commit: before that,
the store keeps the former list and all contents that it names. While a file is being written, the commit
waits for a while. For a file that is written to all the time, the list keeps the former content.

The folder .gpu-fleet, which is never uploaded, holds what this disk knows: the list that the folder had last,
and whether only a part of it was restored, which the next try completes. If the store has another list, the
run has continued elsewhere, and the list is not overwritten.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from gpu_fleet.checkpoint import local
from gpu_fleet.core.errors import CheckpointError, IdentityError
from gpu_fleet.core.files import on_disk, write_bytes
from gpu_fleet.integrations.folder_copy.files import CONTENTS, LIST, OURS, Entry, FolderFiles, Records, Scan
from gpu_fleet.storage.object_store import ObjectStore, patiently

KNOWN = "folder.json"  # in .gpu-fleet of the folder
WAIT_S = 60.0  # longest wait for files that are being written; then the whole files are uploaded without them
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FolderKnowledge:
    """Knowledge of this disk about a folder and its copy in a store."""

    uri: str
    lists: list[str]  # hashes of the lists of this folder; two while one is being replaced
    contents: list[str]  # hashes of the contents of these lists, and of uploads for the next list
    restoring: bool = False  # only a part of the folder is restored so far

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        try:
            return cls(**json.loads((folder / OURS / KNOWN).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise IdentityError(f"{folder / OURS / KNOWN}: cannot be read: {error}") from error

    def write(self, folder: Path) -> None:
        with on_disk(folder / OURS):
            (folder / OURS).mkdir(parents=True, exist_ok=True)
            staged = folder / OURS / f"{KNOWN}.{os.getpid()}"
            write_bytes(staged, json.dumps(asdict(self)).encode())
            staged.replace(folder / OURS / KNOWN)


class FolderSync:
    """Copy of a folder in a store: upload and restore."""

    def __init__(
        self,
        folder: Path,
        store: ObjectStore,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        held: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare a copy; `held` raises RunLeaseError if another process has the run."""
        self._held = held
        self._folder, self._store, self._clock, self._sleep = folder, store, clock, sleep
        self.folder, self.uri = folder, store.uri
        self._files = FolderFiles(folder, clock)
        self._listed: Records = {}  # the list in the store
        self._there: set[str] | None = None  # hashes whose contents are in the store
        self._known: FolderKnowledge | None = None
        self._restless: frozenset[str] = frozenset()  # files that were being written at the last commit
        self._waiting_since: float | None = None
        self._given_up = threading.Event()
        self._asked_at: float | None = None  # when the present request began, or last moved bytes

    def still_s(self) -> float:
        """Return the seconds since the present request began or last moved bytes; 0 without a request."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else self._clock() - asked_at

    def _asked(self, request: Callable[..., T], *arguments: Any) -> T:
        self._asked_at = self._clock()
        try:
            return request(*arguments)
        finally:
            self._asked_at = None

    @property
    def _own(self) -> FolderKnowledge | None:
        return self._known if self._known and self._known.uri == self._store.uri else None

    def down(self) -> int:
        """Restore a folder without files, or with older ones, which move aside. Return their number."""
        with _alone(self._folder):
            known = self._known = FolderKnowledge.read(self._folder)
            listed = self._get(LIST)
            if known is not None and known.restoring and (listed is None or known.uri != self._store.uri):
                raise IdentityError(
                    f"{self._folder} has a part of {known.uri} only, which {self._store.uri} cannot "
                    f"complete: take {known.uri}, or remove {self._folder}"
                )
            return 0 if listed is None or self._goes_on_from(listed) else self._restore(listed)

    def _goes_on_from(self, listed: bytes) -> bool:
        """Return whether the folder has files that are as new as the bucket's; older ones are moved aside."""
        own, digest = self._own, _sha256(listed)
        ours = own is not None and digest in own.lists
        if self._known is not None and self._known.restoring:
            if not ours:
                self._set_aside()
            return False
        entries = (entry for entry in self._folder.rglob("*") if not self._files.is_ours(entry))
        if not any(entry.is_symlink() or not entry.is_dir() for entry in entries):
            return False
        if ours:
            return True
        records = _records(listed)
        if self._files.scan(last=True).records == records:
            self._know([digest], _hashes(records))
            return True
        if own is None:
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
        """Restore all files of a list; until the end a mark says that a next try has to complete it."""
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
        """Give every folder the time of its newest file: programs choose the newest checkpoint by it."""
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
            raise CheckpointError(f"{self.uri}: the name {name!r} leads out of {self._folder}")
        if file.is_file() and not file.is_symlink() and local.record_of(file) == record.record:
            return  # an earlier try has restored it
        staged = self._folder / OURS / "part" / str(os.getpid())
        staged.parent.mkdir(parents=True, exist_ok=True)
        answer = self._get(f"{CONTENTS}/{record.sha256}", staged)
        if answer is None or local.record_of(staged) != record.record:
            raise CheckpointError(f"{self.uri}: {name} is not what {LIST} says")
        file.parent.mkdir(parents=True, exist_ok=True)
        if record.link:
            staged = self._linked(staged, file)
        elif record.mtime_ns is not None and record.mode is not None:
            staged.chmod(record.mode)
            os.utime(staged, ns=(record.mtime_ns, record.mtime_ns))
        staged.replace(file)

    def _linked(self, staged: Path, file: Path) -> Path:
        """Turn a staged text with the target of a link into a symbolic link for `file`."""
        target = os.fsdecode(staged.read_bytes())
        place = os.path.normpath(file.parent.absolute() / target)
        if not Path(place).is_relative_to(self._folder.absolute()):
            raise CheckpointError(f"{self.uri}: the link {file.name!r} leads out of {self._folder}")
        link = staged.with_name(f"{staged.name}.link")
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        return link

    def _get(self, name: str, file: Path | None = None) -> bytes | None:
        return patiently(lambda: self._store.get(name, file), sleep=self._sleep)

    def _set_aside(self) -> None:
        """Move the content of the folder to a new folder beside it, for its owner to check."""
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

    def give_up(self) -> None:
        """Stop an `up` of another thread with a CheckpointError; a later final `up` is not affected."""
        self._given_up.set()

    @property
    def waits(self) -> bool:
        """True if the last `up` did not commit, as it waits for files that were being written."""
        return self._waiting_since is not None

    def up(self, *, last: bool = False, final: bool = False) -> bool:
        """Upload and commit the changes. Return whether there was a commit; raises CheckpointError.

        `last`: no program writes any more. `final`: no other call follows, so the commit does not wait.
        """
        if final:
            self._given_up.clear()
        scan = self._files.scan(last=last)
        if self._puts_off(scan, final=final):
            return False
        if self._there is not None and _with_former(scan, self._listed) == self._listed:
            self._restless, self._waiting_since = scan.unsettled, None
            self._check_held(self._listed, final=final)
            return False
        with _alone(self._folder):
            self._asked(self._held)
            there = self._asked(self._store.get, LIST)
            former = self._former(there, scan)
            if there is None and not scan.records:
                return False
            own = self._own
            before = set(own.contents) if own else set()
            lists = [] if there is None else [_sha256(there)]
            self._know(lists or (own.lists if own else []), before | _hashes(scan.records))
            scan = self._upload(scan)
            if self._puts_off(scan, final=final):
                return False
            records = _with_former(scan, former)
            self._commit(records, lists, before | _hashes(scan.records))
        self._listed, self._restless, self._waiting_since = records, scan.unsettled, None
        self._check_held(records, final=final)
        log.info("event=folder-saved files=%d uri=%s", len(records), self._store.uri)
        return True

    def _check_held(self, records: Records, *, final: bool) -> None:
        """Raise CheckpointError if, after the last upload, a listing of the store lacks a content."""
        if not final:
            return
        sizes = {f"{CONTENTS}/{record.sha256}": record.size for record in records.values()}
        try:
            expected = {**sizes, LIST: len(_listing(records))}
            self._asked(self._store.check_holds, "", expected, str(self._folder))
        except CheckpointError:
            self._there = None  # another try uploads what is missing
            raise

    def _former(self, there: bytes | None, scan: Scan) -> Records:
        """Return the list in the store; raises IdentityError unless the list is one of this folder."""
        known = self._known = self._known or FolderKnowledge.read(self._folder)
        if known is not None and known.restoring:
            raise IdentityError(f"{self._folder}: has a part of {known.uri} only; it is not uploaded")
        if there is None:
            return {}
        own, former = self._own, _records(there)
        if (own is None or _sha256(there) not in own.lists) and former != scan.records:
            raise IdentityError(
                f"{self._store.uri} has files that {self._folder} never had: another process has gone on "
                "there, and they are not overwritten; run again to go on with them, or take another --uri"
            )
        return former

    def _puts_off(self, scan: Scan, *, final: bool) -> bool:
        """Return whether to wait for files that are being written, as the folder was never without them."""
        if final or scan.unsettled <= self._restless:
            return False
        now = self._clock()
        since = now if self._waiting_since is None else self._waiting_since
        if now - since >= WAIT_S:
            log.warning("event=files-never-whole names=%r", sorted(scan.unsettled)[:10])
            return False
        self._waiting_since = since
        return True

    def _upload(self, scan: Scan) -> Scan:
        """Upload the missing contents; a file that has changed since `scan` counts as unsettled."""
        if self._there is None:
            self._there = set(self._asked(self._store.sizes, CONTENTS))
        changed = {
            name
            for name, record in scan.records.items()
            if record.sha256 not in self._there and not self._brought_up(name, record)
        }
        whole = {name: record for name, record in scan.records.items() if name not in changed}
        return Scan(whole, scan.unsettled | changed)

    def _brought_up(self, name: str, record: Entry) -> bool:
        """Upload a file. Return whether its content is in the store under its own hash."""
        assert self._there is not None
        content = f"{CONTENTS}/{record.sha256}"
        if record.link:
            self._asked(self._store.put, content, os.fsencode(self._files.target(name)))
        else:
            if not self._files.is_as_hashed(name):
                return False
            self._asked(self._store.put, content, self._folder / name, self._go_on)
            if not self._files.is_as_hashed(name):
                self._asked(self._store.delete, content)
                return False
        self._there.add(record.sha256)
        return True

    def _go_on(self, _bytes: int) -> None:
        self._asked_at = self._clock()
        if self._given_up.is_set():
            raise CheckpointError(f"{self._store.uri}: given up for a newer state of {self._folder}")

    def _commit(self, records: Records, lists: list[str], contents: set[str]) -> None:
        """Write the list, and remove those of the `contents` that it no longer names."""
        listed = _listing(records)
        self._know([*lists, _sha256(listed)], contents | _hashes(records))
        self._asked(self._held)
        self._asked(self._store.put, LIST, listed)
        self._remove(contents - _hashes(records))
        self._know([_sha256(listed)], _hashes(records))

    def _remove(self, stale: set[str]) -> None:
        """Remove contents that this folder no longer has; a bucket that refuses it may keep them."""
        for content in sorted(stale):
            if not self._asked(self._store.remove_if_allowed, f"{CONTENTS}/{content}"):
                return
            if self._there is not None:
                self._there.discard(content)


def _records(listed: bytes) -> Records:
    return {name: Entry(**record) for name, record in json.loads(listed).items()}


def _listing(records: Records) -> bytes:
    table = {name: asdict(record) for name, record in records.items()}
    return json.dumps(table, indent=1, sort_keys=True).encode()


def _with_former(scan: Scan, former: Records) -> Records:
    return scan.records | {name: former[name] for name in scan.unsettled if name in former}


def _hashes(records: Records) -> set[str]:
    return {record.sha256 for record in records.values()}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process of this instance works on the folder, and keep others out."""
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
