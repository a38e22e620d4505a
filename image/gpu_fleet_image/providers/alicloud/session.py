"""The official SDK's client for sweep and agent: small, and patient with throttling.

Only its core is used, whose one client signs the calls of every RPC product: half a megabyte in an archive.
One package for each product would add 30 MB of generated models, aiohttp, and as much memory as an agent may
use.
"""

import json
import logging
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from gpu_fleet_image.core.alicloud_credentials import AccessKey, Credentials
from gpu_fleet_image.core.reaper_errors import AnswerError

# Only the SDK's signer with RSA keys needs `cryptography`: compiled for each platform, 9 MB of memory. Keys
# of roles sign with HMAC. An empty module replaces that signer, so a function's archive stays pure Python.
_RSA = "aliyunsdkcore.auth.algorithm.sha_hmac256"
sys.modules.setdefault(_RSA, ModuleType(_RSA))

from aliyunsdkcore.acs_exception.exceptions import (  # type: ignore[import-untyped]  # noqa: E402 - see above
    ClientException,
    ServerException,
)
from aliyunsdkcore.auth import credentials as sdk  # type: ignore[import-untyped]  # noqa: E402 - see above
from aliyunsdkcore.client import AcsClient  # type: ignore[import-untyped]  # noqa: E402 - see above
from aliyunsdkcore.request import CommonRequest  # type: ignore[import-untyped]  # noqa: E402 - see above

ENDPOINT = "GPU_FLEET_ALICLOUD_ENDPOINT"  # environment: endpoint of every product, in tests
ATTEMPTS = 8
LONGEST_WAIT_S = 8.0
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 30
SERVER_ERROR = 500
ENDS = frozenset({"DeleteInstances", "StopInstances"})
# product -> (API version, endpoint of a region)
PRODUCTS = {
    "Ecs": ("2014-05-26", "ecs.{region}.aliyuncs.com"),
    "Ess": ("2022-02-22", "ess.{region}.aliyuncs.com"),
    "Cms": ("2019-01-01", "metrics.{region}.aliyuncs.com"),
    "Vpc": ("2016-04-28", "vpc.{region}.aliyuncs.com"),
    "Kms": ("2016-01-20", "kms.{region}.aliyuncs.com"),
    "Dm": ("2015-11-23", "dm.{region}.aliyuncs.com"),
    "Nas": ("2017-06-26", "nas.{region}.aliyuncs.com"),
    "Privatelink": ("2020-04-15", "privatelink.{region}.aliyuncs.com"),
    "Sts": ("2015-04-01", "sts.{region}.aliyuncs.com"),
    "Tag": ("2018-08-28", "tag.{region}.aliyuncs.com"),
    # one endpoint for all regions (www.alibabacloud.com/help/en/ram/developer-reference, "Endpoints")
    "Ims": ("2019-08-15", "ims.aliyuncs.com"),
    "Quotas": ("2020-05-10", "quotas.aliyuncs.com"),
    "Ram": ("2015-05-01", "ram.aliyuncs.com"),
    "Sls": ("2019-10-23", "sls.aliyuncs.com"),
}
PERMISSIONS = {"ims": "ram", "sls": "log"}  # names of products in policies, if they differ
NO_ANSWER = "ServiceUnavailable"
# Regions that older products serve from one endpoint, from the SDK's packages for each product.
CENTRAL = {
    "ecs-cn-hangzhou.aliyuncs.com": ("Ecs", {"cn-hangzhou"}),
    "vpc.aliyuncs.com": ("Vpc", {"cn-hangzhou"}),
    "ess.aliyuncs.com": (
        "Ess",
        {"cn-beijing", "cn-hangzhou", "cn-nanjing", "cn-qingdao", "cn-shanghai", "cn-shenzhen", "cn-wuhan"}
        | {"ap-southeast-1", "cn-hongkong", "us-east-1", "us-west-1"},
    ),
}

# DirectMail is in few regions and serves all (its page "Endpoints", 2026-09): one in China serves China's.
MAIL_REGIONS = {"ap-southeast-1", "eu-central-1", "us-east-1"}

# Endpoints inside a VPC, which needs no internet access: the lists of ECS and Auto Scaling (January 2026),
# and for CloudMonitor the names of its newer and its older list (November 2024).
INSIDE = {
    "Ecs": ("ecs-vpc.{region}.aliyuncs.com",),
    "Ess": ("ess-vpc.{region}.aliyuncs.com",),
    "Cms": ("metrics-vpc.{region}.aliyuncs.com", "cms-vpc.{region}.aliyuncs.com"),
    "Sts": ("sts-vpc.{region}.aliyuncs.com",),
}

Answer = dict[str, Any]
# The SDK logs every refusal with the text that was signed; `Calls` reports it in one line.
logging.getLogger("aliyunsdkcore").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Clients:
    """The clients of one region.

    Attributes:
        s3: boto3's client for OSS, or a function that makes one when it is first needed.
    """

    ecs: "Product"
    ess: "Product"
    cms: "Product"
    vpc: "Product"
    kms: "Product"
    dm: "Product"
    sts: "Product"
    s3: Any = None


class Product:
    """Client of one product's RPC API.

    Args:
        name: a key of ``PRODUCTS``.
        region: say ``cn-wulanchabu``.
        credentials: of a user, a function or this instance.
        endpoint: ``http://HOST:PORT`` instead of the product's own.
        inside: this is an instance of the region, possibly without internet access.
        attempts: the most tries of a call that is throttled or not answered.
        wait: sleeps for this many seconds.
    """

    def __init__(
        self,
        name: str,
        region: str,
        credentials: Credentials,
        *,
        endpoint: str = "",
        inside: bool = False,
        attempts: int = ATTEMPTS,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._version = PRODUCTS[name][0]
        self._name, self._region = name, region
        self._protocol, _, self._host = endpoint.rpartition("://")
        self._host = self._host or (host_inside(name, region) if inside else host_of(name, region))
        self._credentials = credentials
        self._attempts, self._wait = attempts, wait
        self._client: tuple[Any, Any] | None = None

    def action(self, name: str) -> Callable[..., Answer]:
        """Return the function that makes one kind of call; it raises ``AnswerError``."""

        def call(**parameters: Any) -> Answer:
            return self._call(name, parameters)

        call.__name__ = name
        service = self._name.lower()
        call.permission = f"{PERMISSIONS.get(service, service)}:{name}"  # type: ignore[attr-defined] # `Calls` reads it
        return call

    def _call(self, action: str, parameters: Mapping[str, Any]) -> Answer:
        for attempt in range(1, self._attempts + 1):
            try:
                answer = self._ask(action, parameters)
            except AnswerError as error:
                if attempt == self._attempts or not _may_ask_again(action, error.code):
                    raise AnswerError(error.code, error.message, attempt) from error
                # full jitter: many instances that were refused at once must not retry at once
                self._wait(random.uniform(0, min(LONGEST_WAIT_S, 0.2 * 2**attempt)))
            else:
                return answer | {"ResponseMetadata": {"RetryAttempts": attempt - 1}}
        raise AssertionError("unreachable")

    def _ask(self, action: str, parameters: Mapping[str, Any]) -> Answer:
        request = CommonRequest(product=self._name, version=self._version, action_name=action)
        request.set_domain(self._host)
        request.set_method("POST")
        request.set_protocol_type(self._protocol or "https")
        for key, value in flat({"RegionId": self._region, **parameters}):
            request.add_body_params(key, value)
        try:
            body = self._connected().do_action_with_exception(request)
            answer = json.loads(body)
        except ServerException as error:
            code = str(error.error_code) if error.http_status < SERVER_ERROR else "InternalError"
            raise AnswerError(code, str(error.message)) from error
        except ClientException as error:
            # not the error's own text, which holds the key's id and the signature
            raise AnswerError(NO_ANSWER, f"{self._host} gave no answer ({error.error_code})") from error
        except ValueError as error:
            raise AnswerError(NO_ANSWER, f"{self._host} gave no JSON: {error}") from error
        if self._name == "Cms" and str(answer.get("Code", "200")) != "200":  # it refuses with HTTP 200
            raise AnswerError(str(answer["Code"]), str(answer.get("Message", "")))
        return dict(answer)

    def _connected(self) -> Any:
        """Return the SDK's client; a new one if the credentials changed."""
        keys = self._credentials.current()
        if self._client is None or self._client[0] != keys:
            made = AcsClient(
                region_id=self._region,
                credential=_for_sdk(keys),
                auto_retry=False,  # it would sleep without a way to stop it
                connect_timeout=CONNECT_TIMEOUT_S,
                timeout=READ_TIMEOUT_S,
            )
            self._client = keys, made
        return self._client[1]


def host_of(product: str, region: str) -> str:
    """Return the endpoint of a product in a region. Pure."""
    for host, (name, regions) in CENTRAL.items():
        if name == product and region in regions:
            return host
    if product == "Dm" and region not in MAIL_REGIONS:
        in_china = region.startswith("cn-") and region != "cn-hongkong"
        return "dm.aliyuncs.com" if in_china else host_of(product, "ap-southeast-1")
    return PRODUCTS[product][1].format(region=region)


def host_inside(product: str, region: str, known: Callable[[str], bool] | None = None) -> str:
    """Return the endpoint of a product inside a VPC: the first name that DNS knows, else the public one."""
    known = known or _resolves
    names = (name.format(region=region) for name in INSIDE.get(product, ()))
    return next(filter(known, names), host_of(product, region))


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, 443)
    except OSError:
        return False
    return True


def _for_sdk(keys: AccessKey) -> Any:
    if keys.token:
        return sdk.StsTokenCredential(keys.key_id, keys.secret, keys.token)
    return sdk.AccessKeyCredential(keys.key_id, keys.secret)


def _may_ask_again(action: str, code: str) -> bool:
    """Return whether a call may be retried: a throttled one, or a read-only one after another failure.

    A stop or a termination is never retried: the instances' replies would be too old by then.
    """
    if action in ENDS:
        return False
    if code.startswith("Throttling"):
        return True
    return action.startswith("Describe") and code in {"InternalError", NO_ANSWER}


def flat(parameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield RPC parameters: lists as ``Name.1``, objects in them as ``Name.1.Key``. Pure."""
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield from flat({str(index): item for index, item in enumerate(value, 1)}, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield f"{prefix}{key}", str(value).lower()
        else:
            yield f"{prefix}{key}", str(value)


def clients(region: str, credentials: Credentials, endpoint: str = "", *, inside: bool = False) -> Clients:
    """Return the clients for a region.

    Args:
        region: say ``cn-wulanchabu``.
        credentials: of a user, a function or this instance.
        endpoint: of every product, in tests.
        inside: this is an instance of the region.
    """
    made = {
        known.name: Product(known.name.capitalize(), region, credentials, endpoint=endpoint, inside=inside)
        for known in fields(Clients)
        if known.name != "s3"
    }
    return Clients(**made)
