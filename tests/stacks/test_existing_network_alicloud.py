"""A stack in somebody else's VPC on Alibaba Cloud: what it adds, leaves and refuses."""

from dataclasses import replace
from typing import Any

import pulumi_alicloud as alicloud
import pytest

from stacks.alicloud.existing import ExistingNetworkError
from stacks.cost.estimate import estimate
from stacks.errors import SettingsError
from stacks.rehearsal import monitor
from stacks.rehearsal.program import Rehearsed
from stacks.settings import Stack
from stacks.settings.quantities import CostKind
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.alicloud_programs import inputs, register
from tests.stacks.edits import EXISTING_VSWITCHES as EXISTING
from tests.stacks.existing import NAT_ROUTE, alicloud_answering

D, E = "cn-shenzhen-d", "cn-shenzhen-e"
VPC, (IN_D, IN_E) = EXISTING["vpc_id"], EXISTING["subnets"].values()
# The CIDRs of its vSwitches, as the answers have them.
NETWORK_D, NETWORK_E = "10.77.0.0/24", "10.77.1.0/24"
RULE = "alicloud:ecs/securityGroupRule:SecurityGroupRule"
# Whatever a network is made of; of these the stack declares none but its own groups, and endpoints if asked.
OF_A_NETWORK = {
    *("alicloud:vpc/network:Network", "alicloud:vpc/switch:Switch", "alicloud:vpc/routeTable:RouteTable"),
    *("alicloud:vpc/routeTableAttachment:RouteTableAttachment", "alicloud:vpc/routeEntry:RouteEntry"),
    *("alicloud:vpc/natGateway:NatGateway", "alicloud:vpc/snatEntry:SnatEntry"),
    *("alicloud:vpc/gatewayEndpoint:GatewayEndpoint", "alicloud:vpc/flowLog:FlowLog"),
    *("alicloud:ecs/eipAddress:EipAddress", "alicloud:ecs/eipAssociation:EipAssociation"),
}
STORAGE = {"kms_instance_id": "kst-szh0000000000000000"}


def within(existing: Any = EXISTING, **changes: Any) -> Stack:
    network = {"zones": [D, E], "existing": existing} | changes.pop("network", {})
    return stack("guest", **{"network": network, "storage": STORAGE | {"home": True}} | changes)


def registered(monkeypatch, settings: Stack, **answers: Any) -> Rehearsed:
    found = alicloud_answering(EXISTING["vpc_id"], EXISTING["subnets"], **answers)
    monkeypatch.setattr(monitor, "answer", found)
    return register(settings)


def refused(monkeypatch, settings: Stack, **answers: Any) -> str:
    with pytest.raises(ExistingNetworkError) as caught:
        registered(monkeypatch, settings, **answers)
    return str(caught.value)


def test_nothing_of_the_vpc_is_declared(monkeypatch):
    found = registered(monkeypatch, within())

    assert {resource.type for resource in found.resources} & OF_A_NETWORK == set()


def test_groups_start_instances_in_the_named_vswitches_under_groups_of_the_vpc(monkeypatch):
    found = registered(monkeypatch, within())

    (group,) = inputs(found, "alicloud:ess/scalingGroup:ScalingGroup")
    assert group["vswitchIds"] == [IN_D, IN_E]
    added = inputs(found, "alicloud:ecs/securityGroup:SecurityGroup")
    assert {item["vpcId"] for item in added} == {VPC}
    assert {item["securityGroupType"] for item in added} == {"enterprise"}


def test_instances_of_one_job_reach_each_other_by_the_cidrs_of_the_vswitches_that_were_found(monkeypatch):
    found = registered(monkeypatch, within(pools=[pool(zones=[E])]))

    everything_open = [rule for rule in inputs(found, RULE) if rule["ipProtocol"] == "all"]
    assert {(rule["type"], rule["cidrIp"]) for rule in everything_open} == {
        ("ingress", NETWORK_E),
        ("egress", NETWORK_E),
    }


def test_homes_let_the_named_vswitches_in_and_stand_in_one_of_them(monkeypatch):
    found = registered(monkeypatch, within())

    allowed = inputs(found, "alicloud:nas/accessRule:AccessRule")
    assert {item["sourceCidrIp"] for item in allowed} == {NETWORK_D, NETWORK_E}
    (target,) = inputs(found, "alicloud:nas/mountTarget:MountTarget")
    assert (target["vpcId"], target["vswitchId"]) == (VPC, IN_D)


def test_outputs_name_what_is_used(monkeypatch):
    outputs = registered(monkeypatch, within()).outputs

    assert outputs["vpc_id"] == VPC
    assert outputs["private_subnet_ids"] == EXISTING["subnets"]


def test_all_that_is_wrong_is_one_message(monkeypatch):
    settings = within({**EXISTING, "vpc_id": "vpc-wz9000000000000000000"}, pools=[pool(zones=[D])])

    said = refused(monkeypatch, settings, routes=[], zoneId="cn-shenzhen-f", cidrBlock="10.77.0.0/30")

    assert said.splitlines() == [
        "network.existing.vpc_id = 'vpc-wz9000000000000000000': is not in cn-shenzhen, or not of account "
        "1234567890123456",
        *(
            f"network.existing.subnets.{zone} = '{vswitch}': {wrong}"
            for zone, vswitch in EXISTING["subnets"].items()
            for wrong in (
                f"lies in {VPC}; must lie in vpc-wz9000000000000000000",
                f"lies in cn-shenzhen-f; must lie in {zone}",
                "its route table vtb-wz9f0000000000000000 has no route to 0.0.0.0/0; "
                "network.existing.internet is true",
            )
        ),
        f"network.existing.subnets.{D} = '{IN_D}': 10.77.0.0/30 has 0 addresses for instances; groups of "
        "that zone need 2",
        "network.existing.subnets = '10.77.0.0/30, 10.77.0.0/30': have 0 addresses for instances together; "
        "full pools need 2",
    ]


def test_a_vswitch_of_another_region_or_account_is_refused(monkeypatch):
    elsewhere = {"vpc_id": VPC, "subnets": {D: IN_D, E: "vsw-bp1s5fnvk4gn2tws03624"}}

    assert refused(monkeypatch, within(elsewhere)) == (
        f"network.existing.subnets.{E} = 'vsw-bp1s5fnvk4gn2tws03624': is not in cn-shenzhen, or not of "
        "account 1234567890123456"
    )


@pytest.mark.parametrize(
    ("route", "says"),
    [
        ({"status": "Pending"}, "has no route to 0.0.0.0/0"),
        ({"nextHopType": "Ipv4Gateway"}, "leads to an IPv4 gateway, which answers public addresses alone"),
    ],
)
def test_a_way_out_must_serve_instances_without_a_public_address(route, says, monkeypatch):
    assert says in refused(monkeypatch, within(), routes=[NAT_ROUTE | route])


def test_without_internet_no_route_is_asked_for_and_no_rule_leads_out(monkeypatch):
    found = registered(monkeypatch, within({**EXISTING, "internet": False}), routes=[])

    assert [rule for rule in inputs(found, RULE) if rule["cidrIp"] == "0.0.0.0/0"] == []


def test_what_the_provider_says_of_a_lookup_is_reported_with_its_key(monkeypatch):
    def failing(**_: Any) -> None:
        raise Exception("invoke of alicloud:vpc/getNetworks:getNetworks failed: Forbidden.RAM")

    monkeypatch.setattr(alicloud.vpc, "get_networks", failing)
    with pytest.raises(ExistingNetworkError, match=r"network\.existing\.vpc_id = 'vpc-.*Forbidden\.RAM"):
        register(within())


def test_endpoints_come_only_if_asked(monkeypatch):
    endpoint = "alicloud:privatelink/vpcEndpoint:VpcEndpoint"

    assert inputs(registered(monkeypatch, within()), endpoint) == []
    asked = registered(monkeypatch, within(network={"interface_endpoints": True}))
    assert {resource["vpcId"] for resource in inputs(asked, endpoint)} == {VPC}


def test_a_stack_in_an_existing_vpc_pays_for_no_gateway_and_no_flow_log():
    settings = within()
    own_log_alone = {line.kind for line in estimate(settings).lines}
    settings = replace(settings, logs=replace(settings.logs, instances=False))
    kinds = {line.kind for line in estimate(settings).lines}

    assert own_log_alone & {CostKind.NAT, CostKind.LOGS} == {CostKind.LOGS}
    assert kinds & {CostKind.NAT, CostKind.LOGS} == set()


@pytest.mark.parametrize(
    ("existing", "says"),
    [
        (
            EXISTING | {"vpc_id": "vpc-X"},
            "network.existing.vpc_id = 'vpc-X': must be the id of a VPC of alicloud, such as",
        ),
        (
            EXISTING | {"subnets": {D: IN_D, E: "subnet-0123abcd"}},
            f"network.existing.subnets.{E} = 'subnet-0123abcd': must be the id of a vSwitch of alicloud",
        ),
        (EXISTING | {"subnets": {D: IN_D}}, f"network.existing.subnets.{E} = None: required, and missing"),
        (EXISTING | {"subnets": {D: IN_D, E: IN_D}}, f"'{IN_D}': given to 2 zones; a subnet lies in one"),
    ],
)
def test_a_bad_input_is_refused_with_key_value_and_what_is_allowed(existing, says):
    with pytest.raises(SettingsError) as caught:
        within(existing)

    assert says in str(caught.value)
