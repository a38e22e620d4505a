"""Prices of Alibaba Cloud: DescribePrice of ECS, for instances and disks.

www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeprice. Other products have no
read call for prices without an order, so their prices stay unchanged.
"""

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH
from gpu_fleet_stacks.catalog_refresh.listed import ListedPrices, ListPrice
from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.clients.errors import CannotCheckError

SOURCE = "ECS DescribePrice, pay-as-you-go before discount"
# A price is per disk, and rounded: on a large disk the rounding is small.
DISK_GIB = 1000
# DescribePrice's name of the instance among the parts of a price.
INSTANCE = "instanceType"
CONTROLLER = "ecs.c7.large"  # type of a queue's controller (stacks/gpu_fleet_stacks/alicloud/queue.py)
# Types that no zone of a region sells, or that are sold to invited accounts only.
NOT_SOLD = ("InvalidInstanceType", "InvalidResourceType", "NotSupport", "PricePlanResultNotFound")

Say = Callable[[str], None]


def ask(
    region: str, instances: Mapping[str, str], today: datetime.date, say: Say, cloud: Alicloud | None = None
) -> ListedPrices:
    """Return every price that Alibaba Cloud's API publishes.

    Args:
        instances: type -> the region of its price.
        cloud: makes the calls; by default with the credentials of the environment.

    Raises CannotCheckError if a call was denied or not answered.
    """
    asked = cloud or Alicloud(region)
    prices: dict[tuple[str, str], ListPrice] = {}
    others: dict[str, ListPrice] = {}
    unlisted = []
    for name, where in instances.items():
        say(name)
        price = _instance(asked, where, name)
        if price is None:
            unlisted.append(f"{name} in {where}")
        else:
            prices[name, where] = price
    say(CONTROLLER)
    controller = _instance(asked, region, CONTROLLER)
    if controller is None:
        unlisted.append("queue_controller")
    else:
        others["queue_controller"] = controller
    say("disk")
    disk = {"DataDisk.1.Category": "cloud_essd", "DataDisk.1.PerformanceLevel": "PL1"}
    whole = _price(asked, region, ResourceType="disk", **disk, **{"DataDisk.1.Size": str(DISK_GIB)})
    if whole is None:
        unlisted.append("disk")
    else:
        hour = _listed(whole, whole)
        month = hour.amount * HOURS_PER_MONTH / DISK_GIB
        others["disk"] = ListPrice(month, hour.currency, f"{SOURCE}, {HOURS_PER_MONTH} hours")
    return ListedPrices(today, prices, others, {}, tuple(unlisted))


def _price(cloud: Alicloud, region: str, **asked: str) -> dict[str, Any] | None:
    """Return the hourly price with its parts; None where the item is not sold there."""
    try:
        answer = cloud.ask("ecs", "DescribePrice", RegionId=region, PriceUnit="Hour", Period="1", **asked)
    except CannotCheckError as error:
        if any(reason in str(error) for reason in NOT_SOLD):
            return None
        raise
    price: dict[str, Any] = answer["PriceInfo"]["Price"]
    return price


def _instance(cloud: Alicloud, region: str, name: str) -> ListPrice | None:
    """Return the hourly price of a type; None where it is not sold."""
    return _part(_price(cloud, region, ResourceType="instance", InstanceType=name), INSTANCE)


def _part(price: dict[str, Any] | None, resource: str) -> ListPrice | None:
    """Return the price of one part: DescribePrice adds a system disk to every instance."""
    parts = [] if price is None else listed(price, "DetailInfos", "DetailInfo")
    ours = next((part for part in parts if part.get("Resource") == resource), None)
    return None if price is None or ours is None else _listed(ours, price)


def _listed(part: dict[str, Any], price: dict[str, Any]) -> ListPrice:
    """Return the price before any discount of the calling account."""
    return ListPrice(Decimal(str(part["OriginalPrice"])), price["Currency"], SOURCE)
