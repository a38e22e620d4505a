"""From a policy and environment variables to AWS as a sweep sees it: topic, spot prices and all the rest."""

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
    """Instance type -> an hour of it in the dearest zone of the region, USD; types without one left out.

    Raises:
        CloudError: the prices could not be read.
    """
    now = datetime.now(UTC)
    arguments: dict[str, Any] = {
        "InstanceTypes": list(types),
        "ProductDescriptions": [PRODUCT],
        # with both at once the API returns the prices in force then (API DescribeSpotPriceHistory)
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
    """The stack's cloud.

    Args:
        calls: makes every call.
        environ: where ledger and topic are named.
        made: clients to use instead of new ones.

    Raises:
        ConfigurationError: a variable is malformed.
    """
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
    """How users are reached; what few sweeps need is asked for when it is needed."""

    def mail(sender: str, address: str, subject: str, message: str) -> None:
        Mail(session.client("sesv2", region), calls).send(sender, address, subject, message)

    def secret(name: str) -> str:
        answer = calls.read(session.client("secretsmanager", region).get_secret_value, SecretId=name)
        return str(answer.get("SecretString", ""))

    return Reach(partial(roster_in, store), users, mail, secret)


def users(instance: Instance) -> list[str]:
    """Who was seen on an instance, by the tag that its agent sets on itself."""
    return instance.tags.get(TAG_USERS, "").split()


def instances(region: str, calls: Calls, stack: str = "") -> Instances:
    """The instances of a stack; without one those of a region, for a user who asks for one by its id."""
    return Instances(clients(region), calls, stack)


def store(region: str, calls: Calls, uri: str) -> Store:
    """A stack's records, for a user with credentials of their own. Raises ConfigurationError."""
    return Store(bucket_client(region), calls, uri)


def bucket_client(region: str) -> Any:
    """boto3's S3 client."""
    return clients(region).s3


def caller(region: str, calls: Calls) -> tuple[str, str]:
    """(``users`` or ``sessions``, what AWS calls the credentials in a policy). Raises CloudError.

    A user is ``${aws:username}``, any role's session ``${aws:userid}``
    (docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html).
    """
    identity = calls.read(session.client("sts", region).get_caller_identity)
    kind, _, rest = str(identity["Arn"]).split(":", 5)[5].partition("/")
    return ("users", rest.rpartition("/")[2]) if kind == "user" else ("sessions", str(identity["UserId"]))


def account_id(region: str, calls: Calls) -> str:
    """The account of the credentials. Raises CloudError."""
    return str(calls.read(session.client("sts", region).get_caller_identity)["Account"])
