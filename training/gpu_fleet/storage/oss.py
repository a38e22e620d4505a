"""Alibaba Cloud OSS through boto3: its endpoint, and the keys of the role of this instance or pod."""

import os
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

from gpu_fleet.core import instance_file
from gpu_fleet.core.errors import CheckpointError, LaunchError, StoreError
from gpu_fleet.core.metadata import MetadataClient
from gpu_fleet.storage import rrsa

# https://www.alibabacloud.com/help/en/oss/developer-reference/use-amazon-s3-sdks-to-access-oss: the internal
# endpoint is free, needs no internet access, and also serves accounts that the public endpoint refuses.
ENDPOINT = "https://s3.oss-{region}-internal.aliyuncs.com"
# OSS supports neither the newer checksums nor path-style addressing.
PLAIN = Config(
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
    s3={"addressing_style": "virtual"},
)


def client(endpoint: str, options: Config, key: str = "checkpoint.endpoint") -> Any:
    """Return boto3's S3 client for OSS; only on an instance of a fleet may `endpoint`, of `key`, be empty."""
    table = instance_file.table()
    region = str(table.get("region", "")) if table.get("cloud") == "alicloud" else ""
    named = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not named and not region:
        raise CheckpointError(
            f"{key} = '': must be the endpoint of OSS, such as "
            "https://s3.oss-cn-beijing.aliyuncs.com; only an instance of a fleet has a default"
        )
    session = botocore.session.get_session()
    if rrsa.is_given(os.environ):
        session.get_component("credential_provider").insert_after("env", rrsa.PodKeys())
    if region:
        session.set_config_variable("region", region)
        session.get_component("credential_provider").insert_after("env", RoleKeys())
    url = named or ENDPOINT.format(region=region)
    return boto3.Session(botocore_session=session).client("s3", endpoint_url=url, config=options.merge(PLAIN))


class RoleKeys(rrsa.PodKeys):
    """Keys of this instance's RAM role, renewed before they expire."""

    METHOD = CANONICAL_NAME = "ram-role"

    def keys(self) -> dict[str, str]:
        try:
            return rrsa.named(MetadataClient("alicloud").role_keys())
        except (LaunchError, ValueError, LookupError) as error:
            text = f"this instance's role has no keys to reach OSS with: {error!r}"
            raise StoreError(text, passing=True) from error
