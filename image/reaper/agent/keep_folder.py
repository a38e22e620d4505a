"""Copies what people want to keep from the machine's scratch disk to the stack's data bucket.

The disk is gone with the machine. What the bucket holds already, of the same size and no older, is left out,
so that a second copy after a failure or a mark costs one listing.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from image.reaper.errors import CloudError, ConfigurationError

KEEP_FOLDER = Path("/scratch/keep")
TRANSFER = TransferConfig(max_concurrency=4)  # of 8 MiB parts: the agent stays small while it copies
SHOWN_FAILURES = 3


@dataclass(frozen=True)
class Saved:
    """What a copy did: files and bytes sent, and files that the bucket had already."""

    files: int
    sent_bytes: int
    unchanged: int


@dataclass(frozen=True)
class Place:
    """Where the copies go.

    Attributes:
        bucket: its name.
        prefix: of every key, with a slash at its end.
    """

    bucket: str
    prefix: str


def place(data_uri: str, stack: str, instance_id: str) -> Place:
    """``keep/<stack>/<instance>/`` in the data bucket.

    Raises:
        ConfigurationError: when the URI names no bucket.
    """
    scheme, _, rest = data_uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in ("s3", "oss") or not bucket:
        raise ConfigurationError(
            f"data_uri = {data_uri!r}; allowed: s3://BUCKET/PREFIX or oss://BUCKET/PREFIX"
        )
    parts = [*filter(None, prefix.split("/")), "keep", stack, instance_id, ""]
    return Place(bucket, "/".join(parts))


def save(folder: Path, s3: Any, to: Place, progress: Callable[[], None] = lambda: None) -> Saved:
    """Copy the folder.

    Args:
        folder: what to keep; may be missing.
        s3: boto3's S3 client.
        to: where it goes.
        progress: called every now and then while bytes move.

    Raises:
        CloudError: the bucket cannot be listed, or files could not be copied; the message names some of them.
    """
    files = sorted(_files(folder))
    there = _listed(s3, to) if files else {}
    sent, sent_bytes, failures = 0, 0, []
    for path in files:
        key = to.prefix + path.relative_to(folder).as_posix()
        try:
            status = path.stat()
            if _is_there(there.get(key), status):
                continue
            s3.upload_file(str(path), to.bucket, key, Config=TRANSFER, Callback=lambda _bytes: progress())
        except (OSError, Boto3Error, BotoCoreError, ClientError, UnicodeError) as error:
            failures.append(f"{path}: {error}")
            continue
        sent, sent_bytes = sent + 1, sent_bytes + status.st_size
    if failures:
        told = "; ".join(failures[:SHOWN_FAILURES])
        raise CloudError(f"{len(failures)} of {len(files)} files of {folder} were not saved: {told}")
    return Saved(sent, sent_bytes, len(files) - sent)


def _is_there(copy: tuple[int, float] | None, status: os.stat_result) -> bool:
    return copy is not None and copy[0] == status.st_size and copy[1] >= status.st_mtime


def _files(folder: Path) -> Iterator[Path]:
    """Regular files. Links are not followed: anybody may put one there, and the agent reads as root."""
    for parent, _, names in os.walk(folder):
        paths = (Path(parent, name) for name in names)
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _listed(s3: Any, to: Place) -> dict[str, tuple[int, float]]:
    """key -> (size in bytes, time of writing as epoch seconds)."""
    try:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=to.bucket, Prefix=to.prefix)
        return {
            entry["Key"]: (entry["Size"], entry["LastModified"].timestamp())
            for page in pages
            for entry in page.get("Contents", [])
        }
    except (BotoCoreError, ClientError) as error:
        raise CloudError(f"listing s3://{to.bucket}/{to.prefix}: {error}") from error
