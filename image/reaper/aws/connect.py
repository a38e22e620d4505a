"""From a policy and environment variables to AWS as a sweep sees it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from image.reaper.aws.leftovers import Leftovers
from image.reaper.aws.machines import Machines
from image.reaper.aws.metrics import Heartbeats
from image.reaper.aws.session import Clients, clients, sts
from image.reaper.aws.spot import CURRENCY, spot_prices
from image.reaper.aws.topic import Topic
from image.reaper.calls import Calls
from image.reaper.policy import Policy
from image.reaper.store import Store
from image.reaper.sweep.cloud import Cloud
from image.reaper.sweep.environment import LEDGER_URI, TOPIC_ARN
from image.reaper.sweep.notify import Notifier


def connect(policy: Policy, calls: Calls, environ: Mapping[str, str], made: Clients | None = None) -> Cloud:
    """The stack's cloud.

    Args:
        policy: of the stack.
        calls: makes every call.
        environ: where ledger and topic are named.
        made: clients to use instead of new ones.

    Raises:
        ConfigurationError: a variable is malformed.
    """
    aws = made or clients(policy.region)
    topic, ledger = environ.get(TOPIC_ARN), environ.get(LEDGER_URI)
    return Cloud(
        calls=calls,
        machines=Machines(aws, calls, policy.stack),
        heartbeats=Heartbeats(aws.cloudwatch, calls, policy.metric_namespace),
        leftovers=Leftovers(aws.ec2, calls, policy.stack),
        notifier=Notifier(Topic(aws.sns, calls, topic)) if topic else None,
        store=Store(aws.s3, calls, ledger) if ledger else None,
        spot_prices=partial(spot_prices, aws.ec2, calls) if policy.currency == CURRENCY else None,
    )


def machines(region: str, calls: Calls, stack: str = "") -> Machines:
    """The machines of a stack; without one those of a region, for somebody who asks for one by its id."""
    return Machines(clients(region), calls, stack)


def store(region: str, calls: Calls, uri: str) -> Store:
    """A stack's records, for somebody with credentials of their own. Raises ConfigurationError."""
    return Store(bucket_client(region), calls, uri)


def bucket_client(region: str) -> Any:
    """boto3's S3 client."""
    return clients(region).s3


def account_id(region: str, calls: Calls) -> str:
    """The account of the credentials. Raises CloudError."""
    return str(calls.look(sts(region).get_caller_identity)["Account"])
