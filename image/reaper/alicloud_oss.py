"""OSS through its S3 interface: boto3's client, and small objects that are written only under a condition."""

import os
from typing import Any

import boto3
from botocore.config import Config

from image.reaper.alicloud_credentials import Credentials
from image.reaper.store import Found, Store

ENDPOINT = "GPU_FLEET_ALICLOUD_OSS_ENDPOINT"  # environment: where OSS answers, in tests
DIGITS = 12
FORBID_OVERWRITE = "x-oss-forbid-overwrite"  # OSS API, PutObject


def bucket_client(region: str, credentials: Credentials, endpoint: str | None = None) -> Any:
    """boto3's S3 client for OSS, with the keys that count now.

    OSS knows neither the newer checksums nor path addressing, nor ``If-None-Match`` on a write: for that it
    has a header of its own, which is sent in its place.

    Raises:
        ConfigurationError: there are no credentials.
        CloudError: the metadata service does not answer.
    """
    keys = credentials.current()
    elsewhere = endpoint or os.environ.get(ENDPOINT)
    made = boto3.client(
        "s3",
        region_name=region,
        endpoint_url=elsewhere or f"https://s3.oss-{region}.aliyuncs.com",
        aws_access_key_id=keys.key_id,
        aws_secret_access_key=keys.secret,
        aws_session_token=keys.token or None,
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": 8},
            connect_timeout=5,
            read_timeout=30,
            s3={"addressing_style": "path" if elsewhere else "virtual"},
        ),
    )
    made.meta.events.register("before-call.s3.PutObject", _forbid_overwrite)
    return made


def _forbid_overwrite(params: dict[str, Any], **_: object) -> None:
    if params["headers"].get("If-None-Match") == "*":
        del params["headers"]["If-None-Match"]
        params["headers"][FORBID_OVERWRITE] = "true"


class OssStore(Store):
    """A store on a cloud that can forbid to overwrite, and knows no condition on a version.

    Each new version of an object is an object of its own, with a number that nobody may take twice. The
    newest comes first in a listing. Old ones are never deleted here: a number must not become free again.
    """

    def get(self, key: str) -> Found | None:
        """The newest version; errors as of ``Store``."""
        listed = self._calls.look(
            self._s3.list_objects_v2, Bucket=self._bucket, Prefix=f"{self._prefix}{key}.", MaxKeys=1
        ).get("Contents", [])
        if not listed:
            first = super().get(key)
            return None if first is None else Found(first.content, "0")
        newest = str(listed[0]["Key"]).removeprefix(self._prefix)
        found = super().get(newest)
        left = int(newest.rpartition(".")[2])
        return None if found is None else Found(found.content, str(10**DIGITS - left))

    def create(self, key: str, content: dict[str, Any]) -> str | None:
        """As ``Store``; the first version's number is 0."""
        return None if super().create(key, content) is None else "0"

    def replace(self, key: str, content: dict[str, Any], version: str) -> str | None:
        """As ``Store``: the next number, or None where somebody has it."""
        number = int(version) + 1 if version.isdecimal() else 0
        if not number:
            return None
        made = super().create(f"{key}.{10**DIGITS - number:0{DIGITS}d}", content)
        return None if made is None else str(number)
