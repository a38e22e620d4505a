"""Networks, pools, markets and money on Alibaba Cloud; and that whatever is valid builds."""

import base64
import json

import pytest
from hypothesis import given, settings

from image.capacity.model import STATE
from image.reaper.money import budget_check
from image.reaper.sweep import lease
from stacks import catalog
from stacks.payload.sweep_archive import policy_document
from stacks.settings import stack_files
from stacks.settings.pools import group_plans
from tests.stacks.alicloud_examples import pool, priced, stack
from tests.stacks.alicloud_programs import inputs, register, shipped
from tests.stacks.alicloud_shapes import stack_files_of_any_shape
from tests.stacks.registrations import declared

GROUP = "alicloud:ess/scalingGroup:ScalingGroup"
TEMPLATE = "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"


def test_a_pool_on_demand_starts_what_it_prefers_where_it_prefers():
    found = declared(stack(pools=[pool(types=["ecs.gn7i-c8g1.2xlarge", "ecs.gn7i-c16g1.4xlarge"])]))

    (group,) = inputs(found, GROUP)
    assert group["multiAzPolicy"] == "PRIORITY"
    assert group["launchTemplateVersion"] == "Latest"
    assert [override["instanceType"] for override in group["launchTemplateOverrides"]] == [
        "ecs.gn7i-c8g1.2xlarge",
        "ecs.gn7i-c16g1.4xlarge",
    ]
    assert [resource["spotStrategy"] for resource in inputs(found, TEMPLATE)] == ["NoSpot"]


@pytest.mark.parametrize("falls_back", [False, True])
def test_a_spot_pool_buys_the_cheapest_and_on_demand_only_where_the_stack_says_so(falls_back):
    found = declared(stack(pools=[pool(market="spot", on_demand_base=1, on_demand_fallback=falls_back)]))

    (group,) = inputs(found, GROUP)
    assert group["multiAzPolicy"] == "COST_OPTIMIZED"
    assert (group["onDemandBaseCapacity"], group["onDemandPercentageAboveBaseCapacity"]) == (1, 0)
    assert group["spotInstanceRemedy"] is True
    assert group["compensateWithOnDemand"] is falls_back
    assert [resource["spotStrategy"] for resource in inputs(found, TEMPLATE)] == ["SpotAsPriceGo"]


def test_a_spot_pool_with_a_limit_pays_no_more_for_any_type():
    found = declared(stack(pools=[pool(market="spot", spot_price_limit="4.25")]))

    (group,) = inputs(found, GROUP)
    assert [override["spotPriceLimit"] for override in group["launchTemplateOverrides"]] == [4.25]
    assert [resource["spotStrategy"] for resource in inputs(found, TEMPLATE)] == ["SpotWithPriceLimit"]


def test_an_erdma_pool_starts_from_a_configuration_with_an_erdma_interface():
    found = declared(stack(pools=[pool(types=["ecs.gn8v-8x.48xlarge"], erdma=True)]))

    (configuration,) = inputs(found, CONFIGURATION)
    (interface,) = configuration["networkInterfaces"]
    assert interface["networkInterfaceTrafficMode"] == "HighPerformance"
    assert "securityGroupIds" not in configuration
    assert "launchTemplateId" not in inputs(found, GROUP)[0]
    assert configuration["active"] is True
    assert configuration["enable"] is True


RESERVED = {
    "market": "reservation",
    "reservation_id": "eap-bp67acfmxazb40000000",
    "zones": ["cn-shenzhen-d"],
}


def test_a_reserved_pool_starts_in_its_private_pool_only():
    reserved = pool(**RESERVED)

    (configuration,) = inputs(declared(stack(pools=[reserved])), CONFIGURATION)

    assert configuration["resourcePoolOptionsStrategy"] == "PrivatePoolOnly"
    assert configuration["resourcePoolOptionsPrivatePoolIds"] == ["eap-bp67acfmxazb40000000"]


def test_a_configuration_without_erdma_names_its_group_where_the_provider_looks_before_it_creates_one():
    found = declared(stack(pools=[pool(**RESERVED)]))

    (configuration,) = inputs(found, CONFIGURATION)
    (group,) = found.of_type("alicloud:ecs/securityGroup:SecurityGroup")
    assert configuration["securityGroupIds"] == [group.id]
    assert "networkInterfaces" not in configuration


def test_a_pool_with_scratch_has_one_data_disk_and_another_none():
    with_scratch, without = (
        inputs(declared(stack(pools=[pool(**more)])), TEMPLATE)[0] for more in ({"scratch_gib": 400}, {})
    )

    assert [(disk["size"], disk["name"]) for disk in with_scratch["dataDisks"]] == [(400, "scratch")]
    assert without.get("dataDisks", []) == []


def test_an_interactive_pool_watches_its_load_with_the_numbers_of_aws():
    watched = {
        label: (alarm["comparisonOperator"], alarm["threshold"], alarm["period"] * alarm["evaluationCount"])
        for label in ("cpu-high", "gpu-memory-high", "cpu-low")
        for alarm in inputs(declared(stack()), "alicloud:ess/alarm:Alarm", name=f"-{label}")
    }

    assert watched == {
        "cpu-high": (">", "80", 300),
        "gpu-memory-high": (">", "85", 300),
        "cpu-low": ("<", "30", 600),
    }


def test_only_an_expected_number_that_reaches_the_cloud_is_registered():
    """The provider drops a 0 (GetOk, resource_alicloud_ess_scaling_group.go)."""
    found = declared(stack(pools=[pool(groups="per_zone", size={"min": 0, "desired": 1, "max": 2})]))

    assert [group.get("desiredCapacity") for group in inputs(found, GROUP)] == [1, None]


def test_an_update_leaves_the_instances_protected_that_are():
    """The provider reads them back into ``protected_instances``, and takes an absent one for nobody."""
    groups = declared(stack()).of_type(GROUP)

    assert ["protectedInstances" in group.ignored_changes for group in groups] == [True]


def test_the_alarm_on_the_agents_metric_names_the_group_that_instances_publish_into():
    found = declared(stack())

    (group,) = found.of_type("alicloud:cms/monitorGroup:MonitorGroup")
    (alarm,) = inputs(found, "alicloud:ess/alarm:Alarm", name="-gpu-memory-high")
    others = inputs(found, "alicloud:ess/alarm:Alarm", name="-cpu-")
    assert alarm["cloudMonitorGroupId"] == int(group.id)
    assert [other for other in others if "cloudMonitorGroupId" in other] == []
    assert f'monitor_group = "{group.id}"' in user_data(found)


def user_data(found):
    (template,) = inputs(found, TEMPLATE)
    return base64.b64decode(template["userData"]).decode()


def test_a_training_pool_does_not_scale_by_load():
    assert declared(stack(pools=[pool(purpose="training")])).of_type("alicloud:ess/alarm:Alarm") == ()


def test_full_gpus_of_a_pool_start_one_instance_however_many_groups_it_has():
    """The metric is the pool's, so an alarm on each group would start one in every zone."""
    found = declared(stack(pools=[pool(groups="per_zone")]))

    first, *others = found.of_type(GROUP)
    (full,) = inputs(found, "alicloud:ess/alarm:Alarm", name="-gpu-memory-high")
    assert others
    assert full["scalingGroupId"] == first.id


def test_each_group_of_a_pool_watches_its_own_processors():
    found = declared(stack(pools=[pool(groups="per_zone")]))

    groups = {group.id for group in found.of_type(GROUP)}
    for label in ("-cpu-high", "-cpu-low"):
        alarms = inputs(found, "alicloud:ess/alarm:Alarm", name=label)
        assert {alarm["scalingGroupId"] for alarm in alarms} == groups


def test_one_gateway_serves_every_zone():
    found = declared(stack())

    assert len(inputs(found, "alicloud:vpc/natGateway:NatGateway")) == 1
    assert len(inputs(found, "alicloud:vpc/snatEntry:SnatEntry")) == 2
    assert (
        len({resource["nexthopId"] for resource in inputs(found, "alicloud:vpc/routeEntry:RouteEntry")}) == 1
    )


def test_each_zone_of_production_routes_through_its_own_gateway():
    found = shipped("alicloud-prod")

    assert len(inputs(found, "alicloud:vpc/natGateway:NatGateway")) == 2
    assert (
        len({resource["nexthopId"] for resource in inputs(found, "alicloud:vpc/routeEntry:RouteEntry")}) == 2
    )
    assert len({resource["snatIp"] for resource in inputs(found, "alicloud:vpc/snatEntry:SnatEntry")}) == 2


def test_a_stack_without_nat_has_no_way_out_and_still_reaches_oss():
    found = register(
        stack(
            network={
                "cidr": "10.0.0.0/16",
                "zones": ["cn-shenzhen-d"],
                "nat": "none",
                "interface_endpoints": True,
            }
        )
    )

    assert inputs(found, "alicloud:vpc/natGateway:NatGateway") == []
    assert inputs(found, "alicloud:vpc/routeEntry:RouteEntry") == []
    (endpoint,) = inputs(found, "alicloud:vpc/gatewayEndpoint:GatewayEndpoint")
    assert endpoint["serviceName"] == "com.aliyun.cn-shenzhen.oss"


def test_each_threshold_alarms_at_its_share_of_the_month():
    recipients = {"monthly": 40000, "currency": "CNY", "recipients": ["a@b.org", "c@d.org"]}
    found = declared(stack(budget=recipients))

    alarms = {
        resource["name"]: resource
        for resource in inputs(found, "alicloud:cms/alarm:Alarm", name="-test-actual-")
    }
    assert {
        name.rpartition("-")[2]: alarm["escalationsCritical"]["threshold"] for name, alarm in alarms.items()
    } == {
        "80": "32000",
        "100": "40000",
    }
    assert {alarm["metric"] for alarm in alarms.values()} == {"MonthCost"}
    assert {alarm["project"] for alarm in alarms.values()} == {"acs_customMetric_1234567890123456"}
    contacts = inputs(found, "alicloud:cms/alarmContact:AlarmContact")
    assert [contact["channelsMail"] for contact in contacts] == ["a@b.org", "c@d.org"]


def test_a_mover_that_fails_three_times_on_end_is_reported():
    found = declared(stack())

    (alarm,) = inputs(found, "alicloud:cms/alarm:Alarm", name="capacity-errors")
    (function,) = inputs(found, "alicloud:fc/v3Function:V3Function", name="-capacity")
    assert (alarm["project"], alarm["metric"], alarm["period"]) == ("acs_fc", "FunctionFunctionErrors", 60)
    assert json.loads(alarm["metricDimensions"]) == [
        {"region": "cn-shenzhen", "functionName": function["functionName"]}
    ]
    assert alarm["escalationsCritical"] == {
        "statistics": "Value",
        "comparisonOperator": ">",
        "threshold": "0",
        "times": 3,
    }
    assert alarm["contactGroups"]


def test_every_state_that_is_written_under_a_number_expires():
    """OSS knows no condition in a bucket with versions, so that each state is an object of its own."""
    buckets = inputs(declared(stack()), "alicloud:oss/bucket:Bucket", name="records")

    rules = {rule["prefix"]: rule["expirations"] for rule in buckets[0]["lifecycleRules"]}
    for key in (lease.KEY, budget_check.KEY, STATE):
        assert rules[f"reaper/{key}."] == [{"days": 35}]


def test_a_contact_is_named_by_its_address_wherever_that_stands_in_the_list():
    """CloudMonitor overwrites a contact of the same name, and Pulumi deletes what was replaced last."""

    def names(*recipients):
        found = declared(stack(budget={"monthly": 40000, "currency": "CNY", "recipients": list(recipients)}))
        contacts = inputs(found, "alicloud:cms/alarmContact:AlarmContact")
        return {contact["channelsMail"]: contact["alarmContactName"] for contact in contacts}

    both, swapped, changed = names("a@b.org", "c@d.org"), names("c@d.org", "a@b.org"), names("e@f.org")

    assert swapped == both
    assert not set(changed.values()) & set(both.values())


def test_an_address_that_cloudmonitor_hides_until_it_is_confirmed_is_no_change():
    contacts = declared(stack()).of_type("alicloud:cms/alarmContact:AlarmContact")

    assert ["channelsMail" in contact.ignored_changes for contact in contacts] == [True]


def test_the_meter_counts_with_the_prices_of_the_catalog():
    made = stack(pools=[pool(), pool(name="big", types=["ecs.gn8v.4xlarge"])])

    pools = policy_document(made)["budget"]["pools"]

    assert pools["dev"]["on_demand"] == {"ecs.gn7i-c8g1.2xlarge": "9.532600"}
    assert pools["big"]["on_demand"] == {"ecs.gn8v.4xlarge": None}


def test_the_sweep_runs_as_often_as_the_settings_say():
    found = declared(stack(reaper={"every_minutes": 7}))

    (trigger,) = inputs(found, "alicloud:fc/v3Trigger:V3Trigger", name="-reaper")
    assert json.loads(trigger["triggerConfig"]) == {
        "cronExpression": "@every 7m",
        "enable": True,
        "payload": "{}",
    }
    limits = inputs(found, "alicloud:fc/v3ConcurrencyConfig:V3ConcurrencyConfig")
    assert {limit["reservedConcurrency"] for limit in limits} == {1}


def test_the_sweep_knows_the_prices_of_the_development_stack():
    found = stack_files.settings_of("alicloud-dev")

    kinds = {name for pool in found.pools for name in pool.types}
    regions = {catalog.load().get(name).price.region for name in kinds}

    assert regions == {found.region}


@given(stack_files_of_any_shape())
@settings(max_examples=30)
def test_the_groups_of_a_pool_hold_its_size_once(content):
    found = priced("test", content)

    for declared_pool in found.pools:
        plans = group_plans(found, declared_pool)
        assert sum(plan.size.desired for plan in plans) == declared_pool.size.desired
        assert sum(plan.size.min for plan in plans) == declared_pool.size.min
        assert {zone for plan in plans for zone in plan.zones} == set(found.zones_of(declared_pool))
