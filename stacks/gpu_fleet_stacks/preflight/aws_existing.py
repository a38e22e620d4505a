"""Check the existing VPC that a stack on AWS names."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from gpu_fleet_image.core.model import TAG_STACK
from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.usable import so, unless_missing
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.schema import ExistingNetwork

ANYWHERE = "0.0.0.0/0"
INTERNET_GATEWAY = "igw-"
# A route has this state once its gateway is deleted (API Route).
BLACKHOLE = "blackhole"
# Fields of a route that name its target (API Route).
TARGETS = ("GatewayId", "NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "VpcPeeringConnectionId")


def existing(stack: Stack, aws: Aws) -> Iterator[Finding]:
    """Check the VPC, its DNS settings and endpoints, and each subnet."""
    named = stack.network.existing
    if named is None:
        return
    yield guarded("VPC", partial(_vpc, stack, aws, named))
    if stack.network.interface_endpoints:
        yield guarded("endpoints", partial(_endpoints, stack, aws, named))
    for zone in stack.network.zones:
        yield guarded(f"subnet of {zone}", partial(_subnet, aws, named, zone))


def _vpc(stack: Stack, aws: Aws, named: ExistingNetwork) -> Finding:
    """Check that the VPC exists with DNS support and names: EFS mounts and private endpoint names need both.

    docs.aws.amazon.com/vpc/latest/userguide/AmazonDNS-concepts.html
    """
    asked = partial(aws.ask, "ec2", "describe_vpcs", VpcIds=[named.vpc_id])
    vpcs = unless_missing(asked, "InvalidVpcID").get("Vpcs")
    if not vpcs:
        says = f"{named.vpc_id} is not in {stack.region}"
        return Finding("VPC", Rating.PROBLEM, says, "name another network.existing.vpc_id")
    off = [name for name in ("enableDnsSupport", "enableDnsHostnames") if not _dns(aws, named.vpc_id, name)]
    homes = stack.storage.home or stack.storage.existing.home
    needed = homes or stack.network.interface_endpoints
    if off and needed:
        says = f"{named.vpc_id} has {' and '.join(off)} switched off, which homes and endpoints need"
        remedy = "; ".join(
            f"aws ec2 modify-vpc-attribute --region {stack.region} --vpc-id {named.vpc_id} --{flag}"
            for flag in (
                {"enableDnsSupport": "enable-dns-support", "enableDnsHostnames": "enable-dns-hostnames"}[
                    attribute
                ]
                for attribute in off
            )
        )
        return Finding("VPC", Rating.PROBLEM, says, remedy)
    return Finding("VPC", Rating.FINE, f"{named.vpc_id} has {vpcs[0]['CidrBlock']}")


def _dns(aws: Aws, vpc_id: str, attribute: str) -> bool:
    answer = aws.ask("ec2", "describe_vpc_attribute", VpcId=vpc_id, Attribute=attribute)
    return bool(answer[attribute[:1].upper() + attribute[1:]]["Value"])


def _endpoints(stack: Stack, aws: Aws, named: ExistingNetwork) -> Finding:
    """Check for conflicting endpoints: a VPC allows one endpoint with private names for each service.

    The stack's own endpoints have its tag.
    """
    from gpu_fleet_stacks.aws.endpoints import SERVICES  # noqa: PLC0415 - Pulumi's SDK takes a second: where asked for

    endpoints = aws.pages(
        "ec2",
        "describe_vpc_endpoints",
        "VpcEndpoints",
        Filters=[{"Name": "vpc-id", "Values": [named.vpc_id]}],
    )
    wanted = {f"com.amazonaws.{stack.region}.{service}" for service in SERVICES}
    own = {"Key": TAG_STACK, "Value": stack.name}
    taken = sorted(
        endpoint["ServiceName"].rpartition(f"{stack.region}.")[2]
        for endpoint in endpoints
        if endpoint["ServiceName"] in wanted
        and endpoint.get("PrivateDnsEnabled")
        and own not in endpoint.get("Tags", [])
    )
    if not taken:
        return Finding("endpoints", Rating.FINE, f"{named.vpc_id} has room for the stack's")
    says = f"{named.vpc_id} has endpoints with private names already: {', '.join(taken)}"
    remedy = "leave out network.interface_endpoints, and let the owner's group take the stack's in"
    return Finding("endpoints", Rating.PROBLEM, says, remedy)


def _subnet(aws: Aws, named: ExistingNetwork, zone: str) -> Finding:
    subject, subnet_id = f"subnet of {zone}", named.subnets[zone]
    asked = partial(aws.ask, "ec2", "describe_subnets", SubnetIds=[subnet_id])
    subnets = unless_missing(asked, "InvalidSubnetID").get("Subnets")
    if not subnets:
        return Finding(subject, Rating.PROBLEM, f"there is no {subnet_id}", _remedy(zone))
    (subnet,) = subnets
    wrong = so(
        (f"is in {subnet['VpcId']}", subnet["VpcId"] != named.vpc_id),
        (f"is in {subnet['AvailabilityZone']}", subnet["AvailabilityZone"] != zone),
        ("gives public addresses", bool(subnet.get("MapPublicIpOnLaunch"))),
    )
    routes = [] if wrong else _routes(aws, named.vpc_id, subnet_id)
    wrong += [] if wrong else list(_wrong_with(routes, internet=named.internet))
    free = subnet["AvailableIpAddressCount"]
    if wrong:
        return Finding(subject, Rating.PROBLEM, f"{subnet_id} {', '.join(wrong)}", _remedy(zone))
    return Finding(subject, Rating.FINE, f"{subnet_id} has its routes and {free} free addresses")


def _routes(aws: Aws, vpc_id: str, subnet_id: str) -> list[dict[str, Any]]:
    """Return the routes of the subnet's own table, or of the VPC's main one where it has none."""
    for filters in (
        {"association.subnet-id": subnet_id},
        {"vpc-id": vpc_id, "association.main": "true"},
    ):
        tables = list(
            aws.pages(
                "ec2",
                "describe_route_tables",
                "RouteTables",
                Filters=[{"Name": name, "Values": [value]} for name, value in filters.items()],
            )
        )
        if tables:
            return [route for route in tables[0]["Routes"] if route.get("State") != BLACKHOLE]
    return []


def _wrong_with(routes: list[dict[str, Any]], *, internet: bool) -> Iterator[str]:
    """Yield what is wrong with a subnet's routes.

    Instances have no public address, so an internet gateway does not serve them.
    """
    out = [route for route in routes if route.get("DestinationCidrBlock") == ANYWHERE]
    targets = [str(route[key]) for route in out for key in TARGETS if route.get(key)]
    if internet and not targets:
        yield f"has no route to {ANYWHERE}"
    elif internet and any(target.startswith(INTERNET_GATEWAY) for target in targets):
        yield f"reaches {ANYWHERE} by {targets[0]}, which answers public addresses alone"
    to_s3 = [route for route in routes if str(route.get("GatewayId", "")).startswith("vpce-")]
    if not internet and not to_s3:
        yield "has no route to an S3 gateway endpoint, and network.existing.internet is false"


def _remedy(zone: str) -> str:
    return f"name another network.existing.subnets.{zone}, or have the owner of the VPC change it"
