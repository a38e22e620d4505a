"""What an hour of this instance costs, by the policy that its stack publishes in its bucket of records.

Each `up` writes that object anew. In instance.toml the price would be a part of the launch template, and
every refresh of the catalogue another version of it.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_fleet import instance_file
from gpu_fleet.errors import CheckpointError, ConfigError, LaunchError
from gpu_fleet.metadata import MetadataClient
from gpu_fleet.metrics.goodput import HourPrice
from gpu_fleet.storage.object_store import ObjectStore

POLICY = "policy.json"
SPOT, ON_DEMAND = "spot", "on_demand"  # as the policy names its tables
log = logging.getLogger(__name__)


def of_this_instance() -> HourPrice | None:
    """The instance with its disks at list price, on the spot market the most it may cost; None if unknown.

    A price that cannot be found stops no run: the log says why.
    """
    table = instance_file.table()
    uri = str(table.get("records_uri", ""))
    if not uri:
        return None
    try:
        content = ObjectStore(uri).get(POLICY)
        if content is None:
            raise CheckpointError(f"{uri}/{POLICY}: is missing")
        metadata = MetadataClient(str(table["cloud"]))
        kind = metadata.read(metadata.service.type_path)
        return listed(json.loads(content), str(table["pool"]), kind, spot=_is_spot(table, metadata))
    except (CheckpointError, ConfigError, LaunchError, LookupError, ValueError, TypeError) as error:
        log.warning("event=price-unknown error=%r", str(error))
        return None


def _is_spot(table: Mapping[str, Any], metadata: MetadataClient) -> bool:
    """In a spot pool some may be on demand; on AWS each instance knows, on Alibaba Cloud none does.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html: instance-life-cycle
    """
    spot = table.get("market") == "spot"
    return spot and not (table["cloud"] == "aws" and metadata.read("instance-life-cycle") == "on-demand")


def listed(policy: Mapping[str, Any], pool: str, kind: str, *, spot: bool) -> HourPrice | None:
    """The price of an instance type in the policy, its disks with it; raises LookupError or ValueError."""
    budget = policy["budget"]
    prices = budget["pools"][pool]
    amount = prices[SPOT if spot else ON_DEMAND][kind]
    if amount is None:  # no list has one: what the owner of the stack assumes, if anything
        amount = budget["assumed"].get(kind)
    if amount is None:
        return None
    return HourPrice(float(amount) + float(prices["disk_per_hour"]), str(policy["currency"]))


def of_all(hour_prices: Iterable[HourPrice | None]) -> HourPrice | None:
    """Of several instances together; None where one is unknown."""
    prices = list(hour_prices)
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None
    return HourPrice(sum(price.amount for price in known), known[0].currency)
