"""What a run may cost, and what comes up: before anything is started."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_stacks.acceptance import evidence, on_instance, plan, variant
from gpu_fleet_stacks.acceptance.errors import AcceptanceError
from gpu_fleet_stacks.acceptance.on_instance import TrainerJob
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.catalog.money import Money
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.settings import Market, reader, stack_files
from gpu_fleet_stacks.settings.quantities import Level

JOB = TrainerJob("accept-x", "s3://b/spot/accept/x", 2, 3.0, on_gpu=False)


def small(name: str, kind: str | None = None, cap: str = "20"):
    raw, stack = stack_files.config_of(stack_files.path_of(name)), stack_files.settings_of(name)
    made = variant.config(raw, stack, variant.chosen_type(stack.cloud, kind), Decimal(cap))
    own = {
        key.removeprefix("gpu-fleet:"): value for key, value in made.items() if key.startswith("gpu-fleet:")
    }
    return reader.from_mapping(variant.name_of(name), own)


def test_the_variant_of_every_shipped_stack_is_valid_and_small():
    def kept(stack):
        return stack.account_id, stack.region, stack.image.parameter, stack.budget.recipients

    for name in ("aws-dev", "aws-prod"):
        made, real = small(name), stack_files.settings_of(name)
        pools = {pool.name: (pool.market, pool.size.max) for pool in made.pools}
        assert pools == {"people": (Market.ON_DEMAND, 1), "spot": (Market.SPOT, 1)}
        assert kept(made) == kept(real)
        assert made.name != real.name
        assert (made.protected, made.storage.home) == (False, False)


def test_both_pools_are_of_the_cheapest_type_that_the_bundled_image_runs_on_or_of_the_one_named():
    assert {pool.types for pool in small("aws-prod").pools} == {("g4dn.xlarge",)}
    assert {pool.types for pool in small("aws-dev", "g5.xlarge").pools} == {("g5.xlarge",)}
    for kind in ("g5.xlage", "ecs.gn7i-c8g1.2xlarge"):
        with pytest.raises(AcceptanceError, match=rf"--type '{kind}': no type of aws .* nearest are g"):
            variant.chosen_type(Cloud.AWS, kind)


def test_the_worst_case_is_every_instance_for_the_longest_run_and_what_is_paid_by_volume():
    made = small("aws-dev")
    found = plan.price(made)
    hour = estimate(made, plan.VOLUMES).hour(Level.MAX).worst

    assert found.hours * 3600 >= plan.longest_s() == plan.LONGEST_RUN_S + plan.TEARDOWN_S
    assert found.worst.amount == found.per_hour.amount * found.hours + found.once.amount
    # the estimate spreads a month's volume over its hours, the run pays all of it
    assert found.per_hour <= hour
    assert found.worst.amount > hour.amount * found.hours


SMALL = small("aws-dev")


def test_an_unpublished_price_is_refused_until_it_is_assumed(monkeypatch):
    real = estimate(SMALL, plan.VOLUMES)
    line = replace(real.lines[0], months=None, quotes=(replace(real.lines[0].quotes[0], amount=None),))
    monkeypatch.setattr(plan, "estimate", lambda stack, volumes: replace(real, lines=(line, *real.lines[1:])))

    with pytest.raises(AcceptanceError, match=r"no public price is known for g4dn\.xlarge"):
        plan.price(SMALL)
    assert plan.price(SMALL, Decimal(2)).per_hour.amount > 2


@given(st.decimals("0.01", "1000", places=2))
def test_a_plan_is_refused_exactly_when_its_worst_case_passes_the_cap(cap):
    found = plan.price(SMALL)
    try:
        plan.hold_to_cap(found, Money(cap, "USD"))
    except AcceptanceError:
        assert found.worst.amount > cap
    else:
        assert found.worst.amount <= cap


def test_every_step_has_a_deadline_an_action_and_needs_that_come_before_it():
    names = [step.name for step in plan.STEPS]

    assert len(set(names)) == len(names)
    for index, step in enumerate(plan.STEPS):
        assert step.deadline_s > 0
        assert set(step.needs) <= set(names[:index])


def test_spot_is_counted_at_the_price_on_demand():
    """The market may ask that much; nobody is promised a discount."""
    on_demand, spot = (plan.instance_hour(SMALL, "g4dn.xlarge", spot=value) for value in (False, True))

    assert spot == on_demand
    assert plan.instance_hour(SMALL, "p5.48xlarge", spot=False) is None


@given(st.sampled_from(["active", "inactive", "failed"]), st.integers(0, 10**6), st.booleans())
def test_what_a_unit_prints_is_read_back_and_what_it_never_prints_is_an_error(state, step, over):
    outcome = {"outcome": "finished", "step": step} if over else {}
    shown = f"ActiveState={state}\nResult=success\nNRestarts=0"
    parts = (shown, json.dumps(outcome) if over else "", json.dumps({"step": step}))

    found = on_instance.progress(f"\n{on_instance.MARK}\n".join(parts))

    assert (found.state, found.step, found.outcome) == (state, step, outcome)
    assert found.over is (over and state == "inactive")
    assert found.failed is (state == "failed")
    for printed in ("", "ActiveState=active", f"{on_instance.MARK}{on_instance.MARK}{{"):
        with pytest.raises((ValueError, KeyError)):
            on_instance.progress(printed)


def test_a_run_on_processors_hides_the_gpus_and_one_on_gpus_does_not():
    hidden, seen = (on_instance.start(replace(JOB, on_gpu=value), "[run]") for value in (False, True))

    assert len(hidden) != len(seen)


def test_the_account_is_hidden_wherever_it_stands(tmp_path):
    now = datetime(2026, 11, 21, tzinfo=UTC)
    names = "aws-dev", "aws-dev-accept", "aws", "us-east-1", "123456789012"
    made = evidence.Evidence(*names, now, "USD", Decimal(20), Decimal(9), [], {})
    made.notes.append("s3://gpu-fleet-aws-dev-accept-records-123456789012")

    written = evidence.write(made, tmp_path)

    assert all("123456789012" not in path.read_text() for path in written)
    assert all("-records-********9012" in path.read_text() for path in written)
