"""Check the existing VPC that a stack on Alibaba Cloud names."""

from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.usable import so
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.addresses import too_small
from gpu_fleet_stacks.settings.schema import ExistingNetwork

ANYWHERE = "0.0.0.0/0"
AVAILABLE = "Available"
NAT_GATEWAY, IPV4_GATEWAY = "natgateway", "ipv4gateway"
# Entries of one page: API DescribeSnatTableEntries takes 50 at most.
PAGE = 50


def existing(stack: Stack, cloud: Alicloud) -> Iterator[Finding]:
    """Check the VPC, and each vSwitch with its route to the internet."""
    named = stack.network.existing
    if named is None:
        return
    yield guarded("VPC", partial(_vpc, stack, cloud, named))
    for zone in stack.network.zones:
        yield guarded(f"vSwitch of {zone}", partial(_vswitch, stack, cloud, named, zone))


def _vpc(stack: Stack, cloud: Alicloud, named: ExistingNetwork) -> Finding:
    answer = cloud.ask("vpc", "DescribeVpcs", RegionId=stack.region, VpcId=named.vpc_id)
    vpcs = listed(answer, "Vpcs", "Vpc")
    if not vpcs:
        says = f"{named.vpc_id} is not in {stack.region}"
        return Finding("VPC", Rating.PROBLEM, says, "name another network.existing.vpc_id")
    return Finding("VPC", Rating.FINE, f"{named.vpc_id} has {vpcs[0]['CidrBlock']}")


def _vswitch(stack: Stack, cloud: Alicloud, named: ExistingNetwork, zone: str) -> Finding:
    subject, vswitch_id = f"vSwitch of {zone}", named.subnets[zone]
    answer = cloud.ask("vpc", "DescribeVSwitches", RegionId=stack.region, VSwitchId=vswitch_id)
    vswitches = listed(answer, "VSwitches", "VSwitch")
    if not vswitches:
        return Finding(subject, Rating.PROBLEM, f"{vswitch_id} is not in {stack.region}", _remedy(zone))
    (vswitch,) = vswitches
    wrong = so(
        (f"is in {vswitch['VpcId']}", vswitch["VpcId"] != named.vpc_id),
        (f"is in {vswitch['ZoneId']}", vswitch["ZoneId"] != zone),
    )
    if named.internet and not wrong:
        wrong += _no_way_out(stack, cloud, vswitch)
    wrong += [problem.allowed for problem in too_small(stack, {zone: vswitch["CidrBlock"]})]
    if wrong:
        return Finding(subject, Rating.PROBLEM, f"{vswitch_id} {', '.join(wrong)}", _remedy(zone))
    free = vswitch["AvailableIpAddressCount"]
    return Finding(subject, Rating.FINE, f"{vswitch_id} has its routes and {free} free addresses")


def _no_way_out(stack: Stack, cloud: Alicloud, vswitch: dict[str, Any]) -> Iterator[str]:
    """Yield why a vSwitch cannot reach the internet: instances need a NAT gateway with an SNAT entry."""
    hops = list(_next_hops(stack, cloud, vswitch["RouteTable"]["RouteTableId"]))
    kinds = {str(hop["NextHopType"]).lower() for hop in hops}
    gateways = [hop["NextHopId"] for hop in hops if str(hop["NextHopType"]).lower() == NAT_GATEWAY]
    if not hops:
        yield f"has no route to {ANYWHERE}"
    elif IPV4_GATEWAY in kinds:
        yield f"reaches {ANYWHERE} by an IPv4 gateway, which answers public addresses alone"
    elif gateways and not any(_translates(stack, cloud, gateway, vswitch) for gateway in gateways):
        yield f"is in no SNAT entry of {', '.join(gateways)}"


def _next_hops(stack: Stack, cloud: Alicloud, table_id: str) -> Iterator[dict[str, Any]]:
    answer = cloud.ask(
        "vpc",
        "DescribeRouteEntryList",
        RegionId=stack.region,
        RouteTableId=table_id,
        DestinationCidrBlock=ANYWHERE,
    )
    for entry in listed(answer, "RouteEntrys", "RouteEntry"):
        if entry["Status"] == AVAILABLE:
            yield from listed(entry, "NextHops", "NextHop")


def _translates(stack: Stack, cloud: Alicloud, gateway_id: str, vswitch: dict[str, Any]) -> bool:
    """Return whether an SNAT entry covers the vSwitch, or a network that contains it."""
    network = IPv4Network(vswitch["CidrBlock"])
    return any(
        entry.get("SourceVSwitchId") == vswitch["VSwitchId"]
        or (entry.get("SourceCIDR") and network.subnet_of(IPv4Network(entry["SourceCIDR"])))
        for entry in _snat_entries(stack, cloud, gateway_id)
    )


def _snat_entries(stack: Stack, cloud: Alicloud, gateway_id: str) -> Iterator[dict[str, Any]]:
    return cloud.numbered(
        "vpc",
        "DescribeSnatTableEntries",
        "SnatTableEntries",
        "SnatTableEntry",
        size=PAGE,
        RegionId=stack.region,
        NatGatewayId=gateway_id,
    )


def _remedy(zone: str) -> str:
    return f"name another network.existing.subnets.{zone}, or have the owner of the VPC change it"
