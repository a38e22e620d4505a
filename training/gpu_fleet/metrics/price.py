"""Hourly price of this instance, from the policy that each `up` writes to the bucket of records.

In instance.toml each refresh of the catalogue would make a new version of the launch template.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_fleet.core import instance_file
from gpu_fleet.core.errors import CheckpointError, ConfigError, LaunchError
from gpu_fleet.core.metadata import MetadataClient
from gpu_fleet.metrics.goodput import HourPrice
from gpu_fleet.storage.object_store import ObjectStore

POLICY = "policy.json"
SPOT, ON_DEMAND = "spot", "on_demand"  # names of tables in the policy
log = logging.getLogger(__name__)


def of_this_instance() -> HourPrice | None:
    """Return the list price with disks, for spot the highest; None if unknown: the log says why."""
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
    """Return whether this is a spot instance: on AWS a spot pool may hold others.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html: instance-life-cycle
    """
    spot = table.get("market") == "spot"
    return spot and not (table["cloud"] == "aws" and metadata.read("instance-life-cycle") == "on-demand")


def listed(policy: Mapping[str, Any], pool: str, kind: str, *, spot: bool) -> HourPrice | None:
    """Return the price of an instance type with its disks, or None; raises LookupError or ValueError."""
    budget = policy["budget"]
    prices = budget["pools"][pool]
    amount = prices[SPOT if spot else ON_DEMAND][kind]
    if amount is None:  # no price list has it: the owner of the stack may have assumed a price
        amount = budget["assumed"].get(kind)
    if amount is None:
        return None
    return HourPrice(float(amount) + float(prices["disk_per_hour"]), str(policy["currency"]))


def of_all(hour_prices: Iterable[HourPrice | None]) -> HourPrice | None:
    """Return the price of several instances together; None if one is unknown, or if there are none."""
    prices = list(hour_prices)
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None
    return HourPrice(sum(price.amount for price in known), known[0].currency)
