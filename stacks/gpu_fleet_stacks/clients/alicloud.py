"""Client of Alibaba Cloud by its official SDK; a failed call raises an error of one sentence."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

# the SDK has no type hints
from aliyunsdkcore.acs_exception.exceptions import (  # type: ignore[import-untyped]
    ClientException,
    ServerException,
)
from aliyunsdkcore.auth.credentials import (  # type: ignore[import-untyped]
    AccessKeyCredential,
    StsTokenCredential,
)
from aliyunsdkcore.client import AcsClient  # type: ignore[import-untyped]
from aliyunsdkcore.request import CommonRequest  # type: ignore[import-untyped]

from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_stacks.clients.errors import CannotCheckError

# Product -> version of its API, and the permission's prefix: api.alibabacloud.com, page of each product.
VERSIONS = {
    "cms": ("2019-01-01", "cms"),
    "dm": ("2015-11-23", "dm"),
    "ecs": ("2014-05-26", "ecs"),
    "ess": ("2022-02-22", "ess"),
    "kms": ("2016-01-20", "kms"),
    "nas": ("2017-06-26", "nas"),
    "privatelink": ("2020-04-15", "privatelink"),
    "quotas": ("2020-05-10", "quotas"),
    "ram": ("2015-05-01", "ram"),
    "sls": ("2019-10-23", "log"),
    "sts": ("2015-04-01", "sts"),
    "tag": ("2018-08-28", "tag"),
    "vpc": ("2016-04-28", "vpc"),
}
# Product -> the first part of its host, where it differs: API reference of CloudMonitor, "Endpoints".
HOSTS = {"cms": "metrics"}
# Products with one host for all regions of mainland China; every other product has one in each region.
CENTRAL = {"quotas": "quotas.aliyuncs.com", "ram": "ram.aliyuncs.com", "sls": "sls.aliyuncs.com"}
# Regions that older products serve from one place, as the SDK's packages have it; a test holds this room and
# image/gpu_fleet_image/providers/alicloud/session.py to the same hosts.
CENTRAL_IN = {
    ("ecs", "cn-hangzhou"): "ecs-cn-hangzhou.aliyuncs.com",
    ("vpc", "cn-hangzhou"): "vpc.aliyuncs.com",
}
# Regions of Auto Scaling's central host: www.alibabacloud.com/help/en/auto-scaling, "Endpoints".
ESS_CENTRAL = frozenset(
    {
        *("cn-beijing", "cn-hangzhou", "cn-nanjing", "cn-qingdao", "cn-shanghai", "cn-shenzhen", "cn-wuhan"),
        *("ap-southeast-1", "cn-hongkong", "us-east-1", "us-west-1"),
    }
)
# DirectMail has hosts in few regions (its page "Endpoints", 2026-09); Chinese regions share one.
MAIL_REGIONS = frozenset({"ap-southeast-1", "eu-central-1", "us-east-1"})
KEY_ID, KEY_SECRET = "ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"
TOKEN = "ALIBABA_CLOUD_SECURITY_TOKEN"  # noqa: S105 - the name of a variable, not its value
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 20
# The SDK logs every refusal with the signed text; one sentence is enough.
logging.getLogger("aliyunsdkcore").setLevel(logging.CRITICAL)


Credentials = tuple[str, str, str | None]  # id and secret of a key, and a session's token


class Alicloud:
    """Client of Alibaba Cloud, with the credentials that the Pulumi provider uses too.

    Args:
        environ: holds the credentials; by default the process's own.
        endpoint: ``host:port`` without TLS in place of the cloud, for tests.
    """

    def __init__(
        self, region: str, environ: Mapping[str, str] | None = None, endpoint: str | None = None
    ) -> None:
        self._region = region
        self._environ = os.environ if environ is None else environ
        self._endpoint = endpoint
        self._made: tuple[Credentials, Any] | None = None

    def ask(self, product: str, action: str, **parameters: str) -> dict[str, Any]:
        """Make one call, such as ``ask("ecs", "DescribeImages", ImageId="m-1")``.

        Raises:
            CannotCheckError: it was denied, refused or not answered, or there are no credentials.
        """
        version, permission = VERSIONS[product]
        host = self._endpoint or host_of(product, self._region)
        request = CommonRequest(domain=host, version=version, action_name=action)
        request.set_method("POST")
        request.set_protocol_type("https" if self._endpoint is None else "http")
        request.set_accept_format("JSON")
        for name, value in parameters.items():
            request.add_query_param(name, value)
        try:
            answer: dict[str, Any] = json.loads(self._client().do_action_with_exception(request))
        except ServerException as error:
            said = _said(f"{permission}:{action}", error)
            raise CannotCheckError(said, str(error.error_code)) from error
        except (ClientException, ValueError) as error:
            # not the error's own text, which holds the key's id and the signature
            raise CannotCheckError(f"{action}: {host} gave no answer") from error
        return answer

    def numbered(
        self, product: str, action: str, *keys: str, size: int, **parameters: str
    ) -> Iterator[dict[str, Any]]:
        """Yield all entries of a list with numbered pages; ``keys`` as in ``listed``.

        Args:
            size: entries of a page; each list has a largest one.

        Raises:
            CannotCheckError: as in ``ask``.
        """
        seen = 0
        for number in count(1):
            page = self.ask(product, action, **parameters, PageNumber=str(number), PageSize=str(size))
            entries = listed(page, *keys)
            yield from entries
            seen += len(entries)
            if not entries or seen >= int(page["TotalCount"]):
                return

    def _client(self) -> Any:
        """Return the client of the current credentials; cached, since making one is slower than a call."""
        key_id, secret = self._environ.get(KEY_ID), self._environ.get(KEY_SECRET)
        if not (key_id and secret):
            raise CannotCheckError(f"no credentials; set {KEY_ID} and {KEY_SECRET}")
        credentials = (key_id, secret, self._environ.get(TOKEN))
        if self._made is None or self._made[0] != credentials:
            self._made = (credentials, self._client_of(credentials))
        return self._made[1]

    def _client_of(self, credentials: Credentials) -> Any:
        key_id, secret, token = credentials
        credential = (
            StsTokenCredential(key_id, secret, token) if token else AccessKeyCredential(key_id, secret)
        )
        return AcsClient(
            region_id=self._region,
            credential=credential,
            connect_timeout=CONNECT_TIMEOUT_S,
            timeout=READ_TIMEOUT_S,
        )


def host_of(product: str, region: str) -> str:
    """Return the host of a product for a region. Pure."""
    if product == "ess" and region in ESS_CENTRAL:
        return "ess.aliyuncs.com"
    if central := CENTRAL_IN.get((product, region)):
        return central
    if product == "dm" and region not in MAIL_REGIONS:
        in_china = region.startswith("cn-") and region != "cn-hongkong"
        return "dm.aliyuncs.com" if in_china else "dm.ap-southeast-1.aliyuncs.com"
    return CENTRAL.get(product, f"{HOSTS.get(product, product)}.{region}.aliyuncs.com")


def listed(answer: dict[str, Any], *keys: str) -> list[dict[str, Any]]:
    """Return the list that an API wraps: ``listed(answer, "Images", "Image")``; empty where it is missing."""
    inner: Any = answer
    for key in keys:
        inner = (inner or {}).get(key)
    return list(inner or ())


def expects_a_number(group: Mapping[str, Any]) -> bool:
    """Return whether a group of DescribeScalingGroups has an expected number of instances."""
    return bool(group.get("EnableDesiredCapacity", group.get("DesiredCapacity") is not None))


def _said(permission: str, error: ServerException) -> str:
    """Return the cloud's message, or the missing permission."""
    code = str(error.error_code)
    if code in DENIED:
        return f"denied {permission}"
    return f"{permission.partition(':')[2]}: {code}: {error.message}"
