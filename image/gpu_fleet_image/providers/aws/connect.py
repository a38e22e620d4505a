"""Connection of a sweep to AWS, from a policy and environment variables; spot prices."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import LEDGER_URI, TOPIC_ARN, SweepCloud
from gpu_fleet_image.core.model import TAG_USERS, Instance
from gpu_fleet_image.core.notify.notifier import Notifier, Reach, roster_in
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.providers.aws import session
from gpu_fleet_image.providers.aws.instances import Instances
from gpu_fleet_image.providers.aws.metrics import Heartbeats
from gpu_fleet_image.providers.aws.notify import Mail, Topic
from gpu_fleet_image.providers.aws.orphaned_resources import OrphanedResources
from gpu_fleet_image.providers.aws.session import Clients, clients

PRODUCT = "Linux/UNIX"
CURRENCY = "USD"  # of every price of the API


def spot_prices(ec2: Any, calls: Calls, types: Sequence[str]) -> Mapping[str, Decimal]:
    """Return instance type -> price of an hour in the region's most expensive zone, USD, if there is one.

    Raises:
        CloudError: the prices could not be read.
    """
    now = datetime.now(UTC)
    arguments: dict[str, Any] = {
        "InstanceTypes": list(types),
        "ProductDescriptions": [PRODUCT],
        # with both equal the API returns the prices in force then (API DescribeSpotPriceHistory)
        "StartTime": now,
        "EndTime": now,
    }
    prices: dict[str, Decimal] = {}
    while True:
        page = calls.read(ec2.describe_spot_price_history, **arguments)
        for entry in page["SpotPriceHistory"]:
            price = Decimal(entry["SpotPrice"])
            prices[entry["InstanceType"]] = max(price, prices.get(entry["InstanceType"], price))
        if not page.get("NextToken"):
            return prices
        arguments["NextToken"] = page["NextToken"]


def connect(
    policy: Policy, calls: Calls, environ: Mapping[str, str], made: Clients | None = None
) -> SweepCloud:
    """Return a connection to the stack's cloud. Raises ConfigurationError if a variable is malformed."""
    aws = made or clients(policy.region)
    topic, ledger = environ.get(TOPIC_ARN), environ.get(LEDGER_URI)
    store = Store(aws.s3, calls, ledger) if ledger else None
    reach = _reach(policy.region, calls, store) if policy.notify_users and store else None
    return SweepCloud(
        calls=calls,
        instances=Instances(aws, calls, policy.stack),
        heartbeats=Heartbeats(aws.cloudwatch, calls, policy.metric_namespace),
        orphans=OrphanedResources(aws, calls, policy.stack),
        notifier=Notifier(Topic(aws.sns, calls, topic), reach) if topic else None,
        store=store,
        spot_prices=partial(spot_prices, aws.ec2, calls) if policy.currency == CURRENCY else None,
    )


def _reach(region: str, calls: Calls, store: Store) -> Reach:
    """Return the ways to reach users; clients that few sweeps need are made when they are needed."""

    def mail(sender: str, address: str, subject: str, message: str) -> None:
        Mail(session.client("sesv2", region), calls).send(sender, address, subject, message)

    def secret(name: str) -> str:
        answer = calls.read(session.client("secretsmanager", region).get_secret_value, SecretId=name)
        return str(answer.get("SecretString", ""))

    return Reach(partial(roster_in, store), users, mail, secret)


def users(instance: Instance) -> list[str]:
    """Return the users seen on an instance, from the tag that its agent sets."""
    return instance.tags.get(TAG_USERS, "").split()


def instances(region: str, calls: Calls, stack: str = "") -> Instances:
    """Return the instances of a stack.

    Without a stack those of the region, for a user who names one by id.
    """
    return Instances(clients(region), calls, stack)


def store(region: str, calls: Calls, uri: str) -> Store:
    """Return a stack's records, for a user with credentials of their own. Raises ConfigurationError."""
    return Store(bucket_client(region), calls, uri)


def bucket_client(region: str) -> Any:
    """Return boto3's S3 client."""
    return session.client("s3", region)


def caller(region: str, calls: Calls) -> tuple[str, str]:
    """Return (``users`` or ``sessions``, AWS's name of the credentials in a policy). Raises CloudError.

    A user is ``${aws:username}``; a session of any role is ``${aws:userid}``
    (docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html).
    """
    identity = calls.read(session.client("sts", region).get_caller_identity)
    kind, _, rest = str(identity["Arn"]).split(":", 5)[5].partition("/")
    return ("users", rest.rpartition("/")[2]) if kind == "user" else ("sessions", str(identity["UserId"]))


def account_id(region: str, calls: Calls) -> str:
    """Return the account of the credentials. Raises CloudError."""
    return str(calls.read(session.client("sts", region).get_caller_identity)["Account"])
