"""Check that existing subnets are large enough for a stack's instances. Pure."""

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings.pools import group_plans
from gpu_fleet_stacks.settings.schema import Pool, Stack

# docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html: the first four and the last;
# www.alibabacloud.com/help/en/vpc/user-guide/create-and-manage-a-vswitch: the first and the last three.
RESERVED = {Cloud.AWS: 5, Cloud.ALICLOUD: 4}
# An EFA interface without IP traffic (catalog, NetworkCard).
WITHOUT_ADDRESS = "efa-only"


def too_small(stack: Stack, networks: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the subnets that are too small for full pools.

    The number of free addresses does not count, since the stack's own instances use some today.

    Args:
        networks: zone -> CIDR of its subnet, for each of ``network.zones``.
    """
    has = {zone: _usable(stack.cloud, IPv4Network(network)) for zone, network in networks.items()}
    for zone, network in networks.items():
        needed = _bound_to(stack, (zone,))
        if needed > has[zone]:
            allowed = f"{network} has {has[zone]} addresses for instances; groups of that zone need {needed}"
            yield Problem(f"network.existing.subnets.{zone}", _named(stack, zone), allowed)
    zones = tuple(networks)
    needed, room = _bound_to(stack, zones), sum(has.values())
    if len(zones) > 1 and needed > room:
        allowed = f"have {room} addresses for instances together; full pools need {needed}"
        yield Problem("network.existing.subnets", ", ".join(networks.values()), allowed)


def _named(stack: Stack, zone: str) -> str | None:
    existing = stack.network.existing
    return None if existing is None else existing.subnets[zone]


def _usable(cloud: Cloud, network: IPv4Network) -> int:
    return max(0, network.num_addresses - RESERVED[cloud])


def _bound_to(stack: Stack, zones: tuple[str, ...]) -> int:
    """Return the number of addresses that full groups need which may start only in these zones."""
    return sum(
        _addresses(stack, pool) * max(sizes)
        for pool in stack.pools
        if (sizes := [plan.size.max for plan in group_plans(stack, pool) if set(plan.zones) <= set(zones)])
    )


def _addresses(stack: Stack, pool: Pool) -> int:
    """Return the number of addresses of an instance: one for each interface with IP traffic."""
    if stack.cloud is not Cloud.AWS or not pool.efa:
        return 1
    cards = catalog.load().get(pool.types[0]).network_cards
    return sum(card.interface_type != WITHOUT_ADDRESS for card in cards) or 1
