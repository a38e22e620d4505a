"""Connection of a sweep to Alibaba Cloud, from a policy and environment variables; spot prices."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache, partial
from typing import Any

from gpu_fleet_image.core import oss
from gpu_fleet_image.core.alicloud_credentials import KEY_ID, Credentials
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import LEDGER_URI, SweepCloud
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.model import Instance
from gpu_fleet_image.core.notify.notifier import Notifier, Reach, roster_in
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.providers.alicloud.instances import Instances
from gpu_fleet_image.providers.alicloud.metrics import Heartbeats
from gpu_fleet_image.providers.alicloud.notify import Mail, NoticesAlarm
from gpu_fleet_image.providers.alicloud.orphaned_resources import OrphanedResources
from gpu_fleet_image.providers.alicloud.oss import OssStore, users_key
from gpu_fleet_image.providers.alicloud.session import ENDPOINT, Clients, Product, clients

MAX_PAGES = 100  # of one type; a cloud that returns offsets without end is not believed


def spot_prices(ecs: Product, calls: Calls, currency: str, types: Sequence[str]) -> Mapping[str, Decimal]:
    """Return instance type -> price of an hour in the region's most expensive zone, if there is one.

    Args:
        calls: makes the calls, one a type at least.
        currency: of the policy; prices in another one are left out.

    Raises:
        CloudError: the prices could not be read.
    """
    prices = {}
    for name in types:
        newest: dict[str, tuple[str, Decimal]] = {}  # zone -> (when, price); times are ISO 8601 in UTC
        for entry in _history(ecs, calls, currency, name):
            quote = entry["Timestamp"], Decimal(str(entry["SpotPrice"]))
            newest[entry["ZoneId"]] = max(newest.get(entry["ZoneId"], quote), quote)
        if newest:
            prices[name] = max(price for _, price in newest.values())
    return prices


def _history(ecs: Product, calls: Calls, currency: str, name: str) -> Iterator[dict[str, Any]]:
    offset = 0
    for _ in range(MAX_PAGES):
        page = calls.read(
            ecs.action("DescribeSpotPriceHistory"),
            InstanceType=name,
            NetworkType="vpc",
            OSType="linux",
            Offset=offset,
        )
        if page.get("Currency") == currency:
            yield from page["SpotPrices"]["SpotPriceType"]
        following = int(page.get("NextOffset") or 0)
        if following <= offset:
            return
        offset = following


ACCOUNT_ID = "GPU_FLEET_ACCOUNT_ID"


def connect(
    policy: Policy, calls: Calls, environ: Mapping[str, str], made: Clients | None = None
) -> SweepCloud:
    """Return a connection to the stack's cloud.

    Raises ConfigurationError if a variable is malformed, or there are no credentials.
    """
    own = made or clients(policy.region, credentials(environ), environ.get(ENDPOINT, ""))
    ledger = environ.get(LEDGER_URI)
    store = None
    if ledger:
        s3 = own.s3 or oss.bucket_client(policy.region, credentials(environ))
        store = OssStore(s3, calls, ledger)
    reach = _reach(own, calls, store) if policy.notify_users and store else None
    return SweepCloud(
        calls=calls,
        instances=Instances(own, calls, policy.stack),
        heartbeats=Heartbeats(own.cms, calls, policy.stack, _account(own, calls, environ)),
        orphans=OrphanedResources(own, calls, policy.stack),
        notifier=Notifier(NoticesAlarm(own.cms, calls, policy.stack), reach),
        store=store,
        spot_prices=partial(spot_prices, own.ecs, calls, policy.currency),
    )


def _reach(own: Clients, calls: Calls, store: Store) -> Reach:
    """Return the ways to reach users.

    Here an agent writes its instance's users to the records, not to a tag.
    """

    def users(instance: Instance) -> list[str]:
        stored = store.newest(users_key(instance.pool, instance.id))
        words = stored.content.get("users") if stored else None
        return words if isinstance(words, list) else []

    def secret(name: str) -> str:
        return str(calls.read(own.kms.action("GetSecretValue"), SecretName=name)["SecretData"])

    return Reach(partial(roster_in, store), users, Mail(own.dm, calls).send, secret)


def instances(region: str, calls: Calls, stack: str = "") -> Instances:
    """Return the instances of a stack.

    Without a stack those of the region, for a user who names one by id.
    """
    keys = credentials(os.environ)
    return Instances(clients(region, keys, os.environ.get(ENDPOINT, "")), calls, stack)


def store(region: str, calls: Calls, uri: str) -> OssStore:
    """Return a stack's records, as on AWS; raises CloudError, too."""
    return OssStore(bucket_client(region), calls, uri)


def bucket_client(region: str) -> Any:
    """Return boto3's S3 client for OSS."""
    return oss.bucket_client(region, credentials(os.environ))


def credentials(environ: Mapping[str, str]) -> Credentials:
    """Return the credentials of the environment, else of the instance that this runs on."""
    return Credentials(environ, None if environ.get(KEY_ID) else Metadata("alicloud"))


def _account(own: Clients, calls: Calls, environ: Mapping[str, str]) -> Callable[[], str]:
    """Return a function that gives the account's id: the stack sets it for its function.

    Else STS is asked once.
    """

    @cache
    def account() -> str:
        noted = environ.get(ACCOUNT_ID)
        return noted or str(calls.read(own.sts.action("GetCallerIdentity"))["AccountId"])

    return account


def caller(region: str, calls: Calls) -> tuple[str, str]:
    """Return the caller as on AWS: a RAM user's name, else the name of a role's session.

    Raises CloudError.
    """
    own = clients(region, credentials(os.environ), os.environ.get(ENDPOINT, ""))
    identity = calls.read(own.sts.action("GetCallerIdentity"))
    kind, _, rest = str(identity["Arn"]).rpartition(":")[2].partition("/")
    return ("users", rest) if kind == "user" else ("sessions", rest.replace("/", ":"))


def account_id(region: str, calls: Calls) -> str:
    """Return the account of the credentials. Raises CloudError."""
    own = clients(region, credentials(os.environ), os.environ.get(ENDPOINT, ""))
    return _account(own, calls, os.environ)()
