"""Uploads of files with their SHA-256, in parts; a later upload continues one that was cut short."""

import base64
import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_fleet_image.console.data.bucket import (
    AT_ONCE,
    LONGEST_KEY,
    ByteCounter,
    DataBucket,
    FileFate,
    FileOutcome,
    in_parallel,
)
from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import REFUSED

PART_BYTES = 16 << 20
MOST_PARTS = 9_000  # of one object; S3 and OSS allow 10,000
NO_UPLOAD = "NoSuchUpload"  # the bucket's lifecycle rule aborts uploads after seven days
_CHANGED = "it changed while it was read; upload it again"


@dataclass(frozen=True)
class LocalFile:
    """A file to upload.

    Attributes:
        name: below ``shared/NAME/``.
    """

    name: str
    path: Path
    size: int


@dataclass
class Unfinished:
    """Upload of one content whose parts are not all there; a file in the cache keeps it over a kill.

    Attributes:
        parts: number -> ETag of the parts that the bucket has confirmed.
    """

    bucket: str
    key: str
    sha256: str
    upload_id: str
    part_bytes: int
    parts: dict[str, str] = field(default_factory=dict)


class DataUploader:
    """Uploads files to one data set."""

    def __init__(
        self, bucket: DataBucket, prefix: str, counter: ByteCounter, cache: Path, *, replace: bool = False
    ) -> None:
        self._bucket, self._prefix, self._counter = bucket, prefix, counter
        self._cache, self._replace = cache, replace
        self._lock = threading.Lock()

    def put(self, sources: list[LocalFile]) -> list[FileOutcome]:
        """Upload files, several at once; one that fails does not stop the others.

        Raises CloudError or ConfigurationError if the bucket refuses, which it would do for every file.
        """
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ThreadPoolExecutor(AT_ONCE) as parts, ThreadPoolExecutor(AT_ONCE) as files:
            self._parts = parts
            try:
                return list(in_parallel(files, self._file, sources))
            except BaseException:
                parts.shutdown(wait=False, cancel_futures=True)
                raise

    def _file(self, source: LocalFile) -> FileOutcome:
        """Upload one file, unless the bucket has it."""
        key = self._prefix + source.name
        if len(key.encode()) > LONGEST_KEY:
            return FileOutcome(
                source.name, FileFate.FAILED, why=f"its name is longer than {LONGEST_KEY} bytes"
            )
        try:
            before = source.path.stat()
            sha256 = _sha256(source.path)
            there = self._bucket.stored(key)
            if there and (there.size, there.sha256) == (before.st_size, sha256):
                self._counter.add(source.size)
                return FileOutcome(source.name, FileFate.THERE, before.st_size)
            if there and not self._replace:
                self._counter.add(source.size)
                return FileOutcome(source.name, FileFate.DIFFERS, before.st_size)
            self._send(source.path, key, sha256, before, is_new=there is None)
            if _is_changed(source.path, before):
                raise OSError(_CHANGED)
        except OSError as error:
            return FileOutcome(source.name, FileFate.FAILED, why=error.strerror or str(error))
        return self._checked(source.name, key, sha256, before.st_size)

    def _checked(self, name: str, key: str, sha256: str, size: int) -> FileOutcome:
        """Compare the object with the file: the bucket checked each part's MD5, this is size and SHA-256."""
        there = self._bucket.stored(key)
        if there is None or (there.size, there.sha256) != (size, sha256):
            return FileOutcome(
                name, FileFate.FAILED, why="the bucket has other content now; is another put running?"
            )
        return FileOutcome(name, FileFate.MOVED, size)

    def _send(self, path: Path, key: str, sha256: str, before: os.stat_result, *, is_new: bool) -> None:
        """Upload a file; S3 itself refuses to write over what another upload brought meanwhile.

        OSS has no such condition for a bucket with versions (core/oss.py): there the older version stays.
        """
        condition = {"IfNoneMatch": "*"} if is_new and self._bucket.uri.startswith("s3://") else {}
        try:
            if before.st_size > PART_BYTES:
                self._in_parts(path, key, sha256, before, condition)
                return
            content = path.read_bytes()
            self._bucket.calls.change(
                self._bucket.s3.put_object,
                Bucket=self._bucket.name,
                Key=key,
                Body=content,
                ContentMD5=_md5(content),
                Metadata=self._bucket.metadata(hashlib.sha256(content).hexdigest()),
                **condition,
            )
            self._counter.add(len(content))
        except CloudError as error:
            if error.code not in REFUSED:
                raise self._bucket.explained(error) from error

    def _in_parts(
        self, path: Path, key: str, sha256: str, before: os.stat_result, condition: dict[str, str]
    ) -> None:
        """Upload a large file, or what is missing of it; raises OSError if it changes meanwhile."""
        record = self._cache / f"{hashlib.sha256(f'{self._bucket.name}/{key}'.encode()).hexdigest()}.json"
        for may_begin_anew in (True, False):
            unfinished = self._begun(record, key, sha256, before.st_size)
            try:
                self._missing_parts(path, before.st_size, unfinished, record)
                if _is_changed(path, before):
                    self._abort(unfinished, record)
                    raise OSError(_CHANGED)
                self._complete(unfinished, condition)
                break
            except CloudError as error:
                if error.code in REFUSED:
                    self._abort(unfinished, record)
                if error.code != NO_UPLOAD or not may_begin_anew:
                    raise
                record.unlink(missing_ok=True)
        record.unlink(missing_ok=True)

    def _abort(self, unfinished: Unfinished, record: Path) -> None:
        """End an upload that is never completed, so that its parts cost nothing."""
        record.unlink(missing_ok=True)
        try:
            self._bucket.calls.change(
                self._bucket.s3.abort_multipart_upload,
                Bucket=self._bucket.name,
                Key=unfinished.key,
                UploadId=unfinished.upload_id,
            )
        except CloudError as error:
            if error.code != NO_UPLOAD:  # a call that was repeated had completed it
                raise

    def _begun(self, record: Path, key: str, sha256: str, size: int) -> Unfinished:
        """Return the upload that this cache knows for the same content, or a new one."""
        try:
            known = Unfinished(**json.loads(record.read_text()))
            if (known.bucket, known.key, known.sha256) == (self._bucket.name, key, sha256):
                return known
        except (OSError, ValueError, TypeError):
            pass  # there is none, or a record that nobody can read: the upload begins anew
        answer = self._bucket.calls.change(
            self._bucket.s3.create_multipart_upload,
            Bucket=self._bucket.name,
            Key=key,
            Metadata=self._bucket.metadata(sha256),
        )
        part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        begun = Unfinished(self._bucket.name, key, sha256, answer["UploadId"], part_bytes)
        replace_text(record, json.dumps(asdict(begun)), mode=0o600)
        return begun

    def _missing_parts(self, path: Path, size: int, unfinished: Unfinished, record: Path) -> None:
        numbers = range(1, -(-size // unfinished.part_bytes) + 1)
        missing = [number for number in numbers if str(number) not in unfinished.parts]
        self._counter.add(size - sum(_length(number, size, unfinished) for number in missing))

        def send(number: int) -> None:
            with path.open("rb") as file:
                file.seek((number - 1) * unfinished.part_bytes)
                content = file.read(unfinished.part_bytes)
            answer = self._bucket.calls.change(
                self._bucket.s3.upload_part,
                Bucket=self._bucket.name,
                Key=unfinished.key,
                UploadId=unfinished.upload_id,
                PartNumber=number,
                Body=content,
                ContentMD5=_md5(content),
            )
            with self._lock:
                unfinished.parts[str(number)] = answer["ETag"]
                replace_text(record, json.dumps(asdict(unfinished)), mode=0o600)
            self._counter.add(len(content))

        for future in [self._parts.submit(send, number) for number in missing]:
            future.result()

    def _complete(self, unfinished: Unfinished, condition: dict[str, str]) -> None:
        ordered = sorted((int(number), etag) for number, etag in unfinished.parts.items())
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in ordered]
        self._bucket.calls.change(
            self._bucket.s3.complete_multipart_upload,
            Bucket=self._bucket.name,
            Key=unfinished.key,
            UploadId=unfinished.upload_id,
            MultipartUpload={"Parts": parts},
            **condition,
        )


def cache_folder() -> Path:
    """Return the folder of unfinished uploads' records."""
    own = os.environ.get("XDG_CACHE_HOME")
    return (Path(own) if own else Path.home() / ".cache") / "gpu-fleet" / "uploads"


def _is_changed(path: Path, before: os.stat_result) -> bool:
    after = path.stat()
    return (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)


def _length(number: int, size: int, unfinished: Unfinished) -> int:
    return min(unfinished.part_bytes, size - (number - 1) * unfinished.part_bytes)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _md5(content: bytes) -> str:
    """Return the MD5 that both clouds compare with what arrived, as the header Content-MD5 has it."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
