"""Checkpoints on disk: a folder `step-N` exists only when every byte of it is on disk.

A save writes `step-N.tmp/`, fsyncs every file and the folder, renames it to `step-N/` and fsyncs the parent.
The manifest inside names every file with its size and SHA-256; `verify` compares the files with it.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import uuid
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Self

from gpu_fleet.checkpoint import names
from gpu_fleet.core.errors import CheckpointError, RunLeaseError
from gpu_fleet.core.files import sync_folder, write_bytes

MARK_BYTES = 1024  # read from a lock file; a mark is always shorter
FORMAT = 2
WHOLE, SHARDED = "whole", "sharded"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRecord:
    """Size and hash that one file of a checkpoint must have."""

    size: int  # bytes
    sha256: str  # hex


@dataclass(frozen=True)
class Manifest:
    """Description of a checkpoint: its run, and its files."""

    step: int
    model: str
    world_size: int
    layout: str = WHOLE  # whole: one file has every tensor; sharded: each rank wrote its part
    files: dict[str, FileRecord] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, str] = field(default_factory=dict)  # see gpu_fleet.checkpoint.run_identity
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the JSON, with a checksum of itself: a damaged manifest must not confirm damaged files."""
        table = asdict(self)
        return json.dumps({**table, "checksum": _checksum(table)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        try:
            table = json.loads(text)
            if table["format"] != FORMAT:
                raise CheckpointError(f"manifest format {table['format']}; this trainer reads {FORMAT}")
            if table.pop("checksum") != _checksum(table):
                raise CheckpointError("the manifest's own checksum is not that of its content")
            files = {name: FileRecord(**record) for name, record in table.pop("files").items()}
            return cls(files=files, **table)
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"manifest cannot be read: {error!r}") from error


def _checksum(table: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


class HashingFile:
    """Write-only file that computes the size and SHA-256 of the written bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self._file.write(view)
        self._size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()

    @property
    def record(self) -> FileRecord:
        return FileRecord(self._size, self._hash.hexdigest())


Writer = Callable[[IO[bytes]], object]  # writes one file of a checkpoint


def commit(
    root: Path, manifest: Manifest, writers: dict[str, Writer], held: Callable[[], None] = lambda: None
) -> Manifest:
    """Write one checkpoint under `root`, whole or not at all. Return `manifest` with its files."""
    folder = open_stage(root, manifest.step)
    records = {name: _write_hashed(folder / name, writer) for name, writer in writers.items()}
    manifest = replace(manifest, files=records)
    commit_stage(root, manifest, held)
    return manifest


def write_part(folder: Path, rank: int, writers: dict[str, Writer]) -> dict[str, FileRecord]:
    """Write files into an open stage. Return their records, and those of the files of `rank` there."""
    mine = (entry for entry in sorted(folder.iterdir()) if names.is_of_rank(entry.name, rank))
    there = {entry.name: record_of(entry) for entry in mine}
    return there | {name: _write_hashed(folder / name, writer) for name, writer in writers.items()}


def open_stage(root: Path, step: int) -> Path:
    folder = names.staged(root, step)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def commit_stage(root: Path, manifest: Manifest, held: Callable[[], None] = lambda: None) -> None:
    """Turn `step-N.tmp/`, whose files are on disk, into `step-N/`, unless `held` raises."""
    staged, final = names.staged(root, manifest.step), root / names.step_name(manifest.step)
    write_bytes(staged / names.MANIFEST, manifest.to_json().encode())
    sync_folder(staged)
    replaced = final.with_name(f"{final.name}.replaced.tmp")
    held()
    if final.exists():  # it failed verification, and the run has reached the same step again
        final.rename(replaced)
    staged.rename(final)
    sync_folder(root)
    shutil.rmtree(replaced, ignore_errors=True)


def _write_hashed(path: Path, writer: Writer) -> FileRecord:
    with path.open("wb") as file:
        hashing = HashingFile(file)
        writer(hashing)  # type: ignore[arg-type]  # torch.save needs no more of a file than write and flush
        file.flush()
        os.fsync(file.fileno())
    return hashing.record


def steps(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    committed = [names.step_of(entry.name) for entry in root.iterdir() if entry.is_dir()]
    return sorted(step for step in committed if step is not None)


def read_manifest(folder: Path) -> Manifest:
    try:
        return Manifest.from_json((folder / names.MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{folder / names.MANIFEST}: {error.strerror}") from error
    except (CheckpointError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder}: {error}") from error


def verify(folder: Path) -> Manifest:
    """Return the manifest if every file has the size and hash in it; else raise CheckpointError."""
    manifest = read_manifest(folder)
    for name, record in manifest.files.items():
        try:
            actual = record_of(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name}: {error.strerror}") from error
        if actual.size != record.size:
            raise CheckpointError(
                f"{folder / name}: has {actual.size} bytes, the manifest says {record.size}"
            )
        if actual.sha256 != record.sha256:
            raise CheckpointError(f"{folder / name}: its SHA-256 is not that of the manifest")
    return manifest


def record_of(path: Path) -> FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(file.tell(), digest.hexdigest())


def superseded(committed: Iterable[int], newest: int, keep: int) -> list[int]:
    """Return the steps to remove once `newest` is good; later ones were skipped as damaged, and stay."""
    return sorted(step for step in committed if step <= newest)[:-keep]


def prune(root: Path, newest: int, keep: int, spared: Container[int] = ()) -> None:
    for step in superseded(steps(root), newest, keep):
        if step not in spared:
            doomed = names.staged(root, step)  # after the rename it is no checkpoint any more
            shutil.rmtree(doomed, ignore_errors=True)
            (root / names.step_name(step)).rename(doomed)
            shutil.rmtree(doomed)


def set_aside(folder: Path, why: str) -> None:
    """Rename a checkpoint to `step-N.WHY`: it no longer counts, and its owner can inspect it."""
    aside = folder.with_name(f"{folder.name}.{why}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


class FolderLock:
    """Lock on a folder of checkpoints, held until `close` or the end of the process."""

    def __init__(self, file: IO[str], root: Path) -> None:
        self._file, self.root = file, root
        self._mark = f"process {os.getpid()} on {platform.node()}\n{uuid.uuid4().hex}\n"

    def mark(self) -> None:
        """Write the name of this process into the lock file, for later processes; raises OSError."""
        self._file.truncate(0)
        self._file.write(self._mark)
        self._file.flush()

    def check(self) -> None:
        """Raise RunLeaseError if another process has marked the folder, in which this one may write no more.

        Without such a mark, a lock that a file server has dropped, or of a folder made anew, is taken again.
        """
        if self._file.closed:
            raise RunLeaseError(f"run.directory: {self.root.parent} was given up; this process saves no more")
        try:
            mark = self._seen() or self._taken_again()
        except FileNotFoundError:  # removed, and no other process has begun
            return
        except OSError as error:
            raise CheckpointError(
                f"run.directory: {self.root / names.LOCK} cannot be read: {error.strerror}"
            ) from error
        if mark != self._mark:
            raise RunLeaseError(
                f"run.directory: {self.root.parent} was taken over by {_holder(mark)}, while this process "
                "stood still or could not lock it; this process saves no more"
            )

    def _seen(self) -> str:
        """Return the mark in the held file; empty if its path is another file now, or its lock is gone."""
        now = (self.root / names.LOCK).stat()  # opens no second file, whose close would drop the lock
        try:
            mine = os.fstat(self._file.fileno())
            same = (mine.st_dev, mine.st_ino) == (now.st_dev, now.st_ino)
            return os.pread(self._file.fileno(), MARK_BYTES, 0).decode(errors="replace") if same else ""
        except OSError as error:  # a server has dropped the lock
            log.warning("event=lock-gone folder=%s error=%r", self.root, str(error))
            return ""

    def _taken_again(self) -> str:
        """Lock the file anew unless another process has marked it; return its mark, or raise OSError."""
        file = (self.root / names.LOCK).open("a+", encoding="utf-8", errors="replace")
        file.seek(0)
        if (mark := file.read(MARK_BYTES)) not in ("", self._mark):
            file.close()
            return mark
        with suppress(OSError):  # the server may have been away
            self._file.close()  # before the new lock: a close drops every lock of this process on the file
        self._file = file
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # another start has the lock; it marks the file once it has the run
            log.warning("event=not-locked-again folder=%s error=%r", self.root, str(error))
            return self._mark
        log.warning("event=locked-again folder=%s", self.root)
        self.mark()
        return self._mark

    def close(self) -> None:
        self._file.close()


def _holder(mark: str) -> str:
    return (mark.splitlines() or [""])[0].strip() or "another process"


def lock(root: Path) -> FolderLock:
    """Lock a folder of checkpoints; raises CheckpointError if another process has the lock.

    The kernel drops it when the process ends. Call `mark` once the lease is held: on a file system without
    locks, or after a file server has dropped the lock, only the mark claims the folder.
    """
    file = (root / names.LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
            log.warning("event=no-lock folder=%s error=%r", root, str(error))
            return FolderLock(file, root)
        file.seek(0)
        holder = _holder(file.read())
        file.close()
        raise CheckpointError(
            f"run.directory: {root.parent} is in use by {holder}; wait for it, or choose another"
        ) from error
    return FolderLock(file, root)


def sweep(root: Path) -> None:
    for entry in list(root.glob("step-*.tmp")):
        shutil.rmtree(entry)
