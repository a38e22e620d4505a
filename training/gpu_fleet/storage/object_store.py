"""Objects under one prefix of AWS S3, or of Alibaba Cloud OSS through its S3-compatible endpoint."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import boto3
from boto3.exceptions import Boto3Error, S3UploadFailedError
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, ConfigError, StoreError
from gpu_fleet.storage import oss

SCHEMES = ("s3", "oss")
MISSING = ("NoSuchKey", "404")  # codes for a missing object; a missing bucket is NoSuchBucket
THROTTLED = ("SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "TooManyRequests")
EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "SecurityTokenExpired")  # also with 400
FIRST_SERVER_ERROR, DENIED = 500, 403  # HTTP statuses
SKEWED = "RequestTimeTooSkewed"
SKEW_S = 900.0  # S3 and OSS allow this much between their clock and the time of a request
# For one request: a later answer is unlikely, and a new connection may be quicker.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ATTEMPTS = 5, 20, 4
CONNECTIONS = 32  # of one process, at the same time
# Outlasts a disturbance of S3 that is longer than the client's own retries; short enough for a user to wait.
PATIENCE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 180.0, 1.0, 20.0
NOTICE_PATIENCE_S = 60.0  # after a notice, of the two minutes that AWS gives
START_PATIENCE_S = 60.0  # at a start, for a store that answers; an endpoint without answer fails at once
T = TypeVar("T")
log = logging.getLogger(__name__)


class ObjectStore:
    """Objects under one `s3://bucket/prefix` or `oss://bucket/prefix`."""

    def __init__(self, uri: str, endpoint: str = "", key: str = "checkpoint.uri") -> None:
        """Open the store at `uri`, the value of the key or flag `key`; raises ConfigError."""
        scheme, _, place = uri.partition("://")
        bucket, _, prefix = place.partition("/")
        if scheme not in SCHEMES or not bucket:
            raise ConfigError(f"{key} = {uri!r}: write s3://bucket/prefix or oss://bucket/prefix")
        self.uri = uri.rstrip("/")
        self._bucket, self._prefix, self._scheme = bucket, prefix.strip("/"), scheme
        section, dot, _ = key.partition(".")
        named = f"{section}.endpoint" if dot else "--endpoint"
        self._opened: Any = None
        self._open: Callable[[], Any] = partial(_client, scheme, endpoint, named)
        try:
            self._opened = self._open()
        except ValueError as error:
            raise ConfigError(f"{named} = {endpoint!r}: {error}; write https://host") from error
        except (BotoCoreError, StoreError) as error:  # no keys now: the first request asks again
            log.warning("event=store-without-keys uri=%s error=%r", uri, str(error))

    @property
    def _client(self) -> Any:
        """boto3's client. Raises BotoCoreError or StoreError while there are no keys."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def check_writable(self) -> None:
        """Write a small object, and remove it if allowed; raises CheckpointError with what is denied."""
        with self._explained("cannot be written"):
            self._client.put_object(Bucket=self._bucket, Key=self._key("write-check"), Body=b"")
        self.remove_if_allowed("write-check")

    def put(
        self, name: str, content: bytes | Path, moved: Callable[[int], None] = lambda _bytes: None
    ) -> None:
        """Write one object from memory or a file; an exception of `moved` stops the upload."""
        with self._explained(f"cannot take {name}"):
            if isinstance(content, Path):
                self._client.upload_file(str(content), self._bucket, self._key(name), Callback=moved)
            else:
                self._client.put_object(Bucket=self._bucket, Key=self._key(name), Body=content)

    def get(self, name: str, file: Path | None = None) -> bytes | None:
        """Read one object into memory, or into `file` (then b""); None if missing; raises CheckpointError."""
        with self._explained(f"cannot give {name}"):
            try:
                if file is None:
                    return self._body(name)
                self._client.download_file(self._bucket, self._key(name), str(file))
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in MISSING:
                    raise
                return None
        return b""

    def _body(self, name: str, **options: str) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._key(name), **options)
        return cast("bytes", answer["Body"].read())

    def part(self, name: str, start: int, size: int) -> bytes:
        with self._explained(f"cannot give {name}"):
            content = self._body(name, Range=f"bytes={start}-{start + size - 1}")
        if len(content) != size:
            received = f"{len(content)} of {size} bytes"
            raise StoreError(f"{self.uri}: cannot give {name}: {received}", passing=True)
        return content

    def sizes(self, folder: str) -> dict[str, int]:
        root = self._key(folder, "") if folder else self._key("")
        with self._explained("cannot be listed"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=root)
            items = [item for page in pages for item in page.get("Contents", [])]
        return {item["Key"].removeprefix(root): int(item["Size"]) for item in items}

    def check_holds(self, folder: str, expected: Mapping[str, int], what: str) -> None:
        """Raise CheckpointError unless a listing of a folder shows all these objects, in their sizes."""
        there = self.sizes(folder)
        if wrong := [name for name, size in expected.items() if there.get(name) != size]:
            raise CheckpointError(f"{self.uri}: {what} is not whole after its upload: {', '.join(wrong)}")

    def delete(self, name: str) -> None:
        with self._explained(f"cannot remove {name}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name))

    def remove_if_allowed(self, name: str) -> bool:
        try:
            self.delete(name)
        except StoreError as error:
            log.warning("event=not-removed error=%r", str(error))
            return False
        return True

    def _key(self, *parts: str) -> str:
        return "/".join([self._prefix, *parts] if self._prefix else parts)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise self._answered(error, what) from error
        except S3UploadFailedError as error:  # it holds only the text of the store's answer
            if isinstance(error.__context__, ClientError):
                raise self._answered(error.__context__, what) from error
            raise StoreError(f"{self.uri}: {what}: {error}", passing=True) from error
        except ParamValidationError as error:
            raise StoreError(f"{self.uri}: {what}: {error}") from error
        except (Boto3Error, BotoCoreError) as error:
            raise StoreError(f"{self.uri}: {what}: {error}", passing=True) from error
        except OSError as error:  # of the local disk
            raise CheckpointError(f"{self.uri}: {what}: {error}") from error

    def _answered(self, error: ClientError, what: str) -> CheckpointError:
        answer = error.response.get("Error", {})
        text = f"{self.uri}: {what}: {answer.get('Code', 'error')}: {answer.get('Message', error)}"
        if answer.get("Code") in MISSING:
            return CheckpointError(text)
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if skew := _skew(error, status):
            return StoreError(f"{text}; {skew}", passing=True, answered=True)
        passing = status >= FIRST_SERVER_ERROR or answer.get("Code") in THROTTLED
        refused = status == DENIED or answer.get("Code") in EXPIRED
        return StoreError(text, passing=passing, answered=True, refused=refused)


def _skew(error: ClientError, status: int) -> str:
    """Return advice if the clock is the reason of a refusal; for HEAD only the answer's date shows it."""
    code = error.response.get("Error", {}).get("Code")
    if code != SKEWED and status != DENIED:
        return ""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        ahead_s = time.time() - parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError):
        ahead_s = 0.0
    if code != SKEWED and abs(ahead_s) < SKEW_S:
        return ""
    off = f" by {abs(ahead_s):.0f} s, {'ahead' if ahead_s > 0 else 'behind'}" if ahead_s else ""
    return f"the clock of this instance is off{off}: look at timedatectl"


def _client(scheme: str, endpoint: str, named: str) -> Any:
    options = Config(
        retries={"mode": "standard", "max_attempts": ATTEMPTS},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=CONNECTIONS,
    )
    if scheme == "oss":
        return oss.client(endpoint, options, named)
    return boto3.client("s3", endpoint_url=endpoint or None, config=options)


def patiently(
    action: Callable[[], T],
    within_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    unanswered: bool = True,
    refused: bool = False,
) -> T:
    """Run `action`, and retry for `within_s` seconds while the object store fails in a way that may pass.

    That includes no answer, if `unanswered`; if `refused` also expired credentials, which are renewed soon.
    """
    until, pause_s = clock() + within_s, FIRST_PAUSE_S
    while True:
        try:
            return action()
        except StoreError as error:
            if refused and error.refused:
                error.passing, error.for_good = True, False
            if not error.passing or not (unanswered or error.answered) or clock() + pause_s > until:
                raise
            log.warning("event=store-silent next_try_s=%.0f error=%r", pause_s, str(error))
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def at_start(action: Callable[[], T]) -> T:
    """Run one of a run's first requests; a store without answer, or one that refuses, fails at once."""
    return patiently(action, START_PATIENCE_S, unanswered=False, refused=outcome.restarted())
