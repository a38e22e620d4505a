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
from gpu_fleet_stacks.catalog.prices import load
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
# The reservations of prices.toml.
RESERVED = {"OfferingClass": "standard", "PurchaseOption": "No Upfront"}
YEARS = {"1yr": "one_year", "3yr": "three_years"}
MIB_PER_GIB = 1024

Say = Callable[[str], None]


@dataclass(frozen=True)
class PriceListItem:
    """Name of an item of prices.toml in the Price List.

    Attributes:
        filters: attribute -> value.
        usage: the usage type, without the region's prefix.
        units: number of our units in one of the Price List's.
        place: attribute that names the region.
    """

    service: str
    filters: Mapping[str, str]
    usage: str
    units: int = 1
    place: str = "regionCode"


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
EGRESS = PriceListItem(
    "AWSDataTransfer", {"transferType": "AWS Outbound"}, "DataTransfer-Out-Bytes", place="fromRegionCode"
)


def ask(
    region: str, instances: Mapping[str, str], today: datetime.date, say: Say, aws: Aws | None = None
) -> ListedPrices:
    """Return every price of AWS.

    Args:
        region: region of spot prices, and of the prices of everything but instances.
        instances: type -> the region of its price.
        aws: makes the calls; by default with the credentials of the environment.

    Raises CannotCheckError if a call was denied or not answered.
    """
    prices = aws or Aws(clients_in(PRICE_LIST_REGION))
    on_demand, reserved = _instances(prices, region, instances, say)
    free = {key for key, amount in reserved.items() if amount <= 0}
    reserved = {key: amount for key, amount in reserved.items() if key not in free}
    others: dict[str, ListPrice] = {}
    unlisted = [f"{name} in {where}" for name, where in instances.items() if (name, where) not in on_demand]
    unlisted += [
        f"{name}, {term.replace('_', ' ')}, in {region}"
        for term, name in sorted((free | _reserved_before(region)) - reserved.keys())
    ]
    for what, question in QUESTIONS.items():
        say(what)
        amount = _price(_products(prices, question, region), question)
        if amount is None:
            unlisted.append(what)
        else:
            others[what] = ListPrice(amount, CURRENCY, SOURCE)
    egress = _egress(_products(prices, EGRESS, region))
    unlisted += [] if egress else ["egress"]
    say("spot prices")
    names = [kind.name for kind in catalog.load().of_cloud(Cloud.AWS)]
    spot = _spot(aws or Aws(clients_in(region)), names, today)
    return ListedPrices(
        today,
        on_demand,
        others,
        spot,
        tuple(unlisted),
        f"{SPOT_SOURCE} of {region}",
        source=SOURCE,
        region=region,
        egress=egress,
        reserved=reserved,
    )


def _instances(
    prices: Aws, region: str, instances: Mapping[str, str], say: Say
) -> tuple[dict[tuple[str, str], ListPrice], dict[tuple[str, str], Decimal]]:
    """Return each type's price on demand, and in one region its reservations'."""
    on_demand: dict[tuple[str, str], ListPrice] = {}
    reserved: dict[tuple[str, str], Decimal] = {}
    for name, where in instances.items():
        say(name)
        question = PriceListItem("AmazonEC2", {**INSTANCE, "instanceType": name}, f"BoxUsage:{name}")
        products = _products(prices, question, where)
        if where == region:
            reserved |= {(term, name): price for each in products for term, price in _reserved(each)}
        amount = _price(products, question)
        if amount is not None:
            on_demand[name, where] = ListPrice(amount, CURRENCY, SOURCE)
    return on_demand, reserved


def _reserved_before(region: str) -> set[tuple[str, str]]:
    """Return the reservations of a region that have a price now."""
    known = load(Cloud.AWS).commitments
    return {(term, name) for where, term, name in known if where == region and term in YEARS.values()}


def _products(aws: Aws, question: PriceListItem, region: str) -> list[dict[str, Any]]:
    """Return the products of an item."""
    filters = {**question.filters, question.place: region}
    wanted = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in filters.items()]
    listed = (
        json.loads(text)
        for text in aws.pages(
            "pricing", "get_products", "PriceList", ServiceCode=question.service, Filters=wanted
        )
    )
    return [product for product in listed if _is(product, question.usage)]


def _price(products: Iterable[dict[str, Any]], question: PriceListItem) -> Decimal | None:
    """Return the first tier's price of the only product; None where there is none, or several."""
    amounts = {amount for each in products for start, amount in _tiers(each) if start == 0}
    return amounts.pop() / question.units if len(amounts) == 1 else None


def _egress(products: Iterable[dict[str, Any]]) -> dict[int, Decimal]:
    """Return the tiers of the only product; none where there are several, or the first GB has no price."""
    tiers = [dict(_tiers(each)) for each in products]
    return tiers[0] if len(tiers) == 1 and 0 in tiers[0] else {}


def _is(product: dict[str, Any], usage: str) -> bool:
    """Return whether the usage type matches; most regions add a prefix: ``EUC1-NatGateway-Hours``."""
    attributes = product["product"]["attributes"]
    ours = re.search(rf"(^|-){re.escape(usage)}$", attributes.get("usagetype", "")) is not None
    # a capacity block of the same type is another product
    return ours and attributes.get("marketoption", "OnDemand") == "OnDemand"


def _tiers(product: dict[str, Any]) -> Iterator[tuple[int, Decimal]]:
    """Yield the on-demand prices of a unit, each with the units a month from which on it holds."""
    for offer in product["terms"].get("OnDemand", {}).values():
        for dimension in offer["priceDimensions"].values():
            amount = Decimal(dimension["pricePerUnit"].get(CURRENCY, "0"))
            if amount > 0:
                yield int(dimension.get("beginRange", FIRST_TIER)), amount


def _reserved(product: dict[str, Any]) -> Iterator[tuple[str, Decimal]]:
    """Yield the price of an hour of each reservation without upfront payment, with its key in prices.toml."""
    for offer in product["terms"].get("Reserved", {}).values():
        attributes = offer["termAttributes"]
        term = YEARS.get(attributes.get("LeaseContractLength", ""))
        if term and attributes.items() >= RESERVED.items():
            rates = (rate["pricePerUnit"].get(CURRENCY, "0") for rate in offer["priceDimensions"].values())
            yield term, max(map(Decimal, rates), default=Decimal(0))


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
