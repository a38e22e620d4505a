"""Copies of users' kept files, from the instance's scratch disk to the stack's data bucket.

The disk is lost with the instance. A file is skipped if this agent sent it before, it has not changed since,
and the bucket still has it: a second copy after a failure or a mark costs one listing. Times of files are
never compared with the bucket's: `cp -p`, `mv` and `rsync -a` put an older file in place of a newer one, and
checkpoints all have the same size.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.core.files import opened
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.store import objects_below

KEEP_FOLDER = Path("/scratch/keep")
_TRANSFER = TransferConfig(max_concurrency=4)  # of 8 MiB parts: the agent's memory stays small during a copy
_SHOWN_FAILURES = 3


@dataclass(frozen=True)
class Saved:
    """Result of a copy: files and bytes sent, and files that the bucket already had."""

    files: int
    sent_bytes: int
    unchanged: int


@dataclass(frozen=True)
class Version:
    """State of a file; only the kernel sets ``ctime_ns`` and ``inode``."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Version":
        """Return the version in a file's status."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@dataclass(frozen=True)
class CopyPlace:
    """Destination of the copies.

    Attributes:
        prefix: of every key, with a slash at the end.
    """

    bucket: str
    prefix: str


def place(data_uri: str, pool: str, instance_id: str) -> CopyPlace:
    """Return ``<pool>/keep/<instance>/`` in the data bucket: a pool's role writes below ``<pool>/`` only.

    Raises ConfigurationError if the URI names no bucket.
    """
    scheme, _, rest = data_uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in ("s3", "oss") or not bucket:
        raise ConfigurationError(
            f"data_uri = {data_uri!r}; allowed: s3://BUCKET/PREFIX or oss://BUCKET/PREFIX"
        )
    parts = [*filter(None, prefix.split("/")), pool, "keep", instance_id, ""]
    return CopyPlace(bucket, "/".join(parts))


def save(
    folder: Path,
    s3: Any,
    to: CopyPlace,
    progress: Callable[[], None] = lambda: None,
    sent: dict[str, Version] | None = None,
) -> Saved:
    """Copy the folder.

    Args:
        folder: the folder to copy; may be missing.
        s3: boto3's S3 client.
        sent: key -> the version sent there by earlier copies of this process; updated.

    Raises:
        CloudError: the bucket cannot be listed, or files could not be copied, or changed meanwhile; the
            message names some of them.
    """
    sent = {} if sent is None else sent
    failures: list[str] = []
    files = sorted(_files(folder, failures))
    there = _listed(s3, to) if files else {}
    copied, copied_bytes = 0, 0
    for path in files:
        relative = path.relative_to(folder)
        key = to.prefix + relative.as_posix()
        try:
            with opened(folder, relative) as descriptor:
                version = Version.of(os.fstat(descriptor))
                if sent.get(key) == version and there.get(key) == version.size:
                    continue
                # by its descriptor: the name may now be a link to a file of root's
                source = f"/proc/self/fd/{descriptor}"
                s3.upload_file(source, to.bucket, key, Config=_TRANSFER, Callback=lambda _bytes: progress())
            if Version.of(path.lstat()) != version:
                failures.append(f"{path}: changed while it was copied")
                continue
        except (OSError, Boto3Error, BotoCoreError, ClientError, UnicodeError) as error:
            failures.append(f"{path}: {error}")
            continue
        sent[key] = version
        copied, copied_bytes = copied + 1, copied_bytes + version.size
    if failures:
        shown = "; ".join(failures[:_SHOWN_FAILURES])
        raise CloudError(f"{len(failures)} of {len(files)} files of {folder} were not saved: {shown}")
    return Saved(copied, copied_bytes, len(files) - copied)


def _files(folder: Path, failures: list[str]) -> Iterator[Path]:
    """Yield regular files, without following links: any user may make one, and the agent reads as root.

    A file or folder that cannot be read is a failure, since its content is unknown. Only the kept folder
    itself may be missing.
    """

    def note(error: OSError) -> None:
        if not (isinstance(error, FileNotFoundError) and error.filename == str(folder)):
            failures.append(str(error))

    for parent, _, names in os.walk(folder, onerror=note):
        for path in (Path(parent, name) for name in names):
            try:
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path
            except OSError as error:
                failures.append(str(error))


def _listed(s3: Any, to: CopyPlace) -> dict[str, int]:
    """Return key -> size in bytes."""
    try:
        return {entry["Key"]: entry["Size"] for entry in objects_below(s3, to.bucket, to.prefix)}
    except (BotoCoreError, ClientError) as error:
        raise CloudError(f"listing s3://{to.bucket}/{to.prefix}: {error}") from error
