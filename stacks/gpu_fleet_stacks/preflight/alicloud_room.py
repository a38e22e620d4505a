"""Check that a zone of Alibaba Cloud sells what a pool requests: types, spot, reservations."""

import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.needs import end_unlike, reservation_key, reservation_subject
from gpu_fleet_stacks.settings import CapacityReservation, Grouping, Market, Pool, Stack

IN_STOCK = "WithStock"
# The last bracket of API DescribeSpotAdvice, InterruptRateDesc.
OFTEN_INTERRUPTED = "10-100%"
# Prefixes of the ids of the two kinds of private pools, and the call that lists each.
RESERVATIONS = {
    "eap-": ("DescribeElasticityAssurances", "ElasticityAssuranceSet", "ElasticityAssuranceItem"),
    "crp-": ("DescribeCapacityReservations", "CapacityReservationSet", "CapacityReservationItem"),
}


def room(stack: Stack, cloud: Alicloud) -> Iterator[Finding]:
    """Check every pool against its zones."""
    for pool in stack.pools:
        yield guarded(f"types of {pool.name}", partial(_offered, stack, cloud, pool))
        if pool.market is Market.SPOT:
            yield guarded(f"spot for {pool.name}", partial(_spot, stack, cloud, pool))
        for held in stack.reservations_of(pool):
            subject = reservation_subject(pool, held)
            yield guarded(subject, partial(_reservation, stack, cloud, pool, held))


def _offered(stack: Stack, cloud: Alicloud, pool: Pool) -> Finding:
    """Check that the types are sold and in stock right now: this cloud reports both."""
    subject, wanted = f"types of {pool.name}", stack.zones_of(pool)
    stock = _stock(stack, cloud, pool)
    full = [zone for zone in wanted if IN_STOCK in stock.get(zone, {}).values()]
    sold = [zone for zone in wanted if stock.get(zone)]
    says = "; ".join(f"{zone}: {_inventory(stock.get(zone, {}))}" for zone in wanted)
    if len(full) == len(wanted):
        return Finding(subject, Rating.FINE, says)
    elsewhere = sorted(zone for zone, types in stock.items() if IN_STOCK in types.values())
    remedy = f"in stock in {', '.join(elsewhere)}" if elsewhere else "in stock in no zone; name other types"
    hard = not sold or (pool.grouping is Grouping.PER_ZONE and len(sold) < len(wanted))
    return Finding(subject, Rating.PROBLEM if hard else Rating.NOTE, says, remedy)


def _stock(stack: Stack, cloud: Alicloud, pool: Pool) -> dict[str, dict[str, str]]:
    """Return zone -> type of the pool -> the cloud's name of its stock."""
    stock: dict[str, dict[str, str]] = {}
    for name in pool.types:
        answer = cloud.ask(
            "ecs",
            "DescribeAvailableResource",
            RegionId=stack.region,
            DestinationResource="InstanceType",
            InstanceChargeType="PostPaid",
            SpotStrategy="SpotAsPriceGo" if pool.market is Market.SPOT else "NoSpot",
            InstanceType=name,
        )
        for zone in listed(answer, "AvailableZones", "AvailableZone"):
            for resource in listed(zone, "AvailableResources", "AvailableResource"):
                for supported in listed(resource, "SupportedResources", "SupportedResource"):
                    if supported["Value"] == name:
                        stock.setdefault(zone["ZoneId"], {})[name] = supported.get(
                            "StatusCategory", supported["Status"]
                        )
    return stock


def _inventory(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {stock}" for name, stock in types.items()) or "sells none of them"


def _spot(stack: Stack, cloud: Alicloud, pool: Pool) -> Finding:
    """Check how often such instances were interrupted over the last 30 days."""
    subject, wanted = f"spot for {pool.name}", set(stack.zones_of(pool))
    asked = {f"InstanceTypes.{number}": name for number, name in enumerate(pool.types, 1)}
    answer = cloud.ask("ecs", "DescribeSpotAdvice", RegionId=stack.region, **asked)
    rates = {
        f"{resource['InstanceType']} in {zone['ZoneId']}": resource.get("InterruptRateDesc", "unknown")
        for zone in listed(answer, "AvailableSpotZones", "AvailableSpotZone")
        if zone["ZoneId"] in wanted
        for resource in listed(zone, "AvailableSpotResources", "AvailableSpotResource")
    }
    if not rates:
        return Finding(subject, Rating.NOTE, "none sold in the pool's zones", "name other pools.types")
    says = ", ".join(f"{name} interrupted {rate}" for name, rate in rates.items())
    calm = any(rate != OFTEN_INTERRUPTED for rate in rates.values())
    if calm:
        return Finding(subject, Rating.FINE, says)
    return Finding(subject, Rating.NOTE, says, "name more pools.types, or on_demand_fallback: true")


def _reservation(stack: Stack, cloud: Alicloud, pool: Pool, wanted: CapacityReservation) -> Finding:
    subject, identifier = reservation_subject(pool, wanted), wanted.id
    known = RESERVATIONS.get(identifier[:4])
    if known is None:
        raise CannotCheckError(f"{identifier}: ids begin with {' or '.join(RESERVATIONS)}")
    action, outer, inner = known
    ids = {"PrivatePoolOptions.Ids": json.dumps([identifier])}
    reservations = listed(cloud.ask("ecs", action, RegionId=stack.region, **ids), outer, inner)
    if not reservations:
        remedy = f"name another {reservation_key(pool)}"
        return Finding(subject, Rating.PROBLEM, f"{identifier} is not in {stack.region}", remedy)
    return _usable(stack, pool, wanted, reservations[0])


def _usable(stack: Stack, pool: Pool, wanted: CapacityReservation, reservation: dict[str, Any]) -> Finding:
    """Check that the reservation is active, of the pool's type and zone, and as large as the pool wants."""
    subject = reservation_subject(pool, wanted)
    parts = [
        part
        for part in listed(reservation, "AllocatedResources", "AllocatedResource")
        if part["InstanceType"] in pool.types
    ]
    total = sum(int(part.get("TotalAmount", 0)) for part in parts)
    zones = {str(part["zoneId"]) for part in parts if part.get("zoneId")} - {wanted.zone}
    says = f"{reservation['Status']}, {total} of {', '.join(pool.types)}; the pool wants {wanted.count}"
    elsewhere = f"in {wanted.zone}, and it is in {', '.join(sorted(zones))}" if zones else ""
    written = reservation.get("EndTime")
    end = end_unlike(pool, wanted, datetime.fromisoformat(written) if written else None)
    if reservation["Status"] == "Active" and total >= wanted.count and not elsewhere and not end:
        return Finding(subject, Rating.FINE, says)
    remedy = f"name another {reservation_key(pool)} in {stack.region}"
    return Finding(subject, Rating.PROBLEM, "; ".join(filter(None, (says, elsewhere, end))), remedy)
