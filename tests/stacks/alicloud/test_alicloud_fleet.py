"""Networks, pools, markets and costs on Alibaba Cloud; every valid stack file builds."""

import base64
import json

import pytest

from gpu_fleet_image.controllers.meter import budget_check
from gpu_fleet_image.controllers.sweep import lease
from gpu_fleet_image.core.capacity import STATE
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.settings import stack_files
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.alicloud_programs import VARIANTS, inputs, shipped
from tests.stacks.registrations import declared

GROUP = "alicloud:ess/scalingGroup:ScalingGroup"
TEMPLATE = "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"


def test_a_pool_on_demand_starts_what_it_prefers_where_it_prefers():
    types = ["ecs.gn7i-c8g1.2xlarge", "ecs.gn7i-c16g1.4xlarge"]
    found = declared(stack(pools=[pool(types=types)]))

    (group,) = inputs(found, GROUP)
    assert (group["multiAzPolicy"], group["launchTemplateVersion"]) == ("PRIORITY", "Latest")
    assert [override["instanceType"] for override in group["launchTemplateOverrides"]] == types
    assert [resource["spotStrategy"] for resource in inputs(found, TEMPLATE)] == ["NoSpot"]


@pytest.mark.parametrize(("limit", "strategy"), [(None, "SpotAsPriceGo"), ("4.25", "SpotWithPriceLimit")])
@pytest.mark.parametrize("falls_back", [False, True])
def test_a_spot_pool_buys_the_cheapest_and_on_demand_only_where_the_stack_says_so(
    falls_back, limit, strategy
):
    spot = {"on_demand_base": 1, "on_demand_fallback": falls_back, "spot_price_limit": limit}
    found = declared(stack(pools=[pool(market="spot", **spot)]))

    (group,) = inputs(found, GROUP)
    assert group["multiAzPolicy"] == "COST_OPTIMIZED"
    assert (group["onDemandBaseCapacity"], group["onDemandPercentageAboveBaseCapacity"]) == (1, 0)
    assert (group["spotInstanceRemedy"], group["compensateWithOnDemand"]) == (True, falls_back)
    limits = [override.get("spotPriceLimit") for override in group["launchTemplateOverrides"]]
    assert limits == [limit and float(limit)]
    assert [resource["spotStrategy"] for resource in inputs(found, TEMPLATE)] == [strategy]


def test_an_erdma_pool_starts_from_a_configuration_with_an_erdma_interface():
    found = declared(stack(pools=[pool(types=["ecs.gn8v-8x.48xlarge"], erdma=True)]))

    (configuration,) = inputs(found, CONFIGURATION)
    (interface,) = configuration["networkInterfaces"]
    assert interface["networkInterfaceTrafficMode"] == "HighPerformance"
    assert "securityGroupIds" not in configuration
    assert "launchTemplateId" not in inputs(found, GROUP)[0]
    assert configuration["active"] is True
    assert configuration["enable"] is True


def test_a_reserved_pool_starts_in_its_private_pool_only_from_a_configuration_that_names_its_group():
    """The provider checks this before it creates a configuration without an eRDMA interface."""
    by = {"reservation_id": "eap-bp67acfmxazb40000000", "zones": ["cn-shenzhen-d"]}
    found = declared(stack(pools=[pool(market="reservation", **by)]))

    (configuration,) = inputs(found, CONFIGURATION)
    (group,) = found.of_type("alicloud:ecs/securityGroup:SecurityGroup")
    assert configuration["resourcePoolOptionsStrategy"] == "PrivatePoolOnly"
    assert configuration["resourcePoolOptionsPrivatePoolIds"] == [by["reservation_id"]]
    assert configuration["securityGroupIds"] == [group.id]
    assert "networkInterfaces" not in configuration


def test_each_of_several_private_pools_has_a_group_of_its_own():
    zones = {"eap-1a": "cn-shenzhen-e", "crp-1b": "cn-shenzhen-d"}
    held = [{"id": name, "zone": zone, "count": 1} for name, zone in zones.items()]

    found = declared(stack(pools=[pool(market="reservation", reservations=held)]))

    made = {each.inputs["scalingGroupId"]: each.inputs for each in found.of_type(CONFIGURATION)}
    groups = found.of_type(GROUP)
    assert [group.name for group in groups] == [f"gpu-fleet-test-dev-{name}" for name in zones]
    pools = [made[group.id]["resourcePoolOptionsPrivatePoolIds"] for group in groups]
    assert pools == [[name] for name in zones]
    assert len({tuple(group.inputs["vswitchIds"]) for group in groups}) == 2


def test_a_pool_with_scratch_has_one_data_disk_and_another_none():
    with_scratch, without = (
        inputs(declared(stack(pools=[pool(**more)])), TEMPLATE)[0] for more in ({"scratch_gib": 400}, {})
    )

    assert [(disk["size"], disk["name"]) for disk in with_scratch["dataDisks"]] == [(400, "scratch")]
    assert without.get("dataDisks", []) == []


def test_only_an_expected_number_that_reaches_the_cloud_is_registered():
    """The provider drops a 0 (GetOk, resource_alicloud_ess_scaling_group.go)."""
    found = declared(stack(pools=[pool(groups="per_zone", size={"min": 0, "desired": 1, "max": 2})]))

    assert [group.get("desiredCapacity") for group in inputs(found, GROUP)] == [1, None]


def test_an_update_leaves_the_instances_protected_that_are():
    """The provider reads them into ``protected_instances``; an absent value would remove the protection."""
    groups = declared(stack()).of_type(GROUP)

    assert ["protectedInstances" in group.ignored_changes for group in groups] == [True]


def test_the_alarm_on_the_agents_metric_names_the_group_that_instances_publish_into():
    found = declared(stack())

    (group,) = found.of_type("alicloud:cms/monitorGroup:MonitorGroup")
    (alarm,) = inputs(found, "alicloud:ess/alarm:Alarm", name="-gpu-high")
    others = inputs(found, "alicloud:ess/alarm:Alarm", name="-cpu-")
    assert alarm["cloudMonitorGroupId"] == int(group.id)
    assert [other for other in others if "cloudMonitorGroupId" in other] == []
    assert f'monitor_group = "{group.id}"' in user_data(found)


def user_data(found):
    (template,) = inputs(found, TEMPLATE)
    return base64.b64decode(template["userData"]).decode()


@pytest.mark.parametrize("gateways", [1, 2], ids=["one", "one a zone, as in production"])
def test_every_zone_routes_through_a_gateway(gateways):
    found = shipped("alicloud-prod") if gateways > 1 else declared(stack())
    entries = inputs(found, "alicloud:vpc/snatEntry:SnatEntry")
    hops = {route["nexthopId"] for route in inputs(found, "alicloud:vpc/routeEntry:RouteEntry")}

    assert len(inputs(found, "alicloud:vpc/natGateway:NatGateway")) == len(hops) == gateways
    assert len(entries) == 2
    assert len({entry["snatIp"] for entry in entries}) == gateways


def test_a_stack_without_nat_has_no_way_out_and_still_reaches_oss():
    found = declared(VARIANTS["NAT-less"])

    assert inputs(found, "alicloud:vpc/natGateway:NatGateway") == []
    assert inputs(found, "alicloud:vpc/routeEntry:RouteEntry") == []
    (endpoint,) = inputs(found, "alicloud:vpc/gatewayEndpoint:GatewayEndpoint")
    assert endpoint["serviceName"] == "com.aliyun.cn-shenzhen.oss"


def test_each_threshold_alarms_at_its_share_of_the_month():
    recipients = {"monthly": 40000, "currency": "CNY", "recipients": ["a@b.org", "c@d.org"]}
    found = declared(stack(budget=recipients))

    found_alarms = inputs(found, "alicloud:cms/alarm:Alarm", name="-test-actual-")
    alarms = {made["name"].rpartition("-")[2]: made for made in found_alarms}
    thresholds = {percent: made["escalationsCritical"]["threshold"] for percent, made in alarms.items()}
    assert thresholds == {"80": "32000", "100": "40000"}
    assert {alarm["metric"] for alarm in alarms.values()} == {"MonthCost"}
    assert {alarm["project"] for alarm in alarms.values()} == {"acs_customMetric_1234567890123456"}
    contacts = inputs(found, "alicloud:cms/alarmContact:AlarmContact")
    assert [contact["channelsMail"] for contact in contacts] == ["a@b.org", "c@d.org"]


def test_a_mover_that_fails_three_times_on_end_is_reported():
    found = declared(stack())

    (alarm,) = inputs(found, "alicloud:cms/alarm:Alarm", name="capacity-errors")
    (function,) = inputs(found, "alicloud:fc/v3Function:V3Function", name="-capacity")
    assert (alarm["project"], alarm["metric"], alarm["period"]) == ("acs_fc", "FunctionFunctionErrors", 60)
    place = {"region": "cn-shenzhen", "functionName": function["functionName"]}
    often = {"statistics": "Value", "comparisonOperator": ">", "threshold": "0", "times": 3}
    assert json.loads(alarm["metricDimensions"]) == [place]
    assert alarm["escalationsCritical"] == often
    assert alarm["contactGroups"]


def test_every_state_that_is_written_under_a_number_expires():
    """OSS has no conditional writes in a bucket with versions, so each state is a separate object."""
    buckets = inputs(declared(stack()), "alicloud:oss/bucket:Bucket", name="records")

    rules = {rule["prefix"]: rule["expirations"] for rule in buckets[0]["lifecycleRules"]}
    for key in (lease.KEY, budget_check.KEY, STATE):
        assert rules[f"reaper/{key}."] == [{"days": 35}]


def test_a_contact_is_named_by_its_address_wherever_that_stands_in_the_list():
    """CloudMonitor overwrites a contact of the same name, and Pulumi deletes replaced resources last."""

    def names(*recipients):
        found = declared(stack(budget={"monthly": 40000, "currency": "CNY", "recipients": list(recipients)}))
        contacts = found.of_type("alicloud:cms/alarmContact:AlarmContact")
        # which CloudMonitor hides until it is confirmed
        assert all("channelsMail" in contact.ignored_changes for contact in contacts)
        return {contact.inputs["channelsMail"]: contact.inputs["alarmContactName"] for contact in contacts}

    both, swapped, changed = names("a@b.org", "c@d.org"), names("c@d.org", "a@b.org"), names("e@f.org")

    assert swapped == both
    assert not set(changed.values()) & set(both.values())


def test_the_sweep_knows_the_prices_of_the_development_stack():
    found = stack_files.settings_of("alicloud-dev")
    known = catalog.load()

    kinds = {known.get(name) for pool in found.pools for name in pool.types}

    assert {kind.price.region for kind in kinds} == {found.region}


def test_the_sweep_runs_as_often_as_the_settings_say():
    found = declared(stack(reaper={"every_minutes": 7}))

    (trigger,) = inputs(found, "alicloud:fc/v3Trigger:V3Trigger", name="-reaper")
    said = {"cronExpression": "@every 7m", "enable": True, "payload": "{}"}
    assert json.loads(trigger["triggerConfig"]) == said
    limits = inputs(found, "alicloud:fc/v3ConcurrencyConfig:V3ConcurrencyConfig")
    assert {limit["reservedConcurrency"] for limit in limits} == {1}
