"""Downloads of a data set, verified by SHA-256; a later download continues one that was cut short."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from botocore.exceptions import BotoCoreError

from gpu_fleet_image.console.data.bucket import (
    AT_ONCE,
    ByteCounter,
    DataBucket,
    FileFate,
    FileOutcome,
    Stored,
    in_parallel,
    stored_of,
)
from gpu_fleet_image.core.reaper_errors import CloudError

TRIES = 5  # of a body whose connection breaks; each continues where the last one ended
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Item:
    """An object to download.

    Attributes:
        version: ETag, by which a download that was cut short continues with the same content.
    """

    key: str
    name: str
    size: int
    version: str


class Downloader:
    """Downloads the objects of a data set into a folder."""

    def __init__(
        self, bucket: DataBucket, folder: Path, counter: ByteCounter, *, replace: bool = False
    ) -> None:
        self._bucket, self._folder, self._counter, self._replace = bucket, folder, counter, replace

    def get(self, items: list[Item]) -> list[FileOutcome]:
        """Download objects, several at once; one that fails does not stop the others.

        Raises CloudError or ConfigurationError if the bucket refuses.
        """
        with ThreadPoolExecutor(AT_ONCE) as files:
            return list(in_parallel(files, self._file, items))

    def _file(self, item: Item) -> FileOutcome:
        try:
            if problem := self._leads_out(item.name):
                return FileOutcome(item.name, FileFate.FAILED, why=problem)
            target = self._folder / item.name
            if target.exists():
                there = self._bucket.stored(item.key)
                if there and _is_equal(target, there):
                    self._counter.add(item.size)
                    return FileOutcome(item.name, FileFate.THERE, item.size, is_verified=bool(there.sha256))
                if not self._replace:
                    self._counter.add(item.size)
                    return FileOutcome(item.name, FileFate.DIFFERS, item.size)
            target.parent.mkdir(parents=True, exist_ok=True)
            return self._fetched(item, target)
        except OSError as error:
            return FileOutcome(item.name, FileFate.FAILED, why=error.strerror or str(error))

    def _leads_out(self, name: str) -> str:
        """Return why a name may not be written below the folder; empty if it may."""
        parts = name.split("/")
        if (
            "" in parts
            or not {".", ".."}.isdisjoint(parts)
            or "\0" in name
            or PurePosixPath(name).is_absolute()
        ):
            return "its name leads out of the folder"
        real, own = os.path.realpath(self._folder / name), os.path.realpath(self._folder)
        if not Path(real).is_relative_to(own):
            return f"a link here leads out of the folder, to {real}"
        return ""

    def _fetched(self, item: Item, target: Path) -> FileOutcome:
        """Download one object beside its place, verify it, and put it there."""
        mark = hashlib.sha256(f"{item.key}\n{item.version}".encode()).hexdigest()[:16]
        partial = target.with_name(f".gpu-fleet-{mark}.part")
        there = self._body(item, partial)
        if there is None:
            return FileOutcome(item.name, FileFate.FAILED, why="it is no longer in the bucket")
        if not _is_equal(partial, there):
            partial.unlink()
            return FileOutcome(
                item.name, FileFate.FAILED, why="its checksum is not that of the upload; get it again"
            )
        partial.replace(target)
        return FileOutcome(item.name, FileFate.MOVED, item.size, is_verified=bool(there.sha256))

    def _body(self, item: Item, partial: Path) -> Stored | None:
        """Write what is missing of an object; return its metadata, or None if it is gone."""
        for tried in range(1, TRIES + 1):
            done = partial.stat().st_size if partial.exists() else 0
            if tried == 1:
                self._counter.add(done)
            if done >= item.size:
                partial.touch()
                return self._bucket.stored(item.key)
            try:
                return self._rest(item, partial, done)
            except BotoCoreError as error:
                if tried == TRIES:
                    raise CloudError(f"{item.key}: {error}; the same command continues", "") from error
            except CloudError as error:
                if error.code in {"NoSuchKey", "404", "PreconditionFailed", "412"}:
                    return None
                raise self._bucket.explained(error) from error
        raise AssertionError("unreachable")

    def _rest(self, item: Item, partial: Path, done: int) -> Stored:
        asked: dict[str, Any] = {"Bucket": self._bucket.name, "Key": item.key, "IfMatch": item.version}
        if done:
            asked["Range"] = f"bytes={done}-"
        answer = self._bucket.calls.read(self._bucket.s3.get_object, **asked)
        with partial.open("ab") as file:
            for chunk in answer["Body"].iter_chunks(_CHUNK_BYTES):
                file.write(chunk)
                self._counter.add(len(chunk))
        return stored_of(answer | {"ContentLength": item.size})


def _is_equal(path: Path, there: Stored) -> bool:
    """Return whether a path is a file with an object's size and, if that is known, its SHA-256."""
    if not path.is_file() or path.stat().st_size != there.size:
        return False
    if not there.sha256:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == there.sha256
