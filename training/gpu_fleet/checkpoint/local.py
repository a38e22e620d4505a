"""Checkpoints on disk: a folder `step-N` exists only when every byte of it is down.

A save writes `step-N.tmp/`, fsyncs every file and the folder, renames it to `step-N/` and fsyncs the parent.
The manifest inside names every file with its size and SHA-256; `verify` believes nothing else.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import uuid
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Self

from gpu_fleet.errors import CheckpointError, RunLeaseError
from gpu_fleet.files import sync_folder, write_bytes

MANIFEST = "manifest.json"
LOCK = "lock"
MARK_BYTES = 1024  # of a lock file: more than who holds it ever takes
FORMAT = 2
READABLE = (1, FORMAT)  # 1 had neither identity nor checksum
WHOLE, SHARDED = "whole", "sharded"
CHUNK_BYTES = 1 << 22
NAME = re.compile(r"step-(\d+)")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRecord:
    """What one file of a checkpoint has to be."""

    size: int  # bytes
    sha256: str  # hex


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is and what it is made of."""

    step: int
    model: str
    world_size: int
    layout: str = WHOLE  # whole: one file has every tensor; sharded: each rank wrote its part
    files: dict[str, FileRecord] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, str] = field(default_factory=dict)  # see gpu_fleet.run_identity
    format: int = FORMAT

    def to_json(self) -> str:
        """With a checksum of its own: a damaged manifest must not vouch for damaged files."""
        table = asdict(self)
        return json.dumps({**table, "checksum": _checksum(table)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises CheckpointError when the text is no manifest of this format."""
        try:
            table = json.loads(text)
            if table["format"] not in READABLE:
                raise CheckpointError(f"manifest format {table['format']}; this trainer reads {FORMAT}")
            checksum = table.pop("checksum", "")
            if table["format"] == FORMAT and checksum != _checksum(table):
                raise CheckpointError("the manifest's own checksum is not that of its content")
            files = {name: FileRecord(**record) for name, record in table.pop("files").items()}
            return cls(files=files, **table)
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"manifest cannot be read: {error!r}") from error


def _checksum(table: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


class HashingFile:
    """A file that knows the size and SHA-256 of what went through it; not seekable, write only."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        """Writes anything with the buffer interface."""
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


def folder_name(step: int) -> str:
    """Of the checkpoint after `step` steps."""
    return f"step-{step}"


def commit(
    root: Path, manifest: Manifest, writers: dict[str, Writer], held: Callable[[], None] = lambda: None
) -> Manifest:
    """Writes one checkpoint under `root`; afterwards it is whole, whatever happens to the instance.

    Returns `manifest` with the records of the files, as it is written into the checkpoint. `held` as of
    commit_stage.
    """
    folder = open_stage(root, manifest.step)
    records = {name: _write_hashed(folder / name, writer) for name, writer in writers.items()}
    manifest = replace(manifest, files=records)
    commit_stage(root, manifest, held)
    return manifest


def write_part(folder: Path, own: Container[str], writers: dict[str, Writer]) -> dict[str, FileRecord]:
    """Writes files into an open stage; their records, and those of the files in `own` that are there."""
    there = {entry.name: record_of(entry) for entry in sorted(folder.iterdir()) if entry.name in own}
    return there | {name: _write_hashed(folder / name, writer) for name, writer in writers.items()}


def stage(root: Path, step: int) -> Path:
    """Where the files of a checkpoint lie before its commit."""
    return root / f"{folder_name(step)}.tmp"


def open_stage(root: Path, step: int) -> Path:
    """A fresh `step-N.tmp/` to write into."""
    folder = stage(root, step)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def commit_stage(root: Path, manifest: Manifest, held: Callable[[], None] = lambda: None) -> None:
    """Turns `step-N.tmp/`, whose files are down, into `step-N/`.

    `held` is called right before that; where it raises, because the run is another process's by now, there
    is no such checkpoint.
    """
    staged, final = (root / f"{folder_name(manifest.step)}{suffix}" for suffix in (".tmp", ""))
    write_bytes(staged / MANIFEST, manifest.to_json().encode())
    sync_folder(staged)
    replaced = root / f"{folder_name(manifest.step)}.replaced.tmp"
    held()
    if final.exists():  # it failed its verification, and the run has come to the same step again
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
    """The committed checkpoints, oldest first; unfinished ones do not count."""
    if not root.is_dir():
        return []
    matches = [NAME.fullmatch(entry.name) for entry in root.iterdir() if entry.is_dir()]
    return sorted(int(match[1]) for match in matches if match)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint, unverified; raises CheckpointError."""
    try:
        return Manifest.from_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{folder / MANIFEST}: {error.strerror}") from error
    except (CheckpointError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder}: {error}") from error


def verify(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose every file has its size and hash; else raises CheckpointError."""
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
    """Size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(size, digest.hexdigest())


def superseded(committed: Iterable[int], newest: int, keep: int) -> list[int]:
    """The steps that retention gives up once `newest` is good: all but the last `keep` up to it.

    Later ones are left alone: they were passed over as damaged, and must not count as good.
    """
    return sorted(step for step in committed if step <= newest)[:-keep]


def prune(root: Path, newest: int, keep: int, spared: Container[int] = ()) -> None:
    """Removes the superseded checkpoints but those in `spared`."""
    for step in superseded(steps(root), newest, keep):
        if step in spared:
            continue
        doomed = root / f"{folder_name(step)}.tmp"  # no longer a checkpoint from the rename on
        shutil.rmtree(doomed, ignore_errors=True)
        (root / folder_name(step)).rename(doomed)
        shutil.rmtree(doomed)


def set_aside(folder: Path, why: str = "damaged") -> None:
    """Takes a checkpoint out of the count and leaves it for its owner to look at, as `step-N.WHY`."""
    aside = folder.with_name(f"{folder.name}.{why}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


class FolderLock:
    """A folder of checkpoints that is this process's, until `close` or its end."""

    def __init__(self, file: IO[str], root: Path) -> None:
        self._file, self._root = file, root
        self._mark = f"process {os.getpid()} on {platform.node()}\n{uuid.uuid4().hex}\n"

    def mark(self) -> None:
        """Writes down whose folder it is, for those that come later; raises OSError."""
        self._file.truncate(0)
        self._file.write(self._mark)
        self._file.flush()

    def check(self) -> None:
        """Raises RunLeaseError where another process has marked the folder since: this one may write no more.

        So it may where nothing locks files, where a file server has given up the lock of an instance that was
        paused, or where the folder was removed and made anew. Without such a mark the lock is taken again.
        Raises CheckpointError where the folder cannot be read.
        """
        if self._file.closed:
            raise RunLeaseError(
                f"run.directory: {self._root.parent} was given up; this process saves no more"
            )
        try:
            mark = self._seen() or self._taken_again()
        except FileNotFoundError:  # removed, and nobody else has begun
            return
        except OSError as error:
            raise CheckpointError(
                f"run.directory: {self._root / LOCK} cannot be read: {error.strerror}"
            ) from error
        if mark != self._mark:
            raise RunLeaseError(
                f"run.directory: {self._root.parent} was taken over by {_holder(mark)}, while this process "
                "stood still or could not lock it; this process saves no more"
            )

    def _seen(self) -> str:
        """The mark in the file that is held; empty where that is another one by now, or its lock is gone.

        By that file alone: to close another one of this process would give the lock up. Raises OSError where
        its place cannot be looked at.
        """
        now = (self._root / LOCK).stat()
        try:
            mine = os.fstat(self._file.fileno())
            same = (mine.st_dev, mine.st_ino) == (now.st_dev, now.st_ino)
            return os.pread(self._file.fileno(), MARK_BYTES, 0).decode(errors="replace") if same else ""
        except OSError as error:  # a lock that a server has given up
            log.warning("event=lock-gone folder=%s error=%r", self._root, str(error))
            return ""

    def _taken_again(self) -> str:
        """Opens and locks the file anew, where no other process has marked it; its mark. Raises OSError."""
        file = (self._root / LOCK).open("a+", encoding="utf-8", errors="replace")
        file.seek(0)
        if (mark := file.read(MARK_BYTES)) not in ("", self._mark):
            file.close()
            return mark
        with suppress(OSError):  # of a server that was away
            self._file.close()  # first: it gives up what this process has locked of the same file
        self._file = file
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # another start has it, which marks the file once the run is its own
            log.warning("event=not-locked-again folder=%s error=%r", self._root, str(error))
            return self._mark
        log.warning("event=locked-again folder=%s", self._root)
        self.mark()
        return self._mark

    def close(self) -> None:
        """Others may have the folder."""
        self._file.close()


def _holder(mark: str) -> str:
    return (mark.splitlines() or [""])[0].strip() or "another process"


def lock(root: Path) -> FolderLock:
    """Takes a folder of checkpoints for this process; keep the result for as long as it is to be held.

    A record lock: it ends with the process however that ends, and reader processes do not inherit it. Call
    `mark` once the lease is held too: a server may have given up the lock of a run whose lease is alive, and
    on a file system without locks the folder is this process's from then on. Raises CheckpointError when
    another process has it.
    """
    file = (root / LOCK).open("a+", encoding="utf-8")
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
    """Removes what killed saves left behind; only safe while nobody saves."""
    for entry in root.glob("step-*.tmp"):
        shutil.rmtree(entry)
