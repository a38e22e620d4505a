"""Needs of a run and the advice for it, compared with published runs and measured models."""

import json
import re
from dataclasses import replace
from decimal import Decimal

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.advise import offers as offers_module
from gpu_fleet_stacks.advise.__main__ import main
from gpu_fleet_stacks.advise.offers import VendorsError, of_type, offers, vendors
from gpu_fleet_stacks.advise.plan import GIB, HEADROOM, break_even_hours, facts, plan_of, plans, reserved
from gpu_fleet_stacks.advise.scorecard import UNITS, cards
from gpu_fleet_stacks.advise.work import LAYOUTS, Layout, Work, memory, shape_of, state_bytes
from tests.stacks.advise.measured_models import MODELS, measured
from tests.stacks.advise.published_runs import PUBLISHED

SEVEN = Work(7e9, "bf16", batch=32, sequence=2048, tokens=1.4e11, layers=32, width=4096)
SMALL = replace(SEVEN, parameters=124e6, tokens=2.5e9, layers=12, width=768)
LARGE = replace(SEVEN, parameters=70e9, batch=512, layers=80, width=8192)
PLAIN = Layout(sharded=False, checkpointed=False)


def test_the_time_of_a_published_run_is_advised_within_a_quarter():
    assert [
        f"{run.name}: {run.error:+.1%} against {run.source}" for run in PUBLISHED if abs(run.error) >= 0.25
    ] == []


def test_the_state_of_a_model_is_advised_within_a_tenth_of_what_it_takes_on_a_cpu():
    for parameters, found in map(measured, MODELS):
        assert state_bytes(parameters) == pytest.approx(found, rel=0.10)


def test_the_shape_of_a_known_model_comes_from_its_size():
    layers, width = shape_of(6.74e9)

    assert layers == pytest.approx(32, abs=1)
    assert width == pytest.approx(4096, rel=0.05)


def test_a_model_of_7e9_parameters_needs_a_hundred_gib_of_state_and_an_eighth_of_it_with_fsdp():
    plain = memory(SEVEN, PLAIN, gpus=8)
    sharded = memory(SEVEN, Layout(sharded=True, checkpointed=False), gpus=8)

    assert plain.weights + plain.gradients + plain.optimizer == 7e9 * 16
    assert sharded.weights == plain.weights / 8
    assert sharded.activations == plain.activations == 2048 * 4096 * 34 * 32


def test_recomputing_trades_memory_for_time():
    again = memory(SEVEN, Layout(sharded=False, checkpointed=True), gpus=1)

    assert again.activations == 2048 * 4096 * (2 * 32 + 34)


@given(parameters=st.floats(1e6, 1e12), gpus=st.integers(2, 512), longer=st.integers(1, 4096))
@settings(max_examples=60, deadline=None)
def test_memory_grows_with_the_model_and_the_sequence_and_never_with_the_number_of_gpus(
    parameters, gpus, longer
):
    layers, width = shape_of(parameters)
    work = Work(parameters, "bf16", 1, 128, 1e9, layers, width)

    for layout in LAYOUTS:
        here = memory(work, layout, gpus).total
        assert memory(replace(work, sequence=128 + longer), layout, gpus).total > here
        assert memory(replace(work, parameters=parameters * 2), layout, gpus).total > here
        assert memory(work, layout, gpus * 2).total <= here


def test_a_small_model_runs_on_one_card():
    assert {(plan.instances, plan.gpus) for plan in plans(SMALL)} == {(1, 1)}


def test_a_large_model_needs_a_cluster_of_instances_with_rdma():
    found = plans(LARGE)

    assert found
    assert max(plan.instances for plan in found) > 1
    assert all(plan.offer.joined for plan in found if plan.instances > 1)


def test_every_plan_fits_into_the_memory_of_its_gpus():
    found = [*plans(SMALL), *plans(SEVEN), *plans(LARGE)]

    assert all(plan.memory.total <= plan.offer.gpu_memory_gib * GIB * (1 - HEADROOM) for plan in found)


def test_the_cheapest_comes_first_within_each_currency_and_the_unknown_last():
    found = plans(SEVEN)

    prices = [plan.on_demand for plan in found]
    known = [price for price in prices if price is not None]
    assert prices == known + [None] * (len(prices) - len(known))
    assert [price.currency for price in known] == sorted((price.currency for price in known), reverse=True)
    for currency in ("CNY", "USD"):
        amounts = [price.amount for price in known if price.currency == currency]
        assert amounts
        assert amounts == sorted(amounts)


def test_a_hurry_takes_more_instances_and_keeps_its_day():
    offer = of_type(catalog.load().get("p5.48xlarge"))
    slow, fast = plan_of(SEVEN, offer, None), plan_of(SEVEN, offer, 10)

    assert (slow.instances, fast.instances) == (1, 4)
    assert slow.hours > 240 >= fast.hours


def test_turing_has_no_bf16_and_is_not_advised_for_it():
    assert not [plan for plan in plans(SMALL) if plan.offer.gpu_model == "T4"]
    assert [plan for plan in plans(replace(SMALL, precision="fp16")) if plan.offer.gpu_model == "T4"]


def test_a_reservation_pays_from_the_share_of_the_month_that_it_costs():
    assert break_even_hours(Decimal("0.4")) == 438
    assert break_even_hours(Decimal(0)) == 730


def test_every_named_gpu_of_the_catalog_has_a_peak_with_a_source():
    models = {kind.gpu_model for kind in catalog.load() if kind.gpu_model is not None}

    assert models <= facts()["peaks"].keys()
    assert all(entry["source"] for entry in facts()["peaks"].values())


def test_a_reservation_is_paid_for_whole_months_whether_used_or_not():
    plan = plan_of(SMALL, of_type(catalog.load().get("g5.xlarge")), None)
    short = replace(plan, hours=10.0)

    assert reserved(short, Decimal("0.4")).amount == Decimal("1.006") * Decimal("0.6") * 730
    assert reserved(replace(plan, hours=731.0), Decimal(0)).amount == Decimal("1.006") * 1460
    assert reserved(short, Decimal("0.4")) > short.on_demand


@given(hours=st.floats(1, 730), discount=st.decimals("0.01", "0.99", places=2))
@settings(max_examples=60, deadline=None)
def test_within_a_month_a_reservation_is_cheaper_exactly_from_the_break_even_on(hours, discount):
    offer = of_type(catalog.load().get("g5.xlarge"))
    plan = replace(plan_of(SMALL, offer, None), hours=hours)
    on_demand = offer.price.amount_per_hour * Decimal(hours)

    cheaper = reserved(plan, discount).amount < on_demand

    assert cheaper is (Decimal(hours) > break_even_hours(discount))


def test_other_vendors_stand_there_for_comparison_and_no_stack_can_name_them():
    others = [offer for offer in offers() if offer.comparison]

    assert {offer.vendor for offer in others} == {"azure", "tencent"}
    assert all(catalog.load().find(offer.name) is None for offer in others)
    assert {plan.offer.vendor for plan in plans(SMALL)} >= {"aws", "alicloud", "azure", "tencent"}


def test_every_number_about_a_vendor_has_a_source():
    found = [score for card in cards(Decimal("7.1")) for score in card.scores.values() if score is not None]

    assert len(found) > 12
    assert all(len(score.source) >= 10 for score in found)


def test_the_best_of_a_criterion_gets_its_whole_weight_and_no_other_more():
    for criterion, weight in vendors().weights.items():
        points = [card.scores[criterion].points for card in cards(Decimal("7.1")) if card.scores[criterion]]
        assert max(points) == pytest.approx(weight), criterion
        assert all(0 <= point <= weight + 1e-9 for point in points)


def test_a_number_without_a_source_counts_neither_way():
    tencent = next(card for card in cards() if card.title.startswith("Tencent"))

    assert tencent.scores["cost"] is None
    assert tencent.scores["service"] is None
    assert tencent.counted == 60
    assert tencent.total == pytest.approx(
        sum(score.points for score in tencent.scores.values() if score) / 60 * 100
    )


def test_yuan_are_compared_with_dollars_at_a_named_rate_only():
    def cost(rate):
        return next(card for card in cards(rate) if card.title == "Alibaba Cloud").scores["cost"]

    assert cost(None) is None
    assert cost(Decimal("7.1")).value == pytest.approx(cost(Decimal("14.2")).value * 2)


def test_the_dearest_arithmetic_scores_least():
    priced = [card.scores["cost"] for card in cards(Decimal("7.1")) if card.scores["cost"]]

    assert sorted(priced, key=lambda score: score.value) == sorted(priced, key=lambda score: -score.points)
    assert set(UNITS) == set(vendors().weights)


def test_a_bad_file_of_vendors_is_refused_with_the_place(tmp_path):
    for number, (old, new, message) in enumerate(
        (
            ("performance = 30", "performance = 31", "weights are 101 in all, must be 100"),
            ('title = "AWS"', "title = 7", "vendors.aws.title"),
            ("value = 3200", "value = -1", "vendors.azure.network.value"),
        )
    ):
        path = tmp_path / f"{number}.toml"
        path.write_text(offers_module.FILE.read_text().replace(old, new, 1))
        with pytest.raises(VendorsError, match=message):
            vendors(path)


def run(*arguments: str):
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "160"})


def test_the_command_ranks_what_finishes_and_says_what_the_budget_allows():
    flags = "--params 7e9 --precision bf16 --batch 32 --seq 2048 --days 10 --budget 20000"
    done = run(*flags.split())

    assert done.exit_code == 0
    assert "7e+09 parameters (33 layers of 4224), 1.4e+11 tokens" in done.output
    lines = [line for line in done.output.splitlines() if "p5.48xlarge" in line]
    assert "on spot" in lines[0]
    assert [cell.strip() for cell in lines[0].split("│")][1:4] == ["p5.48xlarge", "aws", "4"]
    assert "Tencent Cloud (comparison)" in done.output


def test_one_type_that_a_stack_can_use_is_recommended_and_filters_and_top_cut_the_ranking():
    flags = ("--params", "7e9", "--batch", "32", "--seq", "2048")
    document = json.loads(run(*flags, "--gpu", "h100", "--top", "1", "-o", "json").output)
    others = run(*flags, "--vendor", "azure")

    assert [plan["type"] for plan in document["plans"]] == ["p5.48xlarge"]
    assert document["recommended"] == "p5.48xlarge"
    assert "recommended: 1 x p6-b200.48xlarge (aws), " in run(*flags).output
    assert "recommended: none of these, since no stack can use them" in others.output


def test_a_filter_of_nothing_known_is_named_with_what_is_allowed():
    flags = ("--params", "7e9", "--batch", "32", "--seq", "2048")

    assert (
        "'--vendor': 'gcp'; allowed: alicloud, aws, azure, tencent" in run(*flags, "--vendor", "gcp").output
    )
    assert "'--gpu': 'X900'; allowed: a text in one of A10, " in run(*flags, "--gpu", "X900").output


def test_prices_are_dated_of_the_shown_rows_alone():
    done = run("--params", "7e9", "--batch", "32", "--seq", "2048", "--top", "2")

    dated = set(re.findall(r"^prices of ([\w-]+):", done.output, re.MULTILINE))
    assert len(dated) == 1


def test_no_plan_fits_by_a_discount_that_nobody_published():
    """The cheapest on demand is 34,942.46 USD; its spot price is unknown, and p5's is 0.48 of the list."""
    done = run("--params", "7e9", "--batch", "32", "--seq", "2048", "--days", "10", "--budget", "4000")

    assert done.exit_code != 0
    assert "--budget = 4,000.00 USD: nothing finishes for that" in done.output
    found = {plan.offer.name: plan for plan in plans(SEVEN, 10)}
    assert found["p6-b200.48xlarge"].spot is None
    assert found["p5.48xlarge"].spot.amount / found["p5.48xlarge"].on_demand.amount == pytest.approx(
        Decimal("0.48")
    )


def test_the_currency_of_the_budget_comes_first_and_old_prices_say_their_age():
    for currency in ("USD", "CNY"):
        known = [plan.on_demand.currency for plan in plans(SMALL, currency=currency) if plan.on_demand]
        assert known == sorted(known, key=lambda found: found != currency)

    done = run("--params", "1e8", "--batch", "8", "--seq", "512")
    assert re.search(r"prices of cn-shenzhen: 2024-10-09, \d+ days old; spot unknown", done.output)
    assert "prices of us-east-1: 2026-07-20" in done.output


def test_a_reservation_says_its_break_even_and_how_much_of_the_months_that_are_paid_is_used():
    done = run("--params", "1e8", "--batch", "8", "--seq", "512", "--reserved-discount", "0.4")

    assert "a reservation 40% below the price pays from 438 hours a month" in done.output
    assert "reserved" in done.output
    assert "1 month used" in " ".join(done.output.replace("│", "").split())
    assert "it is paid for whole months, used or not" in done.output


def test_what_cannot_be_is_said_in_one_message():
    for flags, message in {
        "--params many": "'many' must be a number of at least 1, such as 7e9",
        "--params 7e9 --budget 1": "--budget = 1.00 USD: nothing finishes for that",
        "--params 7e9 --days 0.01": "nothing known holds it and finishes in 0.01 days",
        "--params 7e9 --days nan": "'nan' must be a finite number",
        "--params 7e9 --reserved-discount nan": "'nan' must be a finite number",
    }.items():
        done = run(*flags.split(), "--batch", "32", "--seq", "2048")
        assert done.exit_code != 0
        assert message in done.output
        assert "Traceback" not in done.output


def test_the_command_scores_the_vendors_and_says_where_its_numbers_are_from():
    done = run("--params", "1e8", "--batch", "8", "--seq", "512", "--cny-per-usd", "7.1", "--sources")

    assert "performance 30" in done.output
    assert "Azure (comparison)" in done.output
    assert "Tencent Cloud (comparison), network: GT4.41XLARGE948, its row" in done.output
