"""Alibaba Cloud OSS through boto3: its endpoint, and the keys of the role of this instance or pod.

A pod has RRSA, with the token of its service account: the webhook of ACK mounts the token and sets these
variables. STS exchanges the token for keys; the request needs no signature.
https://www.alibabacloud.com/help/en/ack/product-overview/ack-pod-identity-webhook
https://www.alibabacloud.com/help/en/ram/developer-reference/api-sts-2015-04-01-assumerolewithoidc
"""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import CredentialProvider, RefreshableCredentials

from gpu_fleet.core import instance_file
from gpu_fleet.core.errors import CheckpointError, LaunchError, StoreError
from gpu_fleet.core.metadata import MetadataClient

# https://www.alibabacloud.com/help/en/oss/developer-reference/use-amazon-s3-sdks-to-access-oss: the internal
# endpoint is free, needs no internet access, and also serves accounts that the public endpoint refuses.
ENDPOINT = "https://s3.oss-{region}-internal.aliyuncs.com"
# OSS supports neither the newer checksums nor path-style addressing.
PLAIN = Config(
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
    s3={"addressing_style": "virtual"},
)
ROLE, PROVIDER = "ALIBABA_CLOUD_ROLE_ARN", "ALIBABA_CLOUD_OIDC_PROVIDER_ARN"
TOKEN_FILE, STS_ENDPOINT = "ALIBABA_CLOUD_OIDC_TOKEN_FILE", "ALIBABA_CLOUD_STS_ENDPOINT"
VARIABLES = (ROLE, PROVIDER, TOKEN_FILE)
DEFAULT_STS = "sts.aliyuncs.com"
TIMEOUT_S = 10.0
FIRST_SERVER_ERROR = 500


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
    if all(os.environ.get(name) for name in VARIABLES):
        session.get_component("credential_provider").insert_after("env", PodKeys())
    if region:
        session.set_config_variable("region", region)
        session.get_component("credential_provider").insert_after("env", RoleKeys())
    url = named or ENDPOINT.format(region=region)
    return boto3.Session(botocore_session=session).client("s3", endpoint_url=url, config=options.merge(PLAIN))


class PodKeys(CredentialProvider):
    """Keys of the pod's role, renewed before they expire."""

    METHOD = CANONICAL_NAME = "rrsa"

    def load(self) -> RefreshableCredentials:
        return RefreshableCredentials.create_from_metadata(
            metadata=self.keys(), refresh_using=self.keys, method=self.METHOD
        )

    def keys(self) -> dict[str, str]:
        """Return the present keys, in botocore's names; raises StoreError."""
        endpoint = os.environ.get(STS_ENDPOINT) or DEFAULT_STS
        url = endpoint if "://" in endpoint else f"https://{endpoint}"
        try:
            return named(_answer(url)["Credentials"])
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            raise StoreError(
                f"{url}: gives no keys for {ROLE} = {os.environ[ROLE]!r}: {error.code} {said}",
                passing=error.code >= FIRST_SERVER_ERROR,
                refused=error.code < FIRST_SERVER_ERROR,
            ) from error
        except (OSError, HTTPException) as error:
            raise StoreError(f"{url}: gives no keys for this pod's role: {error!r}", passing=True) from error
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError(f"{url}: its answer cannot be read: {error!r}", passing=True) from error


class RoleKeys(PodKeys):
    """Keys of this instance's RAM role, renewed before they expire."""

    METHOD = CANONICAL_NAME = "ram-role"

    def keys(self) -> dict[str, str]:
        try:
            return named(MetadataClient("alicloud").role_keys())
        except (LaunchError, ValueError, LookupError) as error:
            text = f"this instance's role has no keys to reach OSS with: {error!r}"
            raise StoreError(text, passing=True) from error


def named(keys: Mapping[str, str]) -> dict[str, str]:
    """Return keys in botocore's names; raises LookupError, or TypeError for what is no table."""
    return {
        "access_key": keys["AccessKeyId"],
        "secret_key": keys["AccessKeySecret"],
        "token": keys["SecurityToken"],
        "expiry_time": keys["Expiration"],
    }


def _answer(url: str) -> Any:
    question = {
        "Action": "AssumeRoleWithOIDC",
        "Version": "2015-04-01",
        "Format": "JSON",
        "Timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "SignatureNonce": uuid.uuid4().hex,
        "RoleArn": os.environ[ROLE],
        "OIDCProviderArn": os.environ[PROVIDER],
        "OIDCToken": Path(os.environ[TOKEN_FILE]).read_text(encoding="utf-8").strip(),
        "RoleSessionName": "gpu-fleet",
    }
    request = urllib.request.Request(url, urllib.parse.urlencode(question).encode())  # noqa: S310 - https by default
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - see above
        return json.load(answer)
