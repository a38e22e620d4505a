"""OSS through its S3 interface: its endpoints, and boto3's client for it."""

import os
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from gpu_fleet_image.core.alicloud_credentials import Credentials

ENDPOINT = "GPU_FLEET_ALICLOUD_OSS_ENDPOINT"  # environment: endpoint of OSS, for functions and tests
# https://www.alibabacloud.com/help/en/oss/developer-reference/use-amazon-s3-sdks-to-access-oss
# The public endpoint costs, and refuses accounts opened since March 2025 in mainland regions.
_ENDPOINT_OUTSIDE = "https://s3.oss-{region}.aliyuncs.com"
ENDPOINT_INSIDE = "https://s3.oss-{region}-internal.aliyuncs.com"
_FORBID_OVERWRITE = "x-oss-forbid-overwrite"  # OSS API, PutObject


def bucket_client(
    region: str,
    credentials: Credentials,
    endpoint: str | None = None,
    *,
    once: bool = False,
    at_once: int = 10,
) -> Any:
    """Return boto3's S3 client for OSS, with the keys that are valid now.

    OSS supports neither the newer checksums nor path addressing, nor ``If-None-Match`` on a write: its own
    header is sent instead.

    Args:
        endpoint: of OSS; None for that of the environment, else the public one.
        once: make a call only once and give up after seconds, for what must not be late.

    Raises:
        ConfigurationError: there are no credentials.
        CloudError: the metadata service does not answer.
    """
    keys = credentials.current()
    url = os.environ.get(ENDPOINT) or endpoint or _ENDPOINT_OUTSIDE.format(region=region)
    ours = (urlsplit(url).hostname or "").endswith(".aliyuncs.com")
    made = boto3.client(
        "s3",
        region_name=region,
        endpoint_url=url,
        aws_access_key_id=keys.key_id,
        aws_secret_access_key=keys.secret,
        aws_session_token=keys.token or None,
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": 1 if once else 8},
            connect_timeout=1 if once else 5,
            read_timeout=3 if once else 30,
            max_pool_connections=at_once,
            s3={"addressing_style": "virtual" if ours else "path"},
        ),
    )
    made.meta.events.register("before-call.s3.PutObject", _forbid_overwrite)
    return made


def _forbid_overwrite(params: dict[str, Any], **_: object) -> None:
    if params["headers"].get("If-None-Match") == "*":
        del params["headers"]["If-None-Match"]
        params["headers"][_FORBID_OVERWRITE] = "true"
