"""Check that a zone sells what a pool requests: types, EFA, spot, reservations."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.needs import end_unlike, reservation_key, reservation_subject, types_of
from gpu_fleet_stacks.preflight.usable import so
from gpu_fleet_stacks.settings import CapacityReservation, Grouping, Market, Pool, Stack
from gpu_fleet_stacks.settings.quantities import Level, instances

# docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-sps-works.html: 10 is "highly likely to succeed", 1 is not.
SCARCE_SPOT_SCORE = 3
USABLE_STATES = frozenset({"active", "scheduled"})


def room(stack: Stack, aws: Aws) -> Iterator[Finding]:
    """Check every pool against its zones."""
    for pool in stack.pools:
        yield guarded(f"types of {pool.name}", partial(_offered, stack, aws, pool))
        if pool.efa:
            yield guarded(f"EFA of {pool.name}", partial(_efa, aws, pool))
        if pool.market is Market.SPOT:
            yield guarded(f"spot for {pool.name}", partial(_spot, stack, aws, pool))
        for held in stack.reservations_of(pool):
            subject = reservation_subject(pool, held)
            yield guarded(subject, partial(_reservation, aws, pool, held, datetime.now(UTC)))


def _offered(stack: Stack, aws: Aws, pool: Pool) -> Finding:
    subject, sold = f"types of {pool.name}", _zones_by_type(aws, pool)
    wanted = stack.zones_of(pool)
    empty = [zone for zone in wanted if not any(zone in zones for zones in sold.values())]
    elsewhere = sorted({zone for zones in sold.values() for zone in zones})
    if not empty:
        return Finding(subject, Rating.FINE, f"{', '.join(wanted)} sell {_some(pool)}")
    says = f"{', '.join(empty)} sell no {_some(pool)}"
    remedy = f"name other pools.zones: sold in {', '.join(elsewhere)}" if elsewhere else "name other types"
    # one group over several zones launches in those that have the type
    hard = pool.grouping is Grouping.PER_ZONE or len(empty) == len(wanted)
    return Finding(subject, Rating.PROBLEM if hard else Rating.NOTE, says, remedy)


def _zones_by_type(aws: Aws, pool: Pool) -> dict[str, set[str]]:
    zones: dict[str, set[str]] = {name: set() for name in pool.types}
    for offer in aws.pages(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": list(pool.types)}],
    ):
        zones[offer["InstanceType"]].add(offer["Location"])
    return zones


def _some(pool: Pool) -> str:
    return " or ".join(pool.types)


def _efa(aws: Aws, pool: Pool) -> Finding:
    """Check that the type has as many adapters as the launch template asks for."""
    subject, wanted = f"EFA of {pool.name}", max(kind.efa_interfaces for kind in types_of(pool))
    (name,) = pool.types  # one by a rule of the settings
    (kind,) = aws.ask("ec2", "describe_instance_types", InstanceTypes=[name])["InstanceTypes"]
    network = kind.get("NetworkInfo", {})
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0) if network.get("EfaSupported") else 0
    says = f"{name} has {most} adapters, the template asks for {wanted}"
    if most >= wanted:
        return Finding(subject, Rating.FINE, says)
    return Finding(subject, Rating.PROBLEM, says, "name a type with EFA, or pools.efa: false")


def _spot(stack: Stack, aws: Aws, pool: Pool) -> Finding:
    """Check EC2's score, from 1 to 10, of a spot request for the whole pool."""
    subject, many = f"spot for {pool.name}", instances(stack, pool)[Level.MAX]
    scores = aws.ask(
        "ec2",
        "get_spot_placement_scores",
        InstanceTypes=list(pool.types),
        TargetCapacity=many,
        TargetCapacityUnitType="units",
        SingleAvailabilityZone=pool.grouping is Grouping.PER_ZONE,
        RegionNames=[stack.region],
    )["SpotPlacementScores"]
    best = max((score["Score"] for score in scores), default=0)
    says = f"{many} instances at once: placement score {best} of 10"
    if best > SCARCE_SPOT_SCORE:
        return Finding(subject, Rating.FINE, says)
    return Finding(subject, Rating.NOTE, says, "name more pools.types or zones, or on_demand_fallback: true")


def _reservation(aws: Aws, pool: Pool, wanted: CapacityReservation, now: datetime) -> Finding:
    """Check that a reservation or capacity block exists in the pool's type and zone, and is large enough.

    In a group, all reservations that the pool can use count together.
    """
    subject, key = reservation_subject(pool, wanted), reservation_key(pool)
    held = [(each, _unlike(each, pool, wanted, now)) for each in _held(aws, wanted)]
    used = [reservation for reservation, unlike in held if not unlike]
    free, total = (
        sum(each[key] for each in used) for key in ("AvailableInstanceCount", "TotalInstanceCount")
    )
    if total >= wanted.count and used:
        states = ", ".join(dict.fromkeys(each["State"] for each in used))
        beyond = total - wanted.count
        limit = "count" if pool.reservations else "size.max"
        uncounted = f"; {beyond} of them beyond {limit}: paid for, and not counted" if beyond else ""
        return Finding(subject, Rating.FINE, f"{states}, {free} of {total} free{uncounted}")
    wrong = [f"holds {total}"] if used or not held else [reason for _, unlike in held for reason in unlike]
    asked = f"{wanted.count} {pool.types[0]} in {wanted.zone}"
    says = f"{wanted.id} {', '.join(wrong)}; the pool wants {asked} ({pool.market})"
    return Finding(subject, Rating.PROBLEM, says, f"name another {key}")


def _held(aws: Aws, wanted: CapacityReservation) -> list[dict[str, Any]]:
    """Return the reservation that a pool names, or those of the group that it names."""
    ids = [wanted.id]
    if wanted.id.startswith("arn:"):
        listed = aws.pages("resource-groups", "list_group_resources", "Resources", Group=wanted.id)
        arns = [str(each["Identifier"]["ResourceArn"]) for each in listed]
        ids = [arn.rpartition("/")[2] for arn in arns if ":capacity-reservation/" in arn]
    if not ids:
        return []
    asked = aws.pages(
        "ec2", "describe_capacity_reservations", "CapacityReservations", CapacityReservationIds=ids
    )
    return list(asked)


def _unlike(reservation: dict[str, Any], pool: Pool, wanted: CapacityReservation, now: datetime) -> list[str]:
    """Return why a pool cannot use a reservation."""
    ends = reservation.get("EndDate")
    block = reservation.get("ReservationType") == "capacity-block"
    return so(
        (f"is {reservation['State']}", reservation["State"] not in USABLE_STATES),
        (f"is of {reservation['InstanceType']}", reservation["InstanceType"] not in pool.types),
        (f"is in {reservation['AvailabilityZone']}", reservation["AvailabilityZone"] != wanted.zone),
        ("is a capacity block", block and pool.market is not Market.CAPACITY_BLOCK),
        ("is no capacity block", not block and pool.market is Market.CAPACITY_BLOCK),
        (f"ended {ends:%Y-%m-%d}" if ends else "", ends is not None and ends <= now),
        (end_unlike(pool, wanted, ends), bool(end_unlike(pool, wanted, ends))),
    )
