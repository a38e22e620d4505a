"""From a policy and environment variables to Alibaba Cloud as a sweep sees it."""

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from image.instance import oss
from image.instance.alicloud_credentials import KEY_ID, Credentials
from image.instance.metadata import Metadata
from image.reaper.alicloud.leftovers import Leftovers
from image.reaper.alicloud.machines import Machines
from image.reaper.alicloud.metrics import Heartbeats
from image.reaper.alicloud.notify import Alarm
from image.reaper.alicloud.oss import OssStore
from image.reaper.alicloud.session import ENDPOINT, Clients, clients
from image.reaper.alicloud.spot import spot_prices
from image.reaper.calls import Calls
from image.reaper.policy import Policy
from image.reaper.sweep.cloud import Cloud
from image.reaper.sweep.environment import LEDGER_URI
from image.reaper.sweep.notify import Notifier

ACCOUNT_ID = "GPU_FLEET_ACCOUNT_ID"


def connect(policy: Policy, calls: Calls, environ: Mapping[str, str], made: Clients | None = None) -> Cloud:
    """The stack's cloud.

    Args:
        policy: of the stack.
        calls: makes every call.
        environ: where credentials, ledger and account are named.
        made: clients to use instead of new ones.

    Raises:
        ConfigurationError: a variable is malformed, or there are no credentials.
    """
    own = made or clients(policy.region, credentials(environ), environ.get(ENDPOINT, ""))
    ledger = environ.get(LEDGER_URI)
    store = None
    if ledger:
        s3 = own.s3 or oss.bucket_client(policy.region, credentials(environ))
        store = OssStore(s3, calls, ledger)
    return Cloud(
        calls=calls,
        machines=Machines(own, calls, policy.stack),
        heartbeats=Heartbeats(own.cms, calls, policy.stack, _account(own, calls, environ)),
        leftovers=Leftovers(own, calls, policy.stack),
        notifier=Notifier(Alarm(own.cms, calls, policy.stack)),
        store=store,
        spot_prices=partial(spot_prices, own.ecs, calls, policy.currency),
    )


def machines(region: str, calls: Calls, stack: str = "") -> Machines:
    """The machines of a stack; without one those of a region, for somebody who asks for one by its id."""
    found = credentials(os.environ)
    return Machines(clients(region, found, os.environ.get(ENDPOINT, "")), calls, stack)


def store(region: str, calls: Calls, uri: str) -> OssStore:
    """As on AWS; raises CloudError, too."""
    return OssStore(bucket_client(region), calls, uri)


def bucket_client(region: str) -> Any:
    """boto3's S3 client for OSS."""
    return oss.bucket_client(region, credentials(os.environ))


def credentials(environ: Mapping[str, str]) -> Credentials:
    """Of the environment, else of the machine that this runs on."""
    return Credentials(environ, None if environ.get(KEY_ID) else Metadata("alicloud"))


def _account(own: Clients, calls: Calls, environ: Mapping[str, str]) -> Callable[[], str]:
    """The account's id: the stack tells its function; a person's keys are asked for theirs, once."""

    @cache
    def account() -> str:
        told = environ.get(ACCOUNT_ID)
        return told or str(calls.look(own.sts.action("GetCallerIdentity"))["AccountId"])

    return account


def account_id(region: str, calls: Calls) -> str:
    """The account of the credentials. Raises CloudError."""
    own = clients(region, credentials(os.environ), os.environ.get(ENDPOINT, ""))
    return _account(own, calls, os.environ)()
