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
from collections.abc import Callable, Container, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Self

from gpu_fleet.errors import CheckpointError
from gpu_fleet.files import sync_folder, write_bytes

MANIFEST = "manifest.json"
LOCK = "lock"
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


def commit(root: Path, manifest: Manifest, writers: dict[str, Writer]) -> Manifest:
    """Writes one checkpoint under `root`; afterwards it is whole, whatever happens to the instance.

    Returns `manifest` with the records of the files, as it is written into the checkpoint.
    """
    folder = open_stage(root, manifest.step)
    records = {name: _write_hashed(folder / name, writer) for name, writer in writers.items()}
    manifest = replace(manifest, files=records)
    commit_stage(root, manifest)
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


def commit_stage(root: Path, manifest: Manifest) -> None:
    """Turns `step-N.tmp/`, whose files are down, into `step-N/`."""
    staged, final = (root / f"{folder_name(manifest.step)}{suffix}" for suffix in (".tmp", ""))
    write_bytes(staged / MANIFEST, manifest.to_json().encode())
    sync_folder(staged)
    replaced = root / f"{folder_name(manifest.step)}.replaced.tmp"
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


def lock(root: Path) -> IO[str]:
    """Takes a folder of checkpoints for this process; keep the result for as long as it is to be held.

    A record lock: it ends with the process however that ends, and reader processes do not inherit it.
    Raises CheckpointError when another process has it.
    """
    file = (root / LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
            log.warning("event=no-lock folder=%s error=%r", root, str(error))
            return file
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise CheckpointError(
            f"run.directory: {root.parent} is in use by {holder}; wait for it, or choose another"
        ) from error
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    return file


def sweep(root: Path) -> None:
    """Removes what killed saves left behind; only safe while nobody saves."""
    for entry in root.glob("step-*.tmp"):
        shutil.rmtree(entry)
