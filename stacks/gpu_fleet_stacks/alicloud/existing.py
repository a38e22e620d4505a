"""Existing resources of another owner: looked up by id, never declared.

A data source leaves nothing in the stack's state: no update changes the resource, no destroy deletes it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud
from pulumi_alicloud.vpc.outputs import GetSwitchesVswitchResult

from gpu_fleet_stacks.core.errors import Problem, StacksError
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.addresses import too_small
from gpu_fleet_stacks.settings.schema import ExistingBucket, ExistingNetwork

ANYWHERE = "0.0.0.0/0"
AVAILABLE = "Available"
# Serves only public addresses, which instances lack
# (www.alibabacloud.com/help/en/vpc/user-guide/ipv4-gateway-overview).
IPV4_GATEWAY = "ipv4gateway"


class ExistingNetworkError(StacksError):
    """vSwitches in the stack file do not meet the stack's needs."""


class ExistingBucketError(StacksError):
    """Buckets in the stack file do not meet the stack's needs."""


@dataclass(frozen=True)
class FoundNetwork:
    """A VPC of another owner.

    Attributes:
        private_subnet_ids: zone -> vSwitch that holds instances.
        private_networks: zone -> its CIDR, which rules of enterprise groups name.
    """

    vpc_id: str
    private_subnet_ids: dict[str, str]
    private_networks: dict[str, str]


def network(stack: Stack, named: ExistingNetwork, parent: pulumi.Resource) -> FoundNetwork:
    """Look up the VPC, its vSwitches and their routes; a preview does so too.

    The lookups return values and not Outputs, so that all refusals are one message of the program, before
    anything is declared in the network.

    Raises:
        ExistingNetworkError: there is no such VPC or vSwitch in the region; or a vSwitch is in another zone
            or VPC, has no route to the internet, or is too small.
    """
    opts = pulumi.InvokeOptions(parent=parent)
    problems = [*_wrong_with_vpc(stack, named, opts)]
    vswitches = {zone: _vswitch(zone, named.subnets[zone], opts) for zone in stack.network.zones}
    for zone, vswitch in vswitches.items():
        problems += _wrong_with_vswitch(stack, named, zone, vswitch, opts)
    networks = {zone: vswitch.cidr_block for zone, vswitch in vswitches.items() if vswitch is not None}
    problems += too_small(stack, networks)
    if problems:
        raise ExistingNetworkError("\n".join(str(problem) for problem in problems))
    subnets = {zone: named.subnets[zone] for zone in stack.network.zones}
    return FoundNetwork(named.vpc_id, subnets, networks)


def _wrong_with_vpc(stack: Stack, named: ExistingNetwork, opts: pulumi.InvokeOptions) -> Iterator[Problem]:
    with _explained("network.existing.vpc_id", named.vpc_id):
        vpcs = alicloud.vpc.get_networks(ids=[named.vpc_id], opts=opts).vpcs
    if not vpcs:
        allowed = f"is not in {stack.region}, or not of account {stack.account_id}"
        yield Problem("network.existing.vpc_id", named.vpc_id, allowed)


def _vswitch(zone: str, vswitch_id: str, opts: pulumi.InvokeOptions) -> GetSwitchesVswitchResult | None:
    with _explained(f"network.existing.subnets.{zone}", vswitch_id):
        vswitches = alicloud.vpc.get_switches(ids=[vswitch_id], opts=opts).vswitches
    return vswitches[0] if vswitches else None


def _wrong_with_vswitch(
    stack: Stack,
    named: ExistingNetwork,
    zone: str,
    vswitch: GetSwitchesVswitchResult | None,
    opts: pulumi.InvokeOptions,
) -> Iterator[Problem]:
    key, value = f"network.existing.subnets.{zone}", named.subnets[zone]
    if vswitch is None:
        yield Problem(key, value, f"is not in {stack.region}, or not of account {stack.account_id}")
        return
    if vswitch.vpc_id != named.vpc_id:
        yield Problem(key, value, f"is in {vswitch.vpc_id}; must be in {named.vpc_id}")
    if vswitch.zone_id != zone:
        yield Problem(key, value, f"is in {vswitch.zone_id}; must be in {zone}")
    if named.internet:
        yield from _no_way_out(key, value, vswitch.route_table_id, opts)


def _no_way_out(key: str, value: str, table_id: str, opts: pulumi.InvokeOptions) -> Iterator[Problem]:
    """Yield a problem if a route table has no route to the internet for private addresses.

    Without ``internet`` no route is needed: the cloud answers inside every VPC (``firewall.CLOUD_SERVICES``).
    """
    with _explained(key, value):
        table = alicloud.vpc.get_route_entries(route_table_id=table_id, cidr_block=ANYWHERE, opts=opts)
    hops = [entry.next_hop_type for entry in table.entries if entry.status == AVAILABLE]
    if not hops:
        allowed = f"its route table {table_id} has no route to {ANYWHERE}; network.existing.internet is true"
        yield Problem(key, value, allowed)
    elif any(hop.lower() == IPV4_GATEWAY for hop in hops):
        allowed = f"its route table {table_id} leads to an IPv4 gateway, which answers public addresses alone"
        yield Problem(key, value, allowed)


def look_at_buckets(stack: Stack, parent: pulumi.Resource) -> None:
    """Look up every bucket that the stack file names; a preview does so too.

    Raises:
        ExistingBucketError: buckets are of another account or region, or would store what instances write
            unencrypted; the message names them all.
    """
    opts = pulumi.InvokeOptions(parent=parent)
    problems = [
        Problem(f"storage.existing.buckets.{name}", name, wrong)
        for name, use in stack.storage.existing.buckets.items()
        for wrong in _wrong_with_bucket(stack, name, use, opts)
    ]
    if problems:
        raise ExistingBucketError("\n".join(str(problem) for problem in problems))


def _wrong_with_bucket(
    stack: Stack, name: str, use: ExistingBucket, opts: pulumi.InvokeOptions
) -> Iterator[str]:
    try:
        listed = alicloud.oss.get_buckets(name_regex=f"^{re.escape(name)}$", opts=opts).buckets
    except Exception as error:  # noqa: BLE001 - the SDK raises nothing narrower
        yield " ".join(str(error).split())
        return
    if not listed:
        yield f"is no bucket of account {stack.account_id}"
        return
    if listed[0].location != f"oss-{stack.region}":
        yield f"is in {listed[0].location}; must be in oss-{stack.region}"
    encryption = listed[0].server_side_encryption_rule
    if use.write and not (encryption and encryption.sse_algorithm):
        yield "encrypts nothing by itself; its owner sets KMS or AES256, or write stays false"


@contextmanager
def _explained(key: str, value: str) -> Iterator[None]:
    """Name the key of a failed lookup in the error; the SDK raises nothing narrower than Exception."""
    try:
        yield
    except Exception as error:
        raise ExistingNetworkError(str(Problem(key, value, " ".join(str(error).split())))) from error
