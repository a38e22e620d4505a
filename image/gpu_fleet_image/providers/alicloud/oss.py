"""Small objects in OSS, written under a condition."""

from dataclasses import replace
from typing import Any

from gpu_fleet_image.core.store import Store, StoredObject

DIGITS = 12
_MOST_WRITERS = 100  # of one key at the same moment; two are enough


def users_key(pool: str, instance_id: str) -> str:
    """Return the key of an instance's list of users; its role can write below its pool's folder."""
    return f"users/{pool}/{instance_id}.json"


class OssStore(Store):
    """Store on a cloud without conditions on a version, and without any in buckets that keep versions.

    OSS ignores ``x-oss-forbid-overwrite`` in a bucket with versions, as the stack's buckets are (OSS API,
    PutObject). There every write adds a version, and nobody can change their order: of several writers of one
    key, the writer of its oldest version was first. Each new state of an object is a key of its own, with a
    number; the newest comes first in a listing. This class deletes none: a number must not become free again.
    """

    def get(self, key: str, at_most: int | None = None) -> StoredObject | None:
        """Return the newest state; errors as of ``Store``."""
        newest, version = self._oldest_version(f"{key}.")
        if newest is None:
            newest, version = self._oldest_version(key)
        if newest != key and not (newest or "").startswith(f"{key}."):
            return None
        exact = {} if version in ("", "null") else {"VersionId": version}
        stored = self._read(newest or key, at_most, **exact)
        left = (newest or key).removeprefix(key).removeprefix(".")
        return (
            None if stored is None else replace(stored, version=str(10**DIGITS - int(left)) if left else "0")
        )

    def create(self, key: str, content: dict[str, Any]) -> str | None:
        """Create an object as ``Store``; the first state has the number 0."""
        return "0" if self._claim(key, content) else None

    def replace(self, key: str, content: dict[str, Any], version: str) -> str | None:
        """Replace a version as ``Store``: return the next number, or None if another writer has it."""
        if not (version.isascii() and version.isdecimal()):
            return None
        number = int(version) + 1
        claimed = self._claim(f"{key}.{10**DIGITS - number:0{DIGITS}d}", content)
        return str(number) if claimed else None

    def to_forget(self, key: str) -> str:
        """Return how a user makes ``get`` find nothing: a plain deletion leaves versions, which it reads."""
        where = f"{self._scheme}://{self._bucket}/{self._prefix}{key}"
        return f"delete all versions of {where} and of every object whose name begins with {where}."

    def _claim(self, key: str, content: dict[str, Any]) -> bool:
        """Write a key that nobody wrote before; return whether this writer was first."""
        if self._oldest_version(key)[0] == key:
            return False
        answer = self._put(key, content, IfNoneMatch="*")
        if answer is None:
            return False
        version = answer.get("VersionId")  # none from a bucket without versions, which forbids by itself
        return not version or self._oldest_version(key) == (key, version)

    def _oldest_version(self, start: str) -> tuple[str | None, str]:
        """Return (the first key with this prefix, its oldest version), or (None, "") without any."""
        listed = self._calls.read(
            self._s3.list_object_versions,
            Bucket=self._bucket,
            Prefix=self._prefix + start,
            MaxKeys=_MOST_WRITERS,
        ).get("Versions", [])
        if not listed:
            return None, ""
        first = listed[0]["Key"]  # a key's versions follow one another, the newest first
        oldest = [version for version in listed if version["Key"] == first][-1]
        return str(first).removeprefix(self._prefix), str(oldest.get("VersionId") or "")
