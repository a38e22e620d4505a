"""Count and delete the content of a bucket: every version of every object, on any store with S3's API."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu_fleet_stacks.clients.errors import CannotCheckError

AT_ONCE = 1000  # docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html
THREADS = 16
# A page of ListObjectVersions holds 1,000; a larger content is reported as "at least" so much.
COUNTED_PAGES = 20
Ask = Callable[..., dict[str, Any]]


def empty(ask: Ask, bucket: str, note: Callable[[str], None], *, in_batches: bool) -> int:
    """Delete every version and abort every unfinished upload; return the number of versions.

    Args:
        ask: makes one call of boto3's S3 client, say ``ask("list_object_versions", Bucket=...)``; called from
            several threads where ``in_batches`` is False.
        note: called with the number of deleted versions, page by page.
        in_batches: by DeleteObjects. OSS refuses that without an MD5, which boto3 no longer sends
            (www.alibabacloud.com/help/en/oss/user-guide/0016-00000606); False deletes one by one.

    Raises:
        CannotCheckError: the store kept a version, or refused a call.
    """
    _abort_uploads(ask, bucket)
    delete = _delete_together if in_batches else _delete_each
    removed, before = 0, ""
    while versions := versions_in(ask("list_object_versions", Bucket=bucket, MaxKeys=AT_ONCE)):
        objects = [{"Key": version["Key"], "VersionId": version["VersionId"]} for version in versions]
        if (first := repr(objects[0])) == before:
            raise CannotCheckError(f"{bucket}/{objects[0]['Key']} stays, though its deletion was agreed to")
        delete(ask, bucket, objects)
        removed, before = removed + len(objects), first
        note(f"{bucket}: {removed:,} versions deleted")
    return removed


def count(ask: Ask, bucket: str) -> tuple[int, int, bool]:
    """Return the versions and delete markers of a bucket, their bytes, and whether there are more."""
    versions, size = 0, 0
    after: dict[str, str] = {}
    for _ in range(COUNTED_PAGES):
        page = ask("list_object_versions", Bucket=bucket, **after)
        versions += len(versions_in(page))
        size += sum(version["Size"] for version in page.get("Versions", ()))
        if not page.get("IsTruncated"):
            return versions, size, False
        after = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}
    return versions, size, True


def versions_in(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the versions and delete markers of an answer of ListObjectVersions."""
    return [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]


def _abort_uploads(ask: Ask, bucket: str) -> None:
    """Abort every unfinished upload: OSS deletes no bucket with one, and both clouds charge for parts."""
    while uploads := ask("list_multipart_uploads", Bucket=bucket).get("Uploads", ()):
        for upload in uploads:
            ask("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


def _delete_together(ask: Ask, bucket: str, objects: Sequence[dict[str, Any]]) -> None:
    """Delete versions in one call; a successful answer may contain refusals of single versions."""
    answer = ask("delete_objects", Bucket=bucket, Delete={"Objects": list(objects), "Quiet": True})
    for refused in answer.get("Errors", ()):
        said = f"{bucket}/{refused['Key']} stays: {refused['Code']}: {refused['Message']}"
        raise CannotCheckError(said, refused["Code"])


def _delete_each(ask: Ask, bucket: str, objects: Sequence[dict[str, Any]]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda version: ask("delete_object", Bucket=bucket, **version), objects))
