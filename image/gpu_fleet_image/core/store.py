"""Small JSON objects in a bucket, written under a condition."""

import email.utils
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError

# PutObject's errors if a condition does not hold (S3 API, conditional writes;
# OSS API, x-oss-forbid-overwrite).
REFUSED = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "FileAlreadyExists", "412", "409"})
ABSENT = frozenset({"NoSuchKey", "404"})


@dataclass(frozen=True)
class StoredObject:
    """An object as it was read, with its version.

    Attributes:
        age: time since it was last written, by the bucket's clock.
    """

    content: dict[str, Any]
    version: str
    age: timedelta = timedelta()


@dataclass(frozen=True)
class Listed:
    """An object in a listing.

    Attributes:
        age: time since it was last written, by the bucket's clock.
    """

    key: str
    age: timedelta


@dataclass(frozen=True)
class Page:
    """One page of a listing.

    Attributes:
        listed: in the order of the keys.
        token: continuation token; empty on the last page.
    """

    listed: list[Listed]
    token: str


class Store:
    """The part of a bucket below one prefix; S3, or OSS through its S3 interface.

    Raises ConfigurationError if the URI is malformed.
    """

    def __init__(self, s3: Any, calls: Calls, uri: str) -> None:
        self._scheme, _, rest = uri.partition("://")
        self._bucket, _, prefix = rest.partition("/")
        if self._scheme not in ("s3", "oss") or not self._bucket:
            raise ConfigurationError(
                f"GPU_FLEET_LEDGER_URI = {uri!r}; allowed: s3://BUCKET/PREFIX or oss://BUCKET/PREFIX"
            )
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._s3 = s3
        self._calls = calls

    def get(self, key: str, at_most: int | None = None) -> StoredObject | None:
        """Return an object, or None if there is none.

        Args:
            at_most: limit in bytes, for an object that others write: no more are read.

        Raises CloudError if it could not be read, is no JSON object, or is longer.
        """
        return self._read(key, at_most)

    def newest(self, key: str, at_most: int | None = None) -> StoredObject | None:
        """Return the latest object of a key, even if a user wrote it too late; otherwise as ``get``."""
        return self._read(key, at_most)

    def beginning(self, key: str, length: int) -> StoredObject | None:
        """Return an object as ``newest``, reading ``length`` bytes at most, for an object that others write.

        Raises:
            CloudError: as of ``get``; an object that is longer, or empty, is not a JSON object.
        """
        return self._read(key, Range=f"bytes=0-{length - 1}")

    def create(self, key: str, content: dict[str, Any]) -> str | None:
        """Create an object; return its version, or None if the key exists. Raises CloudError."""
        answer = self._put(key, content, IfNoneMatch="*")
        return None if answer is None else str(answer["ETag"])

    def put(self, key: str, content: dict[str, Any]) -> None:
        """Write an object, replacing an older one. Raises CloudError."""
        self._put(key, content)

    def listed(self, prefix: str) -> list[Listed]:
        """Return all objects whose key begins with the prefix, in order of the keys. Raises CloudError."""
        entries: list[Listed] = []
        page = self.page(prefix)
        entries += page.listed
        while page.token:
            page = self.page(prefix, token=page.token)
            entries += page.listed
        return entries

    def page(self, prefix: str, after: str = "", token: str = "") -> Page:
        """Return up to a thousand objects whose key begins with the prefix, in order of the keys: one call.

        Args:
            after: only keys that sort after this one, which need not exist; empty for all.
            token: of the previous page, instead of ``after``, to continue there.

        Raises CloudError as of ``get``, and if the bucket lists other keys.
        """
        where = (
            {"ContinuationToken": token} if token else {"StartAfter": self._prefix + after} if after else {}
        )
        answer = self._calls.read(
            self._s3.list_objects_v2, Bucket=self._bucket, Prefix=self._prefix + prefix, **where
        )
        now = self._answered_at(answer)
        listed = [
            Listed(entry["Key"].removeprefix(self._prefix), now - entry["LastModified"])
            for entry in answer.get("Contents", [])
        ]
        if after and listed and listed[0].key <= after:
            raise CloudError(
                f"{prefix}: asked for what comes after {after!r}, got {listed[0].key!r}", "Malformed"
            )
        return Page(listed, answer.get("NextContinuationToken", ""))

    def _answered_at(self, answer: dict[str, Any]) -> datetime:
        """Return the time of the bucket's answer, by its own clock."""
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return email.utils.parsedate_to_datetime(date) if date else self._calls.now()

    def put_page(self, key: str, text: str) -> str:
        """Write an HTML page, replacing an older one; return its URI. Raises CloudError."""
        self._calls.change(
            self._s3.put_object,
            Bucket=self._bucket,
            Key=self._prefix + key,
            Body=text.encode(),
            ContentType="text/html; charset=utf-8",
        )
        return f"{self._scheme}://{self._bucket}/{self._prefix}{key}"

    def replace(self, key: str, content: dict[str, Any], version: str) -> str | None:
        """Replace the version that was read; return the new one, or None if another writer was first.

        Raises CloudError if it could not be written.
        """
        answer = self._put(key, content, IfMatch=version)
        return None if answer is None else str(answer["ETag"])

    def move_on(self, key: str, content: dict[str, Any], version: str | None) -> str | None:
        """Create an object if none was read, else replace the version that was; results as of those two."""
        return self.create(key, content) if version is None else self.replace(key, content, version)

    def to_forget(self, key: str) -> str:
        """Return how a user makes ``get`` find nothing."""
        return f"delete {self._scheme}://{self._bucket}/{self._prefix}{key}"

    def _read(self, key: str, at_most: int | None = None, **exact: str) -> StoredObject | None:
        try:
            answer = self._calls.read(
                self._s3.get_object, Bucket=self._bucket, Key=self._prefix + key, **exact
            )
        except CloudError as error:
            if error.code in ABSENT:
                return None
            raise
        content = stored_object(answer, self._prefix + key, at_most)
        return replace(content, age=self._answered_at(answer) - answer["LastModified"])

    def _put(self, key: str, content: dict[str, Any], **condition: str) -> dict[str, Any] | None:
        """Return PutObject's answer, or None if the condition does not hold."""
        try:
            answer: dict[str, Any] = self._calls.change(
                self._s3.put_object,
                Bucket=self._bucket,
                Key=self._prefix + key,
                Body=json.dumps(content, indent=1, sort_keys=True).encode(),
                ContentType="application/json",
                **condition,
            )
        except CloudError as error:
            if error.code in REFUSED or (error.code in ABSENT and "IfMatch" in condition):
                return None
            raise
        return answer


def _directly(method: Callable[..., Any], **arguments: Any) -> Any:
    return method(**arguments)


def objects_below(
    s3: Any, bucket: str, prefix: str, ask: Callable[..., Any] = _directly
) -> Iterator[dict[str, Any]]:
    """Yield every object whose key begins with the prefix, as ListObjectsV2 lists it.

    Args:
        ask: makes each call, such as ``Calls.read``; its errors are raised as they are.
    """
    arguments: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
    while True:
        page = ask(s3.list_objects_v2, **arguments)
        yield from page.get("Contents", ())
        if not page.get("NextContinuationToken"):
            return
        arguments["ContinuationToken"] = page["NextContinuationToken"]


def stored_object(answer: dict[str, Any], key: str, at_most: int | None = None) -> StoredObject:
    """Parse GetObject's answer.

    Raises CloudError if it is not a JSON object, or longer than ``at_most`` bytes.
    """
    body = answer["Body"].read() if at_most is None else answer["Body"].read(at_most + 1)
    if at_most is not None and len(body) > at_most:
        raise CloudError(f"{key}: longer than {at_most} bytes", "Malformed")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise CloudError(f"{key}: not a JSON object", "Malformed")
    return StoredObject(content, answer["ETag"])
