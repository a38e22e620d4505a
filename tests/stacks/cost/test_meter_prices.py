"""The declared meter of a stack: its prices, its alarms, and the rights of its freeze."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gpu_fleet_image.controllers.meter.meter import advance
from gpu_fleet_image.core import policy
from gpu_fleet_image.core.budget_policy import BudgetPolicy
from gpu_fleet_image.core.document import written
from gpu_fleet_image.core.model import TAG_POOL, Instance, Inventory
from gpu_fleet_stacks.cost import meter_prices
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.payload import sweep_policy
from gpu_fleet_stacks.settings import Market, Stack, stack_files
from gpu_fleet_stacks.settings.quantities import CostKind, Level
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks import alicloud_examples, examples
from tests.stacks.alicloud_programs import inputs
from tests.stacks.alicloud_programs import register as register_alicloud
from tests.stacks.shipped import SHIPPED

ALARM = "aws:cloudwatch/metricAlarm:MetricAlarm"
TRAIN = {"name": "train", "purpose": "training"}


def test_an_hour_at_worst_by_the_meter_is_an_hour_at_worst_by_the_estimate():
    stack = examples.stack(
        pools=[examples.pool(), examples.pool(name="cheap", market="spot", types=["g5.xlarge", "g6.xlarge"])]
    )

    document, cost = written(meter_prices.budget(stack)), estimate(stack)

    instances = Decimal(0)
    for pool in stack.pools:
        priced = document["pools"][pool.name]
        dearest = max(map(Decimal, priced["spot" if pool.market == "spot" else "on_demand"].values()))
        instances += pool.size.max * (dearest + Decimal(priced["disk_per_hour"]))
    worst = cost.hour(Level.MAX).worst.amount
    assert abs(instances + Decimal(document["shared_per_hour"]) - worst) < Decimal("0.0001")


@pytest.mark.parametrize("name", ["aws-prod", "local", "alicloud-prod"])
def test_a_month_of_the_meter_hour_by_hour_costs_the_hours_of_the_estimate(name):
    stack, begin = stack_files.settings_of(name), datetime(2027, 2, 1, tzinfo=UTC)
    budget, cost = meter_prices.budget(stack), estimate(stack)
    fleet = Inventory(tuple(_started(stack, budget, begin)))

    reading, _ = advance(None, fleet, budget, cost.currency, begin)
    for hour in range(1, 28 * 24):
        reading, _ = advance(reading, fleet, budget, cost.currency, begin + timedelta(hours=hour))

    expected = cost.hour(Level.NOW).worst.amount * (28 * 24 - 1)
    assert abs(reading.month_cost - expected) < Decimal("0.01")


def _started(stack: Stack, budget: BudgetPolicy, begin: datetime) -> Iterator[Instance]:
    """Yield the instances with which a stack starts, each of its pool's dearest type."""
    for pool in stack.pools:
        spot = pool.market is Market.SPOT
        kind = max(pool.types, key=lambda name: budget.price_of(pool.name, name, spot=spot) or 0)
        tags = {TAG_POOL: pool.name}
        for number in range(pool.size.desired):
            yield Instance(f"i-{pool.name}-{number}", kind, "running", begin, tags=tags, spot=spot)


def test_only_training_pools_freeze():
    stack = examples.stack(pools=[examples.pool(), examples.pool(**TRAIN)])

    pools = written(meter_prices.budget(stack))["pools"]

    assert {name: pool["freezes"] for name, pool in pools.items()} == {"dev": False, "train": True}


def test_what_a_capacity_block_prepaid_costs_nothing_by_the_hour_even_where_its_type_has_an_assumed_price():
    kind = "p5.48xlarge"
    held = {"reservation_id": "cr-0123456789abcdef0", "zones": ["eu-west-1a"]}
    block = examples.pool(market="capacity-block", types=[kind], **held)
    abroad = {"region": "eu-west-1", "network": {"cidr": "10.0.0.0/16", "zones": ["eu-west-1a"]}}
    assuming = examples.stack_file()["budget"] | {"assume": {kind: "63"}}

    alone = meter_prices.budget(examples.stack(pools=[block], **abroad))
    own = examples.pool(name="own", types=[kind])
    beside = meter_prices.budget(examples.stack(pools=[block, own], budget=assuming, **abroad))

    assert [written(budget)["pools"]["dev"]["on_demand"] for budget in (alone, beside)] == [{kind: "0"}] * 2
    assert (alone.pools["dev"].reserved, alone.lacks) == (2, ())
    assert [beside.price_of(pool, kind, spot=False) for pool in ("dev", "own")] == [0, 63]
    refused = examples.refusal(examples.stack_file(pools=[block], budget=assuming, **abroad))
    assert f"budget.assume.{kind} = '63': is used by prepaid capacity blocks alone" in refused


def test_the_meter_knows_each_reservation_s_count_end_and_group():
    held = [
        {"id": "cr-0123456789abcdef0", "zone": "us-east-1a", "count": 1},
        {"id": "cr-0123456789abcdef1", "zone": "us-east-1b", "count": 2, "until": "2027-03-31T11:30Z"},
    ]
    dev = examples.pool(market="reservation", types=["p5.48xlarge"], size={"max": 2}, reservations=held)

    found = written(meter_prices.budget(examples.stack(pools=[dev])))["pools"]["dev"]

    first, second = ({"id": each["id"], "group": f"gpu-fleet-test-dev-{each['id']}"} for each in held)
    assert found["reserved"] == 3
    assert found["reservations"] == [
        first | {"count": 1},
        second | {"count": 2, "until": "2027-03-31T11:30:00+00:00"},
    ]


def test_prices_are_shown_in_the_budgets_currency():
    budget = {"monthly": 100_000, "currency": "USD", "cny_per_usd": "7", "recipients": ["team@example.com"]}
    stack = alicloud_examples.stack(budget=budget)

    (price,) = written(meter_prices.budget(stack))["pools"]["dev"]["on_demand"].values()

    line = next(each_line for each_line in estimate(stack).lines if each_line.kind is CostKind.COMPUTE)
    assert Decimal(price) == pytest.approx(line.quotes[0].amount / 7, abs=Decimal("1e-6"))


def meter_alarms(found):
    own = [
        resource.inputs
        for resource in found.of_type(ALARM)
        if resource.inputs["metricName"].startswith("Month")
    ]
    return {(alarm["metricName"], alarm["threshold"]): alarm for alarm in own}


def test_each_threshold_has_an_alarm_on_the_meter_that_comes_within_a_quarter_of_an_hour(declared):
    budget = declared.settings.budget
    expected = {
        (
            {"actual": "MonthCost", "forecast": "MonthForecast"}[threshold.kind],
            budget.monthly * threshold.percent / 100,
        )
        for threshold in budget.thresholds
    }

    found = meter_alarms(declared)

    assert found.keys() == expected
    for alarm in found.values():
        assert alarm["namespace"] == f"GpuFleet/{declared.settings.name}"
        assert alarm["alarmActions"] == [declared.rehearsed.outputs["topic_arn"]]
        assert declared.settings.reaper.every_minutes * 60 + alarm["period"] <= 15 * 60
        # nothing new between two sweeps is no all-clear
        assert (alarm["treatMissingData"], alarm["evaluationPeriods"]) == ("ignore", 1)


def test_assumed_prices_stand_apart_from_those_of_a_list():
    kind = "ecs.gn8v-8x.48xlarge"
    pools = [alicloud_examples.pool(types=[kind]), alicloud_examples.pool(name="spot", market="spot")]
    budget = alicloud_examples.stack_file()["budget"] | {"assume": {kind: "400", "disk": "1.5"}}

    document = written(
        meter_prices.budget(from_mapping("test", alicloud_examples.stack_file(pools=pools, budget=budget)))
    )

    assert document["assumed"] == {kind: "400"}
    assert document["pools"]["dev"]["on_demand"] == {kind: None}
    assert Decimal(document["pools"]["dev"]["disk_per_hour"]) == round(Decimal(300) / 730, 6)


def test_a_limit_on_the_spot_price_lowers_no_assumed_price_since_its_currency_is_the_accounts():
    kind = "ecs.gn8v-8x.48xlarge"
    spot = alicloud_examples.pool(types=[kind], market="spot", spot_price_limit="2", size={"max": 1})
    stack = alicloud_examples.stack(pools=[spot])

    (line,) = estimate(stack).of_kind(CostKind.COMPUTE)

    metered = meter_prices.budget(stack).price_of("dev", kind, spot=True)
    assert (metered, line.months[Level.MAX].worst.amount) == (Decimal("2.5"), Decimal("2.5") * 730)


def test_the_meter_names_what_has_no_public_price_and_the_region_whose_prices_stand_in_for_its_own():
    free, priced = (stack_files.settings_of(name) for name in ("alicloud-prod", "aws-prod"))
    lacks = ("bucket_zone_redundant", "log", "nat_gateway", "nat_traffic", "public_address")

    assert meter_prices.budget(free).lacks == lacks
    assert (meter_prices.budget(priced).lacks, meter_prices.budget(priced).borrowed) == ((), ())
    assert meter_prices.budget(replace(priced, region="eu-central-1")).borrowed == ("us-east-1",)


def test_an_idle_instance_that_is_terminated_saves_its_assumed_price():
    kind = "ecs.gn8v-8x.48xlarge"
    settings = alicloud_examples.stack(pools=[alicloud_examples.pool(types=[kind])])

    document = written(sweep_policy.policy(settings))

    assert document["pools"]["dev"]["hourly_price"] == {kind: str(settings.budget.assume[kind])}


def test_running_instances_without_a_price_raise_an_alarm_on_aws(declared):
    alarms = [made.inputs for made in declared.of_type(ALARM)]
    (alarm,) = [alarm for alarm in alarms if alarm["metricName"] == "UnpricedInstances"]

    assert alarm["namespace"] == f"GpuFleet/{declared.settings.name}"
    assert (alarm["statistic"], alarm["comparisonOperator"]) == ("Maximum", "GreaterThanThreshold")
    assert (alarm["threshold"], alarm["treatMissingData"]) == (0, "ignore")
    assert alarm["alarmActions"] == [declared.rehearsed.outputs["topic_arn"]]


def test_running_instances_without_a_price_raise_an_alarm_on_alibaba_cloud():
    found = register_alicloud(alicloud_examples.stack())

    alarms = inputs(found, "alicloud:cms/alarm:Alarm")
    (alarm,) = [alarm for alarm in alarms if alarm["metric"] == "UnpricedInstances"]
    assert alarm["escalationsCritical"]["comparisonOperator"] == ">"
    assert alarm["escalationsCritical"]["threshold"] == "0"
    assert alarm["contactGroups"] == ["gpu-fleet-test"]


def test_the_sweep_reads_the_assumed_prices_of_every_shipped_stack():
    for name in SHIPPED:
        settings = stack_files.settings_of(name)

        read = policy.parse(sweep_policy.policy_text(settings))

        types = {kind for pool in settings.pools for kind in pool.types}
        assert read.budget.assumed == {
            kind: price for kind, price in settings.budget.assume.items() if kind in types
        }
