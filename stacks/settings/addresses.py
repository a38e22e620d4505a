"""Whether subnets that somebody else cut are large enough for a stack's instances. Pure."""

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network

from stacks import catalog
from stacks.catalog import Cloud
from stacks.errors import Problem
from stacks.settings.pools import group_plans
from stacks.settings.schema import Pool, Stack

# docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html: the first four and the last;
# www.alibabacloud.com/help/en/vpc/user-guide/create-and-manage-a-vswitch: the first and the last three.
RESERVED = {Cloud.AWS: 5, Cloud.ALICLOUD: 4}
# An EFA interface without IP traffic (catalog, NetworkCard).
WITHOUT_ADDRESS = "efa-only"


def too_small(stack: Stack, networks: Mapping[str, str]) -> Iterator[Problem]:
    """What full pools lack; how many addresses are free today says nothing, since the stack's own take some.

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
    """Addresses that groups which start nowhere but in these zones take when they are full."""
    return sum(
        _addresses(stack, pool) * max(sizes)
        for pool in stack.pools
        if (sizes := [plan.size.max for plan in group_plans(stack, pool) if set(plan.zones) <= set(zones)])
    )


def _addresses(stack: Stack, pool: Pool) -> int:
    """Of one instance: one for each interface that has one."""
    if stack.cloud is not Cloud.AWS or not pool.efa:
        return 1
    cards = catalog.load().get(pool.types[0]).network_cards
    return sum(card.interface_type != WITHOUT_ADDRESS for card in cards) or 1
