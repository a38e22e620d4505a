"""Pools on AWS: network cards, groups, markets, budget; every valid stack file builds."""

import pytest

from tests.stacks import clouds
from tests.stacks.examples import pool, stack
from tests.stacks.registrations import declared

GROUP = "aws:autoscaling/group:Group"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"


TRAIN = "-train-"


@pytest.fixture(scope="module")
def prod():
    return clouds.declared("aws-prod")


def test_a_p4d_instance_has_four_efa_interfaces_on_cards_zero_to_three(prod):
    (template,) = prod.inputs(TEMPLATE, name=TRAIN)
    cards = template["networkInterfaces"]

    assert [card["networkCardIndex"] for card in cards] == [0, 1, 2, 3]
    assert [card["deviceIndex"] for card in cards] == [0, 1, 1, 1]
    # all four carry EFA; those beside the first take no address of the subnet
    assert [card["interfaceType"] for card in cards] == ["efa", "efa-only", "efa-only", "efa-only"]
    group = prod.rehearsed.outputs["security_group_ids"]["train"]
    assert all(card["securityGroups"] == [group] for card in cards)


def test_a_p4d_pool_on_spot_has_one_group_a_zone_in_its_own_placement_group_and_buys_by_price(prod):
    groups = prod.inputs(GROUP, name=TRAIN)

    assert len(groups) == len(prod.settings.network.zones)
    assert len({group["placementGroup"] for group in groups}) == len(groups)
    for group in groups:
        assert len(group["vpcZoneIdentifiers"]) == 1
        bought = group["mixedInstancesPolicy"]["instancesDistribution"]
        assert bought["spotAllocationStrategy"] == "price-capacity-optimized"
        assert bought["onDemandPercentageAboveBaseCapacity"] == 0


@pytest.mark.parametrize("way", ["Ingress", "Egress"])
def test_instances_of_an_efa_pool_may_say_anything_to_one_another_both_ways(prod, way):
    group = prod.rehearsed.outputs["security_group_ids"]["train"]
    rules = prod.inputs(f"aws:vpc/securityGroup{way}Rule:SecurityGroup{way}Rule")

    own = [rule for rule in rules if rule["ipProtocol"] == "-1" and rule["securityGroupId"] == group]
    assert [rule["referencedSecurityGroupId"] for rule in own] == [group]


def test_each_zone_of_production_routes_through_its_own_gateway(prod):
    gateways = prod.inputs("aws:ec2/natGateway:NatGateway")

    assert len({gateway["subnetId"] for gateway in gateways}) == len(gateways)
    assert len(gateways) == len(prod.settings.network.zones)


@pytest.mark.parametrize(
    ("grouping", "spot"), [("single", ["train"]), ("per_zone", ["train-us-east-1a", "train-us-east-1b"])]
)
def test_a_spot_pool_that_may_fall_back_has_empty_groups_that_buy_on_demand(grouping, spot):
    pools = [pool(name="train", market="spot", groups=grouping, on_demand_base=1, on_demand_fallback=True)]

    groups = declared(stack(pools=pools)).of_type(GROUP)

    names = [group.name.removeprefix("gpu-fleet-test-") for group in groups]
    policies = [group.inputs["mixedInstancesPolicy"]["instancesDistribution"] for group in groups]
    bought = [policy["onDemandPercentageAboveBaseCapacity"] for policy in policies]
    assert names == [*spot, *(f"{label}-on-demand" for label in spot)]
    assert bought == [0] * len(spot) + [100] * len(spot)
    assert {group.inputs["desiredCapacity"] for group in groups[len(spot) :]} == {0}


ODCR = "arn:aws:resource-groups:us-east-1:123456789012:group/odcr"


@pytest.mark.parametrize(
    ("market", "by", "target", "options"),
    [
        ("capacity-block", "cr-0123456789abcdef0", "Id", {"marketType": "capacity-block"}),
        ("reservation", ODCR, "ResourceGroupArn", None),
    ],
)
def test_a_reservation_is_the_only_place_a_reserved_pool_starts_in(market, by, target, options):
    reserved = pool(types=["p5.48xlarge"], market=market, zones=["us-east-1a"], reservation_id=by)

    (template,) = declared(stack(pools=[reserved])).of_type(TEMPLATE)

    said = template.inputs["capacityReservationSpecification"]["capacityReservationTarget"]
    assert said == {f"capacityReservation{target}": by}
    assert template.inputs.get("instanceMarketOptions") == options


def test_each_of_several_reservations_has_a_group_in_its_zone_that_starts_nowhere_else():
    first, second = "cr-0123456789abcdef0", "cr-0123456789abcdef1"
    held = [{"id": first, "zone": "us-east-1b", "count": 2}, {"id": second, "zone": "us-east-1a", "count": 4}]
    size = {"min": 3, "desired": 3, "max": 5}
    reserved = pool(types=["p5.48xlarge"], market="reservation", reservations=held, size=size)

    found = declared(stack(pools=[reserved]))

    groups, templates = found.of_type(GROUP), {each.id: each.inputs for each in found.of_type(TEMPLATE)}
    targets = [
        templates[group.inputs["launchTemplate"]["id"]]["capacityReservationSpecification"]
        for group in groups
    ]
    sizes = [[group.inputs[key] for key in ("minSize", "desiredCapacity", "maxSize")] for group in groups]
    assert [group.name for group in groups] == [f"gpu-fleet-test-dev-{first}", f"gpu-fleet-test-dev-{second}"]
    assert [each["capacityReservationTarget"]["capacityReservationId"] for each in targets] == [first, second]
    assert sizes == [[2, 2, 2], [1, 1, 4]]
    assert [len(group.inputs["vpcZoneIdentifiers"]) for group in groups] == [1, 1]
    assert groups[0].inputs["vpcZoneIdentifiers"] != groups[1].inputs["vpcZoneIdentifiers"]


def test_the_budget_counts_what_credits_and_refunds_pay():
    (budget,) = declared(stack()).of_type("aws:budgets/budget:Budget")

    assert budget.inputs["costTypes"] == {"includeCredit": False, "includeRefund": False}


def test_a_stack_without_nat_has_endpoints_for_all_it_needs():
    network = {"cidr": "10.0.0.0/16", "zones": ["us-east-1a"], "nat": "none", "interface_endpoints": True}
    rehearsed = declared(stack(network=network))

    services = {
        resource.inputs["serviceName"].rpartition("us-east-1.")[2]
        for resource in rehearsed.of_type("aws:ec2/vpcEndpoint:VpcEndpoint")
    }
    named = {"ssm", "ssmmessages", "ec2messages", "logs", "ecr.api", "ecr.dkr", "monitoring", "ec2"}
    assert named | {"autoscaling", "sts", "kms", "elasticfilesystem", "s3"} <= services
    assert rehearsed.of_type("aws:ec2/natGateway:NatGateway") == ()


def test_each_rule_of_a_stack_without_nat_has_one_peer_also_with_a_pool_named_s3():
    network = {"cidr": "10.0.0.0/16", "zones": ["us-east-1a"], "nat": "none", "interface_endpoints": True}
    found = declared(stack(network=network, pools=[pool(), pool(name="s3")]))

    ways = (f"aws:vpc/securityGroup{way}Rule:SecurityGroup{way}Rule" for way in ("Ingress", "Egress"))
    rules = [rule.inputs for way in ways for rule in found.of_type(way)]
    peers = [rule.keys() & {"cidrIpv4", "prefixListId", "referencedSecurityGroupId"} for rule in rules]
    assert {len(each) for each in peers} == {1}
