"""Alibaba Cloud OSS through boto3: where it answers, and the keys of the role of this instance or pod."""

import os
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import CredentialProvider, RefreshableCredentials

from gpu_fleet import instance_file
from gpu_fleet.errors import CheckpointError, LaunchError
from gpu_fleet.metadata import MetadataClient
from gpu_fleet.storage import rrsa

# https://www.alibabacloud.com/help/en/oss/developer-reference/use-amazon-s3-sdks-to-access-oss: from inside,
# which is free, needs no way out of the network, and is open to accounts that the public name refuses.
ENDPOINT = "https://s3.oss-{region}-internal.aliyuncs.com"
# OSS knows neither the newer checksums nor path addressing.
PLAIN = Config(
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
    s3={"addressing_style": "virtual"},
)


def client(endpoint: str, options: Config, key: str = "checkpoint.endpoint") -> Any:
    """boto3's S3 client for OSS, with the keys of the environment, else of the role of this pod or instance.

    `endpoint`, by its `key`, is empty on an instance of a fleet, which asks inside its network. Raises
    CheckpointError where nobody knows an endpoint.
    """
    table = instance_file.table()
    region = str(table.get("region", "")) if table.get("cloud") == "alicloud" else ""
    named = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not named and not region:
        raise CheckpointError(
            f"{key} = '': must say where OSS answers, such as "
            "https://s3.oss-cn-beijing.aliyuncs.com; only an instance of a fleet knows by itself"
        )
    session = botocore.session.get_session()
    if rrsa.is_given(os.environ):
        session.get_component("credential_provider").insert_after("env", rrsa.PodKeys())
    if region:
        session.set_config_variable("region", region)
        session.get_component("credential_provider").insert_after("env", RoleKeys())
    url = named or ENDPOINT.format(region=region)
    return boto3.Session(botocore_session=session).client("s3", endpoint_url=url, config=options.merge(PLAIN))


class RoleKeys(CredentialProvider):
    """The keys of this instance's RAM role, asked for anew before they end."""

    METHOD = CANONICAL_NAME = "ram-role"

    def load(self) -> RefreshableCredentials:
        """Credentials that renew themselves; raises CheckpointError where the instance has no role."""
        return RefreshableCredentials.create_from_metadata(
            metadata=role_keys(), refresh_using=role_keys, method=self.METHOD
        )


def role_keys() -> dict[str, str]:
    """The present keys of the role, as botocore names their parts."""
    try:
        keys = MetadataClient("alicloud").role_keys()
        return {
            "access_key": keys["AccessKeyId"],
            "secret_key": keys["AccessKeySecret"],
            "token": keys["SecurityToken"],
            "expiry_time": keys["Expiration"],
        }
    except (LaunchError, ValueError, LookupError) as error:
        raise CheckpointError(f"this instance's role has no keys to reach OSS with: {error!r}") from error
