"""Existing resources of another owner: looked up by id, never declared.

A data source leaves nothing in the stack's state: no update changes the resource, no destroy deletes it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.core.errors import Problem, StacksError
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.addresses import too_small
from gpu_fleet_stacks.settings.schema import ExistingNetwork

ANYWHERE, INTERNET_GATEWAY = "0.0.0.0/0", "igw-"


class ExistingNetworkError(StacksError):
    """Subnets in the stack file do not meet the stack's needs."""


class ExistingBucketError(StacksError):
    """Buckets in the stack file do not meet the stack's needs."""


@dataclass(frozen=True)
class FoundNetwork:
    """A VPC of another owner.

    Attributes:
        cidr: its first network, whose resolver instances ask.
        private_subnet_ids: zone -> subnet that holds instances.
        s3_prefix_list_id: the addresses of S3 in this region.
    """

    vpc_id: str
    cidr: str
    private_subnet_ids: dict[str, str]
    s3_prefix_list_id: str


def network(stack: Stack, named: ExistingNetwork, parent: pulumi.Resource) -> FoundNetwork:
    """Look up the VPC and its subnets; a preview does so too.

    The lookups return values and not Outputs, so that a refusal is one message of the program, before
    anything is declared in the network.

    Raises:
        ExistingNetworkError: the provider found no such VPC or subnet; or a subnet is in another zone or VPC,
            assigns public addresses, is too small, or has no route to the internet.
    """
    opts = pulumi.InvokeOptions(parent=parent)
    with _explained("network.existing.vpc_id", named.vpc_id):
        vpc = aws.ec2.get_vpc(id=named.vpc_id, opts=opts)
    subnets = {zone: _subnet(zone, named.subnets[zone], opts) for zone in stack.network.zones}
    problems = [problem for zone, subnet in subnets.items() for problem in _problems(named, zone, subnet)]
    if not problems and named.internet:
        problems += [each for zone in subnets for each in _no_way_out(named, zone, opts)]
    problems += too_small(stack, {zone: subnet.cidr_block for zone, subnet in subnets.items()})
    if problems:
        raise ExistingNetworkError("\n".join(str(problem) for problem in problems))
    lists = aws.ec2.get_prefix_list(name=f"com.amazonaws.{stack.region}.s3", opts=opts)
    return FoundNetwork(
        vpc_id=vpc.id,
        cidr=vpc.cidr_block,
        private_subnet_ids={zone: subnet.id for zone, subnet in subnets.items()},
        s3_prefix_list_id=lists.id,
    )


def _subnet(zone: str, subnet_id: str, opts: pulumi.InvokeOptions) -> aws.ec2.GetSubnetResult:
    with _explained(f"network.existing.subnets.{zone}", subnet_id):
        return aws.ec2.get_subnet(id=subnet_id, opts=opts)


def look_at_buckets(stack: Stack, parent: pulumi.Resource) -> None:
    """Look up every bucket that the stack file names; a preview does so too.

    Raises:
        ExistingBucketError: buckets do not exist, deny this account, or are in another region; the message
            names them all.
    """
    problems = []
    for name in stack.storage.existing.buckets:
        try:
            bucket = aws.s3.get_bucket(bucket=name, opts=pulumi.InvokeOptions(parent=parent))
        except Exception as error:  # noqa: BLE001 - the SDK raises nothing narrower
            problems.append(Problem(_key_of(name), name, " ".join(str(error).split())))
            continue
        if bucket.bucket_region != stack.region:
            allowed = f"is in {bucket.bucket_region}; must be in {stack.region}"
            problems.append(Problem(_key_of(name), name, allowed))
    if problems:
        raise ExistingBucketError("\n".join(str(problem) for problem in problems))


def _key_of(bucket: str) -> str:
    return f"storage.existing.buckets.{bucket}"


@contextmanager
def _explained(key: str, value: str) -> Iterator[None]:
    """Name the key of a failed lookup in the error; the SDK raises nothing narrower than Exception."""
    try:
        yield
    except Exception as error:
        raise ExistingNetworkError(str(Problem(key, value, " ".join(str(error).split())))) from error


def _no_way_out(named: ExistingNetwork, zone: str, opts: pulumi.InvokeOptions) -> Iterator[Problem]:
    """Yield a problem if a subnet's route table, or the VPC's main one, has no route to the internet.

    `gpu-fleet preflight` also asks for the way to S3 of a network without one: the provider leaves routes of
    gateway endpoints out of what it looks up.
    """
    key, value = f"network.existing.subnets.{zone}", named.subnets[zone]
    with _explained(key, value):
        routes = _routes(named.vpc_id, value, opts)
    targets = [target for route in routes for target in _targets(route)]
    if not targets:
        yield Problem(key, value, f"has no route to {ANYWHERE}; network.existing.internet is true")
    elif all(target.startswith(INTERNET_GATEWAY) for target in targets):
        allowed = f"reaches {ANYWHERE} by {targets[0]}, which answers public addresses alone"
        yield Problem(key, value, allowed)


def _routes(
    vpc_id: str, subnet_id: str, opts: pulumi.InvokeOptions
) -> Sequence[aws.ec2.outputs.GetRouteTableRouteResult]:
    for filters in ({"association.subnet-id": subnet_id}, {"association.main": "true", "vpc-id": vpc_id}):
        asked = [aws.ec2.GetRouteTablesFilterArgs(name=name, values=[text]) for name, text in filters.items()]
        tables = aws.ec2.get_route_tables(filters=asked, opts=opts).ids
        if tables:
            return aws.ec2.get_route_table(route_table_id=tables[0], opts=opts).routes
    return ()


def _targets(route: aws.ec2.outputs.GetRouteTableRouteResult) -> list[str]:
    """Return the targets of a default route; empty for any other route."""
    if route.cidr_block != ANYWHERE:
        return []
    ways = (route.nat_gateway_id, route.transit_gateway_id, route.network_interface_id, route.instance_id)
    more = (route.gateway_id, route.vpc_peering_connection_id, route.vpc_endpoint_id)
    return [way for way in (*ways, *more, route.core_network_arn, route.local_gateway_id) if way]


def _problems(named: ExistingNetwork, zone: str, subnet: aws.ec2.GetSubnetResult) -> Iterator[Problem]:
    key, value = f"network.existing.subnets.{zone}", named.subnets[zone]
    if subnet.vpc_id != named.vpc_id:
        yield Problem(key, value, f"is in {subnet.vpc_id}; must be in {named.vpc_id}")
    if subnet.availability_zone != zone:
        yield Problem(key, value, f"is in {subnet.availability_zone}; must be in {zone}")
    if subnet.map_public_ip_on_launch:
        yield Problem(key, value, "gives instances public addresses; must be a private subnet")
