"""A stack in somebody else's VPC: what it adds there, what it leaves as it was, and what it refuses."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pulumi_aws as aws
import pytest

from stacks.aws.existing import ExistingNetworkError
from stacks.cost.estimate import estimate
from stacks.errors import SettingsError
from stacks.rehearsal import monitor
from stacks.rehearsal.bucket_policies import conditions_left_out
from stacks.rehearsal.clients import RegionClients
from stacks.rehearsal.errors import CreationError
from stacks.rehearsal.moto_server import moto_server
from stacks.rehearsal.program import Rehearsed
from stacks.settings import Stack
from stacks.settings.quantities import CostKind
from tests.rehearsal.deletions import DELETERS
from tests.rehearsal.destroy import destroy
from tests.stacks.edits import EXISTING
from tests.stacks.examples import pool, stack
from tests.stacks.existing import answering, lead_out
from tests.stacks.registrations import run
from tests.stacks.standing import standing

REGION, CIDR = "us-east-1", "172.20.0.0/16"
ZONES = (f"{REGION}a", f"{REGION}b")
# Whatever a network is made of; of these the stack declares none but its own groups, and endpoints if asked.
OF_A_NETWORK = {
    *("aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet", "aws:ec2/routeTable:RouteTable", "aws:ec2/route:Route"),
    *("aws:ec2/routeTableAssociation:RouteTableAssociation", "aws:ec2/internetGateway:InternetGateway"),
    *("aws:ec2/natGateway:NatGateway", "aws:ec2/eip:Eip", "aws:ec2/flowLog:FlowLog"),
    *("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", "aws:ec2/vpcEndpoint:VpcEndpoint"),
}


def foreign_vpc() -> dict[str, Any]:
    """A VPC with a private subnet in each zone, made by hand; what `network.existing` says of it."""
    ec2 = boto3.client("ec2", region_name=REGION)
    vpc = ec2.create_vpc(CidrBlock=CIDR)["Vpc"]["VpcId"]
    subnets = {
        zone: ec2.create_subnet(VpcId=vpc, CidrBlock=f"172.20.{number}.0/24", AvailabilityZone=zone)
        for number, zone in enumerate(ZONES)
    }
    lead_out(vpc, subnets[ZONES[0]]["Subnet"]["SubnetId"])
    return {
        "vpc_id": vpc,
        "subnets": {zone: subnet["Subnet"]["SubnetId"] for zone, subnet in subnets.items()},
    }


def within(existing: dict[str, Any], **network: Any) -> Stack:
    pools = [pool(), pool(name="cluster", types=["p4d.24xlarge"], efa=True)]
    section = {"zones": list(ZONES), "existing": existing} | network
    return stack("guest", network=section, pools=pools, storage={"home": True})


def of_the_vpc() -> dict[str, Any]:
    """All of the owner's, as EC2 tells it; without the groups that the stack may add."""
    ec2 = boto3.client("ec2", region_name=REGION)
    return {
        "vpcs": ec2.describe_vpcs()["Vpcs"],
        "subnets": [
            {key: value for key, value in subnet.items() if key != "AvailableIpAddressCount"}
            for subnet in ec2.describe_subnets()["Subnets"]
        ],
        "tables": ec2.describe_route_tables()["RouteTables"],
        "gateways": ec2.describe_internet_gateways()["InternetGateways"],
        "nat": ec2.describe_nat_gateways()["NatGateways"],
        "logs": ec2.describe_flow_logs()["FlowLogs"],
        "default": [group for group in groups_of_ec2() if group["GroupName"] == "default"],
    }


def groups_of_ec2() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = boto3.client("ec2", region_name=REGION).describe_security_groups()[
        "SecurityGroups"
    ]
    return found


@dataclass(frozen=True)
class Guest:
    """A stack in an existing VPC, in moto; what the VPC was before, and after."""

    existing: dict[str, Any]
    rehearsed: Rehearsed
    before: dict[str, Any]
    after: dict[str, Any]


def in_a_foreign_vpc() -> Guest:
    existing = foreign_vpc()
    before = of_the_vpc()
    return Guest(existing, run(within(existing)), before, of_the_vpc())


@pytest.fixture
def guest() -> Iterator[Guest]:
    with conditions_left_out(), standing("in a foreign VPC", REGION, in_a_foreign_vpc) as made:
        yield made


def test_an_up_changes_nothing_of_the_vpc(guest):
    assert guest.after == guest.before
    assert {resource.type for resource in guest.rehearsed.resources} & OF_A_NETWORK == set()


def test_groups_start_instances_in_the_named_subnets_under_groups_of_the_vpc(guest):
    groups = guest.rehearsed.of_type("aws:autoscaling/group:Group")
    used = {subnet for group in groups for subnet in group.inputs["vpcZoneIdentifiers"]}
    added = [group for group in groups_of_ec2() if group["GroupName"] != "default"]

    assert used == set(guest.existing["subnets"].values())
    assert len(added) == 3  # two pools and the homes
    assert {resource["VpcId"] for resource in added} == {guest.existing["vpc_id"]}


def test_homes_are_mounted_in_the_named_subnets(guest):
    targets = guest.rehearsed.of_type("aws:efs/mountTarget:MountTarget")

    assert [target.inputs["subnetId"] for target in targets] == list(guest.existing["subnets"].values())


def test_instances_ask_the_resolver_of_the_vpc_that_was_found(guest):
    rules = guest.rehearsed.of_type("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")
    asked = {rule.inputs["cidrIpv4"] for rule in rules if rule.inputs.get("fromPort") == 53}

    assert asked == {CIDR}


def test_outputs_name_what_is_used(guest):
    outputs = guest.rehearsed.outputs

    assert outputs["vpc_id"] == guest.existing["vpc_id"]
    assert outputs["private_subnet_ids"] == guest.existing["subnets"]


def test_a_destroy_leaves_the_vpc_and_takes_the_stacks_groups(guest):
    clients = RegionClients(REGION)
    first = destroy(guest.rehearsed.registrations, clients, DELETERS)
    for bucket in boto3.resource("s3", region_name=REGION).buckets.all():
        bucket.object_versions.delete()
    destroy(first.left, clients, DELETERS)
    clients.pool.close()

    assert of_the_vpc() == guest.before
    assert [group["GroupName"] for group in groups_of_ec2() if group["GroupName"] != "default"] == []


def registered(monkeypatch, register, settings: Stack, **of_subnets: Any) -> Rehearsed:
    monkeypatch.setattr(monitor, "answer", answering(**vars_of(settings), **of_subnets))
    return register(settings)


def vars_of(settings: Stack) -> dict[str, Any]:
    existing = settings.network.existing
    assert existing is not None
    return {"vpc": existing.vpc_id, "subnets": existing.subnets}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            {"vpcId": "vpc-0ffffffffffffffff"},
            "lies in vpc-0ffffffffffffffff; must lie in vpc-0123456789abcdef0",
        ),
        ({"availabilityZone": "us-east-1f"}, "lies in us-east-1f; must lie in us-east-1"),
        ({"mapPublicIpOnLaunch": True}, "gives instances public addresses; must be a private subnet"),
        (
            {"cidrBlock": "10.77.0.0/30"},
            "10.77.0.0/30 has 0 addresses for instances; groups of that zone need 2",
        ),
    ],
)
def test_a_preview_refuses_a_subnet_that_is_not_what_the_file_says(found, says, monkeypatch, register):
    with pytest.raises(ExistingNetworkError) as caught:
        registered(monkeypatch, register, within(EXISTING), **found)

    assert "network.existing.subnets.us-east-1" in str(caught.value)
    assert says in str(caught.value)


LOCAL = {"cidrBlock": "10.77.0.0/16", "gatewayId": "local"}


@pytest.mark.parametrize(
    ("routes", "says"),
    [
        ([], "has no route to 0.0.0.0/0; network.existing.internet is true"),
        ([LOCAL], "has no route to 0.0.0.0/0"),
        (
            [LOCAL, {"cidrBlock": "0.0.0.0/0", "gatewayId": "igw-0123456789abcdef0"}],
            "reaches 0.0.0.0/0 by igw-0123456789abcdef0, which answers public addresses alone",
        ),
    ],
)
def test_a_preview_refuses_a_vpc_whose_routes_lead_no_instance_out(routes, says, monkeypatch, register):
    with pytest.raises(ExistingNetworkError) as caught:
        registered(monkeypatch, register, within(EXISTING), routes=routes)

    assert "network.existing.subnets.us-east-1a" in str(caught.value)
    assert says in str(caught.value)


def test_a_transit_gateway_is_a_way_out_and_without_internet_no_route_is_asked_for(monkeypatch, register):
    transit = {"cidrBlock": "0.0.0.0/0", "transitGatewayId": "tgw-0123456789abcdef0"}
    closed = within(EXISTING | {"internet": False}, interface_endpoints=True)

    assert registered(monkeypatch, register, within(EXISTING), routes=[LOCAL, transit]).resources
    assert registered(monkeypatch, register, closed, routes=[LOCAL]).resources


def test_a_vpc_that_is_not_there_ends_the_program():
    with moto_server(REGION), pytest.raises(CreationError, match="InvalidVpcID"):
        run(within(EXISTING))


def test_what_the_provider_says_of_a_lookup_is_reported_with_its_key(monkeypatch, register):
    def failing(**_: Any) -> None:
        raise Exception("invoke of aws:ec2/getVpc:getVpc failed: no matching EC2 VPC found")

    monkeypatch.setattr(aws.ec2, "get_vpc", failing)
    with pytest.raises(
        ExistingNetworkError, match=r"network\.existing\.vpc_id = 'vpc-0.*no matching EC2 VPC"
    ):
        register(within(EXISTING))


def test_endpoints_come_only_if_asked(monkeypatch, register):
    found = registered(monkeypatch, register, within(EXISTING, interface_endpoints=True))
    endpoints = found.of_type("aws:ec2/vpcEndpoint:VpcEndpoint")

    assert {endpoint.inputs["vpcEndpointType"] for endpoint in endpoints} == {"Interface"}
    assert {endpoint.inputs["vpcId"] for endpoint in endpoints} == {EXISTING["vpc_id"]}


def test_without_a_way_out_instances_reach_s3_alone_and_take_wheels_from_the_bucket(monkeypatch, register):
    found = registered(monkeypatch, register, within({**EXISTING, "internet": False}))
    rules = found.of_type("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")

    assert [rule for rule in rules if rule.inputs.get("cidrIpv4") == "0.0.0.0/0"] == []
    assert {rule.inputs["prefixListId"] for rule in rules if "prefixListId" in rule.inputs} == {
        "pl-0123456789abcdef0"
    }


def test_a_stack_in_an_existing_vpc_pays_for_no_gateway_and_no_flow_log():
    settings = within(EXISTING)
    own_log_alone = {line.kind for line in estimate(settings).lines}
    settings = replace(settings, logs=replace(settings.logs, instances=False))
    kinds = {line.kind for line in estimate(settings).lines}

    assert own_log_alone & {CostKind.NAT, CostKind.LOGS} == {CostKind.LOGS}
    assert kinds & {CostKind.NAT, CostKind.LOGS} == set()
    assert CostKind.STORAGE in kinds


def refusal(**network: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        within(**({"existing": EXISTING} | network))
    return str(caught.value)


A, B = EXISTING["subnets"].values()


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (
            {"cidr": "10.0.0.0/16"},
            "network.cidr = '10.0.0.0/16': is of a network that the stack makes; leave it out where "
            "network.existing names a VPC",
        ),
        (
            {"existing": None},
            "network.cidr = None: required, and missing, unless network.existing names a VPC",
        ),
        (
            {"nat": "none"},
            "network.nat = 'none': is of a network that the stack makes; say network.existing.internet",
        ),
        ({"peers": ["10.9.0.0/16"]}, "network.peers = ['10.9.0.0/16']: is of a network that the stack makes"),
        ({"s3_buckets": ["open-*"]}, "network.s3_buckets = ['open-*']: is of a network that the stack makes"),
        (
            {"existing": EXISTING | {"vpc_id": "vpc-guest"}},
            "network.existing.vpc_id = 'vpc-guest': must be the id of a VPC of aws, such as",
        ),
        (
            {"existing": EXISTING | {"subnets": {ZONES[0]: A, ZONES[1]: "vsw-1"}}},
            "network.existing.subnets.us-east-1b = 'vsw-1': must be the id of a subnet of aws",
        ),
        (
            {"existing": EXISTING | {"subnets": {ZONES[0]: A}}},
            "network.existing.subnets.us-east-1b = None: required, and missing: network.zones names the zone",
        ),
        (
            {"existing": EXISTING | {"subnets": EXISTING["subnets"] | {"us-east-1c": "subnet-0123abcd"}}},
            "network.existing.subnets.us-east-1c = 'subnet-0123abcd': of no zone in use; network.zones are "
            "us-east-1a, us-east-1b",
        ),
        (
            {"existing": EXISTING | {"subnets": dict.fromkeys(ZONES, A)}},
            f"network.existing.subnets = '{A}': given to 2 zones; a subnet lies in one",
        ),
        (
            {"existing": EXISTING | {"vpc": "x"}},
            "network.existing.vpc = 'x': unknown key; did you mean 'vpc_id'?",
        ),
        (
            {"existing": {"vpc_id": EXISTING["vpc_id"]}},
            "network.existing.subnets = None: required, and missing",
        ),
        (
            {"existing": "vpc-1"},
            "network.existing = 'vpc-1': must be a mapping with the keys vpc_id, subnets",
        ),
    ],
)
def test_a_bad_input_is_refused_with_key_value_and_what_is_allowed(network, says):
    assert says in refusal(**network)
