"""Keys of a pod's role on Alibaba Cloud: RRSA, with the token of its service account.

The webhook of ACK mounts the token and sets these variables. STS exchanges the token for keys; the request
needs no signature.
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

from botocore.credentials import CredentialProvider, RefreshableCredentials

from gpu_fleet.core.errors import StoreError

ROLE, PROVIDER = "ALIBABA_CLOUD_ROLE_ARN", "ALIBABA_CLOUD_OIDC_PROVIDER_ARN"
TOKEN_FILE, ENDPOINT = "ALIBABA_CLOUD_OIDC_TOKEN_FILE", "ALIBABA_CLOUD_STS_ENDPOINT"
VARIABLES = (ROLE, PROVIDER, TOKEN_FILE)
DEFAULT_ENDPOINT = "sts.aliyuncs.com"
TIMEOUT_S = 10.0
FIRST_SERVER_ERROR = 500


def is_given(environ: Mapping[str, str]) -> bool:
    return all(environ.get(name) for name in VARIABLES)


class PodKeys(CredentialProvider):
    """Keys of the pod's role, renewed before they expire."""

    METHOD = CANONICAL_NAME = "rrsa"

    def load(self) -> RefreshableCredentials:
        return RefreshableCredentials.create_from_metadata(
            metadata=self.keys(), refresh_using=self.keys, method=self.METHOD
        )

    def keys(self) -> dict[str, str]:
        """Return the present keys, in botocore's names; raises StoreError."""
        endpoint = os.environ.get(ENDPOINT) or DEFAULT_ENDPOINT
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
