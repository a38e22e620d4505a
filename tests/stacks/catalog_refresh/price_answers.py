"""Answers of the price APIs, in the form that their documentation shows.

AWS: docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html, GetProducts.
Alibaba Cloud: www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeprice.
"""

import json
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import Any

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud

REGION = "us-east-1"
# (service, usage type) -> price in dollars, in the unit of the Price List.
LISTED = {
    ("AmazonEC2", "EBS:VolumeUsage.gp3"): "0.0800000000",
    ("AmazonEC2", "EBS:VolumeP-Throughput.gp3"): "40.9600000000",
    ("AmazonEC2", "EBS:SnapshotUsage"): "0.0500000000",
    ("AmazonEC2", "NatGateway-Hours"): "0.0450000000",
    ("AmazonEC2", "NatGateway-Bytes"): "0.0450000000",
    ("AmazonVPC", "USE1-PublicIPv4:InUseAddress"): "0.0050000000",
    ("AmazonVPC", "USE1-VpcEndpoint-Hours"): "0.0100000000",
    ("AmazonS3", "TimedStorage-ByteHrs"): "0.0230000000",
    ("AmazonEFS", "USE1-TimedStorage-ByteHrs"): "0.3000000000",
    ("AmazonCloudWatch", "USE1-DataProcessing-Bytes"): "0.5000000000",
    ("AWSDataTransfer", "USE1-DataTransfer-Out-Bytes"): "0.0900000000",
}
BESIDE_POOLS = {"t3.medium": "0.0416000000", "c7i.2xlarge": "0.3570000000"}
# Products that the same filters let through, and that are something else.
OTHERS = {
    ("AmazonEFS", "USE1-IATimedStorage-ByteHrs"): "0.0250000000",
    ("AmazonEC2", "EBS:VolumeP-IOPS.gp3"): "0.0050000000",
    ("AmazonEC2", "EBS:SnapshotUsageUnderBilling"): "0.0400000000",
    ("AmazonCloudWatch", "USE1-DataScanned-Bytes"): "0.0050000000",
    ("AWSDataTransfer", "USE1-USE2-AWS-Out-Bytes"): "0.0100000000",
}


def product(usage: str, amount: str, reservations: dict[str, Any] | None = None, **attributes: str) -> str:
    """Return one product of the Price List, with a more expensive second tier."""
    tiers = {
        "A.B.1": {"beginRange": "0", "endRange": "50000", "pricePerUnit": {"USD": amount}},
        "A.B.2": {"beginRange": "50000", "endRange": "Inf", "pricePerUnit": {"USD": "99"}},
    }
    terms = {"OnDemand": {"A.B": {"priceDimensions": tiers}}, "Reserved": reservations or {}}
    described = {"attributes": {"usagetype": usage, "regionCode": REGION, **attributes}}
    return json.dumps({"product": described, "terms": terms})


def reserved(offering: str, payment: str, years: str, amount: str) -> dict[str, Any]:
    """Return a reservation of an instance."""
    terms = {"OfferingClass": offering, "PurchaseOption": payment, "LeaseContractLength": years}
    return {"termAttributes": terms, "priceDimensions": {"A.B.1": {"pricePerUnit": {"USD": amount}}}}


RESERVED = {
    "A": reserved("standard", "No Upfront", "1yr", "0.6000000000"),
    "B": reserved("standard", "No Upfront", "3yr", "0.4000000000"),
    "C": reserved("standard", "All Upfront", "1yr", "0.1000000000"),
    "D": reserved("convertible", "No Upfront", "3yr", "0.2000000000"),
}


def get_products(
    instances: dict[str, str] | None = None, free: Collection[str] = (), **changes: str
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the Price List by the catalog, with some instances at another price or, at "", not listed.

    Args:
        free: instances whose year costs nothing.
    """
    priced = [kind for kind in catalog.load().of_cloud(Cloud.AWS) if kind.price is not None]
    known = {kind.name: str(kind.price.amount_per_hour) for kind in priced}
    known |= BESIDE_POOLS | (instances or {})

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        filters = {filter_["Field"]: filter_["Value"] for filter_ in asked["Filters"]}
        found = [*_matching(asked["ServiceCode"], filters, known, changes)]
        for_free = {*free} & {filters.get("instanceType")}
        return {"PriceList": [text.replace("0.6000000000", "0") if for_free else text for text in found]}

    return answer


def _matching(
    service: str, filters: dict[str, str], instances: dict[str, str], changes: dict[str, str]
) -> Iterator[str]:
    name = filters.get("instanceType")
    if name is not None:
        if instances.get(name):
            yield product(f"BoxUsage:{name}", instances[name], RESERVED, marketoption="OnDemand")
            yield product(f"BoxUsage:{name}", "0.001", marketoption="CapacityBlock")
        return
    for (of, usage), amount in {**LISTED, **OTHERS}.items():
        if of == service:
            yield product(usage, changes.get(usage, amount))


def spot_history(**prices: str) -> dict[str, Any]:
    """Return a price of each type in one zone since long ago."""
    where = {"AvailabilityZone": "us-east-1a", "Timestamp": datetime(2020, 1, 1, tzinfo=UTC)}
    named = {name.replace("_", "."): amount for name, amount in prices.items()}
    rows = [{"InstanceType": name, "SpotPrice": amount, **where} for name, amount in named.items()]
    return {"SpotPriceHistory": rows}


def describe_price(instance: float = 12.5, disk: float = 1.5, currency: str = "CNY"):
    """Return Alibaba Cloud's answer: an instance with its included system disk, or a disk alone."""
    parts = [
        {"Resource": "instanceType", "OriginalPrice": instance, "TradePrice": instance / 2},
        {"Resource": "systemDisk", "OriginalPrice": 0.07, "TradePrice": 0.07},
    ]
    prices: dict[str, dict[str, Any]] = {
        "disk": {"OriginalPrice": disk, "TradePrice": disk / 2},
        "instance": {"OriginalPrice": instance + 0.07, "DetailInfos": {"DetailInfo": parts}},
    }
    return lambda asked: {"PriceInfo": {"Price": prices[asked["ResourceType"]] | {"Currency": currency}}}
