"""The part of a stack's data bucket that its users share, ``shared/NAME/``: names, checksums, errors."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from gpu_fleet_image.console.users.take import caller_of
from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.place import NO_BUCKET, SCHEMES, Place, account_of
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.store import ABSENT, objects_below

SHARED = "shared/"  # stacks/gpu_fleet_stacks/core/naming.py; a test keeps them equal
DATA_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SHA256, OWNER = "sha256", "owner"  # of an object's metadata
LONGEST_KEY = 1023  # bytes, OSS's limit; S3's is one more
AT_ONCE = 8  # calls; the clients keep ten connections
_BATCH = 256
Item = TypeVar("Item")
Result = TypeVar("Result")


class FileFate(StrEnum):
    """Result of one file of a transfer."""

    MOVED = "moved"
    THERE = "there"  # with the same content
    DIFFERS = "differs"  # other content is there, and --replace is not given
    FAILED = "failed"


@dataclass(frozen=True)
class FileOutcome:
    """Result of one file.

    Attributes:
        is_verified: whether the object has a SHA-256, which the content has too.
    """

    name: str
    fate: FileFate
    size: int = 0
    why: str = ""
    is_verified: bool = True


@dataclass(frozen=True)
class Stored:
    """An object's size and the metadata that ``put`` gives it; empty texts if another program wrote it."""

    size: int
    sha256: str
    owner: str
    version: str


@dataclass(frozen=True)
class DataBucket:
    """One stack's data bucket.

    Attributes:
        s3: boto3's client for S3 or OSS.
    """

    s3: Any
    calls: Calls
    name: str
    uri: str
    owner: str = ""

    def listed(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield the objects below a prefix. Raises CloudError, ConfigurationError."""
        try:
            yield from objects_below(self.s3, self.name, prefix, self.calls.read)
        except CloudError as error:
            raise self.explained(error) from error

    def stored(self, key: str) -> Stored | None:
        """Return an object's size and metadata; None if there is none. Raises CloudError."""
        try:
            answer = self.calls.read(self.s3.head_object, Bucket=self.name, Key=key)
        except CloudError as error:
            if error.code in ABSENT:
                return None
            raise self.explained(error) from error
        return stored_of(answer)

    def metadata(self, sha256: str) -> dict[str, str]:
        """Return the metadata of an object that this caller writes; a header holds ASCII alone."""
        return {SHA256: sha256, OWNER: quote(self.owner, safe="/:@")}

    def explained(self, error: CloudError) -> Exception:
        """Return the error with what a user can do."""
        if error.code == NO_BUCKET:
            return ConfigurationError(f"{self.uri}: no such bucket; is the stack deployed in this account?")
        if error.code not in DENIED:
            return error
        return ConfigurationError(
            f"{self.uri}/{SHARED}: these credentials may not do this ({error}). The output people_policy "
            "lets users read the bucket and write below shared/; instances may do the same"
        )


def stored_of(answer: dict[str, Any]) -> Stored:
    """Parse an answer of HeadObject or GetObject."""
    said = {key.lower(): value for key, value in answer.get("Metadata", {}).items()}
    sha256, owner = said.get(SHA256, ""), unquote(said.get(OWNER, ""))
    return Stored(int(answer["ContentLength"]), sha256, owner, str(answer["ETag"]))


def open_bucket(place: Place, *, as_owner: bool = False) -> DataBucket:
    """Return a stack's data bucket. Raises CloudError."""
    name = place.bucket(place.account_id or account_of(place), "data")
    s3 = clouds.bucket_client(place.cloud, place.region)
    owner = caller_of(place).partition("/")[2].rpartition(":")[2] if as_owner else ""
    calls = Calls(lambda: datetime.now(UTC))
    return DataBucket(s3, calls, name, f"{SCHEMES[place.cloud]}://{name}", owner)


def prefix_of(name: str) -> str:
    """Return the prefix of a data set; raises ConfigurationError if its name is malformed."""
    if DATA_NAME.fullmatch(name) is None or name.endswith("."):
        raise ConfigurationError(
            f"NAME {name!r}; allowed: 1 to 63 of a-z, 0-9, dot, dash and underscore, beginning with a "
            "letter or digit, not ending with a dot"
        )
    return f"{SHARED}{name}/"


def shown(name: str) -> str:
    """Return a user's file name for a terminal: control characters and lone surrogates are escaped. Pure."""
    return name if name.isprintable() else repr(name)[1:-1]


def in_parallel(
    pool: ThreadPoolExecutor, work: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[Result]:
    """Yield the result of each item, in order; a failure or Ctrl-C begins no further item.

    Args:
        pool: does the work; it is ended by the first exception.
    """
    for start in range(0, len(items), _BATCH):
        futures: list[Future[Result]] = [pool.submit(work, item) for item in items[start : start + _BATCH]]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class ByteCounter:
    """Counts bytes of several threads."""

    def __init__(self, show: Callable[[int], object]) -> None:
        self._show = show
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Count bytes that were moved, or need not be."""
        with self._lock:
            self._show(size)
