"""Questions to Alibaba Cloud through its own generic client; what keeps an answer away is one sentence."""

import logging
from typing import Any

# none of the official client's packages says its types
from alibabacloud_credentials.client import Client as Credentials  # type: ignore[import-untyped]
from alibabacloud_credentials.exceptions import CredentialException  # type: ignore[import-untyped]
from alibabacloud_tea_openapi.client import Client  # type: ignore[import-untyped]
from alibabacloud_tea_openapi.exceptions import AlibabaCloudException  # type: ignore[import-untyped]
from alibabacloud_tea_openapi.utils_models import (  # type: ignore[import-untyped]
    Config,
    OpenApiRequest,
    Params,
)
from darabonba.runtime import RuntimeOptions  # type: ignore[import-untyped]
from Tea.exceptions import TeaException  # type: ignore[import-untyped]

from stacks.errors import CannotCheckError

# Product -> version of its API, and the permission's first half: api.alibabacloud.com, page of each product.
VERSIONS = {
    "bssopenapi": ("2017-12-14", "bssapi"),
    "ecs": ("2014-05-26", "ecs"),
    "kms": ("2016-01-20", "kms"),
    "quotas": ("2020-05-10", "quotas"),
    "sts": ("2015-04-01", "sts"),
}
# One door for all regions of mainland China; every other product has one in each region.
CENTRAL = {"bssopenapi": "business.aliyuncs.com", "quotas": "quotas.aliyuncs.com"}
# www.alibabacloud.com/help/en/ram, "Common errors": each product spells it in its own way.
DENIALS = ("Forbidden.RAM", "NoPermission", "NotAuthorized", "AccessDenied", "Forbidden.Unauthorized")
HOW_TO_LOG_IN = (
    "set ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET, or log in with `aliyun configure`"
)
CONNECT_TIMEOUT_MS, READ_TIMEOUT_MS = 5000, 20_000


class Alicloud:
    """Asks Alibaba Cloud.

    Args:
        region: where.
        credentials: whose; by default the environment's, by the official client's own search.
        endpoint: instead of the cloud, ``host:port`` without TLS, for tests.
    """

    def __init__(self, region: str, credentials: Any = None, endpoint: str | None = None) -> None:
        self._region = region
        self._credentials = credentials
        self._endpoint = endpoint

    def ask(self, product: str, action: str, **parameters: str) -> dict[str, Any]:
        """One call, say ``ask("ecs", "DescribeImages", ImageId="m-1")``.

        Raises:
            CannotCheckError: it was denied, refused or not answered, or nobody is logged in.
        """
        version, permission = VERSIONS[product]
        protocol = "HTTPS" if self._endpoint is None else "HTTP"
        params = Params(
            action=action,
            version=version,
            protocol=protocol,
            pathname="/",
            method="POST",
            auth_type="AK",
            style="RPC",
            req_body_type="formData",
            body_type="json",
        )
        try:
            answer = self._client(product, protocol).call_api(
                params, OpenApiRequest(query=parameters), RuntimeOptions()
            )
        except AlibabaCloudException as error:
            raise CannotCheckError(_said(f"{permission}:{action}", error)) from error
        except TeaException as error:
            raise CannotCheckError(f"{action}: {_first_line(error.message)}") from error
        body: dict[str, Any] = answer["body"]
        return body

    def _client(self, product: str, protocol: str) -> Client:
        if self._credentials is None:
            self._credentials = _found_credentials()
        return Client(
            Config(
                credential=self._credentials,
                region_id=self._region,
                endpoint=self._endpoint or CENTRAL.get(product, f"{product}.{self._region}.aliyuncs.com"),
                protocol=protocol,
                connect_timeout=CONNECT_TIMEOUT_MS,
                read_timeout=READ_TIMEOUT_MS,
            )
        )


def listed(answer: dict[str, Any], *keys: str) -> list[dict[str, Any]]:
    """The list that an API wraps twice: ``listed(answer, "Images", "Image")``; empty where it is left out."""
    found: Any = answer
    for key in keys:
        found = (found or {}).get(key)
    return list(found or ())


def _found_credentials() -> Any:
    """The environment's, a profile's or a machine role's.

    Raises:
        CannotCheckError: there are none.
    """
    # it logs a traceback for each place where it finds none; one sentence is enough
    logging.getLogger("credentials").setLevel(logging.CRITICAL + 1)
    try:
        found = Credentials()
        found.get_credential()
    except CredentialException as error:
        raise CannotCheckError(f"no credentials; {HOW_TO_LOG_IN}") from error
    return found


def _said(permission: str, error: AlibabaCloudException) -> str:
    """The cloud's words, or the permission that is missing."""
    code = str(error.code)
    if any(denial in code for denial in DENIALS):
        return f"denied {permission}"
    return f"{permission.partition(':')[2]}: {code}: {_first_line(error.message)}"


def _first_line(said: object) -> str:
    return " ".join(str(said).split())[:300]
