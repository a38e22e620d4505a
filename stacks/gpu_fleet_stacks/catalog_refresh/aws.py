"""Prices of AWS: the Price List API for list prices, EC2 for spot.

The filters are the Price List's own attributes: docs.aws.amazon.com/awsaccountbilling/latest/aboutv2, "Using
the AWS Price List Query API".
"""

import datetime
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter
from typing import Any

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog.instance_types import Cloud
from gpu_fleet_stacks.catalog_refresh.listed import ListedPrices, ListPrice, SpotSpan, share_of_time
from gpu_fleet_stacks.clients.aws import Aws, clients_in

# Few regions serve the Price List, for all regions: docs.aws.amazon.com/general/latest/gr/billing.html
PRICE_LIST_REGION = "us-east-1"
SOURCE = "AWS Price List API, GetProducts"
SPOT_DAYS, MEDIAN, P90 = 90, 0.5, 0.9  # EC2 keeps 90 days
SPOT_SOURCE = f"EC2 DescribeSpotPriceHistory, median and 90th percentile of {SPOT_DAYS} days, all zones"
CURRENCY = "USD"
INSTANCE = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
FIRST_TIER = "0"
MIB_PER_GIB = 1024

Say = Callable[[str], None]


@dataclass(frozen=True)
class PriceListItem:
    """Name of an item of prices.toml in the Price List.

    Attributes:
        filters: attribute -> value.
        usage: the usage type, without the region's prefix.
        units: number of our units in one of the Price List's.
    """

    service: str
    filters: Mapping[str, str]
    usage: str
    units: int = 1


QUESTIONS = {
    "disk": PriceListItem("AmazonEC2", {"volumeApiName": "gp3"}, "EBS:VolumeUsage.gp3"),
    # the list price is for a GiB/s
    "disk_throughput": PriceListItem(
        "AmazonEC2", {"volumeApiName": "gp3"}, "EBS:VolumeP-Throughput.gp3", MIB_PER_GIB
    ),
    "nat_gateway": PriceListItem("AmazonEC2", {"productFamily": "NAT Gateway"}, "NatGateway-Hours"),
    "nat_traffic": PriceListItem("AmazonEC2", {"productFamily": "NAT Gateway"}, "NatGateway-Bytes"),
    "public_address": PriceListItem(
        "AmazonVPC", {"group": "VPCPublicIPv4Address"}, "PublicIPv4:InUseAddress"
    ),
    "endpoint": PriceListItem("AmazonVPC", {"productFamily": "VpcEndpoint"}, "VpcEndpoint-Hours"),
    "bucket": PriceListItem("AmazonS3", {"volumeType": "Standard"}, "TimedStorage-ByteHrs"),
    "home": PriceListItem("AmazonEFS", {"productFamily": "Storage"}, "TimedStorage-ByteHrs"),
    "queue_controller": PriceListItem(
        "AmazonEC2", {**INSTANCE, "instanceType": "t3.medium"}, "BoxUsage:t3.medium"
    ),
    "image_builder": PriceListItem(
        "AmazonEC2", {**INSTANCE, "instanceType": "c7i.2xlarge"}, "BoxUsage:c7i.2xlarge"
    ),
    "image_snapshot": PriceListItem("AmazonEC2", {"productFamily": "Storage Snapshot"}, "EBS:SnapshotUsage"),
    "snapshot": PriceListItem("AmazonEC2", {"productFamily": "Storage Snapshot"}, "EBS:SnapshotUsage"),
    "log": PriceListItem("AmazonCloudWatch", {"productFamily": "Data Payload"}, "DataProcessing-Bytes"),
}


def ask(
    region: str, instances: Mapping[str, str], today: datetime.date, say: Say, aws: Aws | None = None
) -> ListedPrices:
    """Return every price of AWS.

    Args:
        region: region of spot prices, and of the prices of everything but instances.
        instances: type -> the region of its price.
        say: called with the name of the next query.
        aws: makes the calls; by default with the credentials of the environment.

    Raises:
        CannotCheckError: a call was denied or not answered.
    """
    prices = aws or Aws(clients_in(PRICE_LIST_REGION))
    on_demand: dict[tuple[str, str], ListPrice] = {}
    others: dict[str, ListPrice] = {}
    unlisted = []
    for name, where in instances.items():
        say(name)
        question = PriceListItem("AmazonEC2", {**INSTANCE, "instanceType": name}, f"BoxUsage:{name}")
        amount = _price(prices, question, where)
        if amount is None:
            unlisted.append(f"{name} in {where}")
        else:
            on_demand[name, where] = ListPrice(amount, CURRENCY, SOURCE)
    for what, question in QUESTIONS.items():
        say(what)
        amount = _price(prices, question, region)
        if amount is None:
            unlisted.append(what)
        else:
            others[what] = ListPrice(amount, CURRENCY, SOURCE)
    say("spot prices")
    names = [kind.name for kind in catalog.load().of_cloud(Cloud.AWS)]
    spot = _spot(aws or Aws(clients_in(region)), names, today)
    return ListedPrices(today, on_demand, others, spot, tuple(unlisted), f"{SPOT_SOURCE} of {region}")


def _price(aws: Aws, question: PriceListItem, region: str) -> Decimal | None:
    """Return the first tier's price of the only matching product; None where none or several match."""
    filters = {**question.filters, "regionCode": region}
    wanted = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in filters.items()]
    products = (
        json.loads(text)
        for text in aws.pages(
            "pricing", "get_products", "PriceList", ServiceCode=question.service, Filters=wanted
        )
    )
    amounts = {amount for product in products if _is(product, question.usage) for amount in _amounts(product)}
    return amounts.pop() / question.units if len(amounts) == 1 else None


def _is(product: dict[str, Any], usage: str) -> bool:
    """Return whether the usage type matches; most regions add a prefix: ``EUC1-NatGateway-Hours``."""
    attributes = product["product"]["attributes"]
    ours = re.search(rf"(^|-){re.escape(usage)}$", attributes.get("usagetype", "")) is not None
    # a capacity block of the same type is another product
    return ours and attributes.get("marketoption", "OnDemand") == "OnDemand"


def _amounts(product: dict[str, Any]) -> Iterator[Decimal]:
    for offer in product["terms"].get("OnDemand", {}).values():
        for dimension in offer["priceDimensions"].values():
            amount = Decimal(dimension["pricePerUnit"].get(CURRENCY, "0"))
            if dimension.get("beginRange", FIRST_TIER) == FIRST_TIER and amount > 0:
                yield amount


def _spot(aws: Aws, names: Iterable[str], today: datetime.date) -> dict[str, SpotSpan]:
    """Return median and 90th percentile over ``SPOT_DAYS`` of each type with spot prices in the region."""
    until = datetime.datetime.combine(today, datetime.time(), datetime.UTC)
    history = aws.pages(
        "ec2",
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=sorted(names),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=until - datetime.timedelta(days=SPOT_DAYS),
        EndTime=until,
    )
    return spans(history, until)


def spans(history: Iterable[Mapping[str, Any]], until: datetime.datetime) -> dict[str, SpotSpan]:
    """Return what each type cost in the days before ``until``. Pure.

    A price holds until the next price of its zone.
    """
    start = until - datetime.timedelta(days=SPOT_DAYS)
    turns: dict[tuple[str, str], list[tuple[datetime.datetime, Decimal]]] = defaultdict(list)
    for entry in history:
        moment = min(until, max(start, entry["Timestamp"]))  # an older first price holds from start
        turns[entry["InstanceType"], entry["AvailabilityZone"]].append((moment, Decimal(entry["SpotPrice"])))
    held: dict[str, list[tuple[Decimal, float]]] = defaultdict(list)
    for (name, _), moments in turns.items():
        moments.sort(key=itemgetter(0))
        ends = [moment for moment, _ in moments[1:]] + [until]
        held[name] += [
            (price, (end - began).total_seconds()) for (began, price), end in zip(moments, ends, strict=True)
        ]
    return {
        name: SpotSpan(share_of_time(pairs, MEDIAN), share_of_time(pairs, P90))
        for name, pairs in held.items()
        if sum(seconds for _, seconds in pairs) > 0
    }
