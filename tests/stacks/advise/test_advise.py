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
from gpu_fleet_stacks.advise import indicators, scorecard
from gpu_fleet_stacks.advise import offers as offers_module
from gpu_fleet_stacks.advise.__main__ import choice, main
from gpu_fleet_stacks.advise.demands import Demands, DemandsError, advice
from gpu_fleet_stacks.advise.offers import VendorsError, of_type, offers
from gpu_fleet_stacks.advise.plan import GIB, HEADROOM, affordable, break_even_hours, facts, plan_of, reserved
from gpu_fleet_stacks.advise.scorecard import AnswersError, SourcedFigure, answers, cards, load
from gpu_fleet_stacks.advise.work import LAYOUTS, Layout, Work, memory, shape_of, state_bytes
from gpu_fleet_stacks.catalog.money import Money
from tests.stacks.advise.measured_models import MODELS, measured
from tests.stacks.advise.published_runs import PUBLISHED, held_out_errors

SEVEN = Work(7e9, "bf16", batch=32, sequence=2048, tokens=1.4e11, layers=32, width=4096)
SMALL = replace(SEVEN, parameters=124e6, tokens=2.5e9, layers=12, width=768)
LARGE = replace(SEVEN, parameters=70e9, batch=512, layers=80, width=8192)
PLAIN = Layout(sharded=False, checkpointed=False)


def plans(work, days=None, currency="USD"):
    return list(advice(work, Demands(days), currency).plans)


def test_the_time_of_a_published_run_is_advised_within_a_quarter_and_the_error_on_unseen_ones_is_shown():
    wrong = [
        f"{run.name}: {run.error:+.1%} against {run.source}" for run in PUBLISHED if abs(run.error) >= 0.25
    ]
    shown = facts()["utilisation"]["held_out_error"]

    assert wrong == []
    assert max(map(abs, held_out_errors())) == pytest.approx(shown, abs=0.005)


def test_the_state_of_a_model_is_advised_within_a_tenth_of_what_it_takes_on_a_cpu():
    for parameters, found in map(measured, MODELS):
        assert state_bytes(parameters) == pytest.approx(found, rel=0.10)


def test_the_shape_of_a_known_model_comes_from_its_size():
    layers, width = shape_of(6.74e9)

    assert layers == pytest.approx(32, abs=1)
    assert width == pytest.approx(4096, rel=0.05)


def test_a_model_of_7e9_parameters_needs_a_hundred_gib_of_state_and_an_eighth_of_it_with_fsdp():
    plain = memory(SEVEN, PLAIN, gpus=8)
    sharded = memory(SEVEN, replace(PLAIN, sharded=True), gpus=8)
    recomputed = memory(SEVEN, replace(PLAIN, checkpointed=True), gpus=1)

    assert plain.weights + plain.gradients + plain.optimizer == 7e9 * 16
    assert sharded.weights == plain.weights / 8
    assert sharded.activations == plain.activations == 2048 * 4096 * 34 * 32
    assert recomputed.activations == 2048 * 4096 * (2 * 32 + 34)


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


def test_a_small_model_runs_on_one_card_and_a_large_one_on_a_cluster_of_instances_with_rdma():
    small, large = plans(SMALL), plans(LARGE)

    assert {(plan.instances, plan.gpus) for plan in small} == {(1, 1)}
    assert max(plan.instances for plan in large) > 1
    assert all(plan.offer.joined for plan in large if plan.instances > 1)
    for plan in [*small, *plans(SEVEN), *large]:
        assert plan.memory.total <= plan.offer.gpu_memory_gib * GIB * (1 - HEADROOM)


def test_the_cheapest_comes_first_within_each_currency_and_the_unknown_last():
    for currency in ("USD", "CNY"):
        prices = [plan.on_demand for plan in plans(SEVEN, currency=currency)]
        known = [price for price in prices if price is not None]
        assert prices == known + [None] * (len(prices) - len(known))
        assert {price.currency for price in known} == {"USD", "CNY"}
        assert known == sorted(known, key=lambda price: (price.currency != currency, price.amount))


def test_a_hurry_takes_more_instances_and_keeps_its_day():
    offer = of_type(catalog.load().get("p5.48xlarge"))
    slow, fast = plan_of(SEVEN, offer, None), plan_of(SEVEN, offer, 10)

    assert (slow.instances, fast.instances) == (1, 4)
    assert slow.hours > 240 >= fast.hours


def test_turing_has_no_bf16_and_is_not_advised_for_it():
    assert not [plan for plan in plans(SMALL) if plan.offer.gpu_model == "T4"]
    assert [plan for plan in plans(replace(SMALL, precision="fp16")) if plan.offer.gpu_model == "T4"]


def test_a_reservation_is_paid_for_whole_months_whether_used_or_not():
    plan = plan_of(SMALL, of_type(catalog.load().get("g5.xlarge")), None)
    short = replace(plan, hours=10.0)

    assert reserved(short, Decimal("0.4")).amount == Decimal("1.006") * Decimal("0.6") * 730
    assert reserved(replace(plan, hours=731.0), Decimal(0)).amount == Decimal("1.006") * 1460


def test_every_named_gpu_of_the_catalog_has_a_peak_with_a_source():
    models = {kind.gpu_model for kind in catalog.load() if kind.gpu_model is not None}

    assert models <= facts()["peaks"].keys()
    assert all(entry["source"] for entry in facts()["peaks"].values())


@given(hours=st.floats(1, 730), discount=st.decimals("0.01", "0.99", places=2))
@settings(max_examples=60, deadline=None)
def test_within_a_month_a_reservation_is_cheaper_exactly_from_the_break_even_on(hours, discount):
    offer = of_type(catalog.load().get("g5.xlarge"))
    plan = replace(plan_of(SMALL, offer, None), hours=hours)

    cheaper = reserved(plan, discount).amount < offer.price.amount_per_hour * Decimal(hours)

    assert cheaper is (Decimal(hours) > break_even_hours(discount))


def test_other_vendors_stand_there_for_comparison_and_no_stack_can_name_them():
    others = [offer for offer in offers() if offer.comparison]

    assert {offer.vendor for offer in others} == {"azure", "tencent"}
    assert all(catalog.load().find(offer.name) is None for offer in others)
    assert {plan.offer.vendor for plan in plans(SMALL)} >= {"aws", "alicloud", "azure", "tencent"}


RATE = Decimal("7.1")


def test_the_scorecard_has_five_dimensions_and_23_indicators_each_measured_dated_or_unknown():
    card = load()
    known = indicators.known(RATE)

    assert list(card.dimensions.values()) == [30, 25, 20, 15, 10]
    assert len(card.indicators) == 23
    assert sum(map(card.weight, card.indicators)) == pytest.approx(100)
    assert known.keys() <= card.indicators.keys()
    for name, indicator in card.indicators.items():
        assert name in known or indicator.how, f"{name}: nobody says how to know it"
        assert all(len(figure.source) >= 10 for figure in known.get(name, {}).values())


def test_no_vendor_has_all_points_and_what_is_unknown_leaves_a_span():
    for card in cards(indicators.known(RATE)):
        least, most = card.points()
        unknown = [name for name, score in card.scores.items() if score is None or score.points is None]
        assert most - least == pytest.approx(sum(map(load().weight, unknown)))
        assert least < 50


def test_an_indicator_that_is_known_of_one_vendor_counts_for_nobody_and_the_best_gets_the_weight():
    def points(indicator, **values):
        sourced = {name: SourcedFigure(value=value, source="somewhere") for name, value in values.items()}
        return {card.vendor: card.points()[0] for card in cards({indicator: sourced})}

    nobody = {"aws": 0, "azure": 0, "alicloud": 0, "tencent": 0}
    more, less = (load().weight(name) for name in ("tools", "egress_price"))

    assert points("tools", aws=4) == nobody
    assert points("tools", aws=4, azure=2) == nobody | {"aws": more, "azure": more / 2}
    assert points("egress_price", aws=2, azure=4) == nobody | {"aws": less, "azure": less / 2}


def test_yuan_are_compared_with_dollars_at_a_named_rate_only():
    def price(rate):
        return indicators.known(rate)["peak_price"].get("alicloud")

    assert price(None) is None
    assert price(RATE).value == pytest.approx(price(RATE * 2).value * 2)


def test_a_buyer_s_answers_replace_ours_and_add_vendors(tmp_path):
    file = tmp_path / "answers.toml"
    file.write_text("[aws]\ntools = 3\nscaling_nodes = 0.9\n[own]\nscaling_nodes = 0.45\n")

    listed = {card.vendor: card for card in cards(indicators.known(None, answers(file)))}

    assert listed["aws"].scores["tools"].figure.value == 3
    assert listed["own"].title == "own (yours)"
    assert listed["own"].scores["scaling_nodes"].points == load().weight("scaling_nodes") / 2
    assert listed["own"].scores["scaling_nodes"].figure.source == "your answer in answers.toml"


def test_answers_that_cannot_be_are_refused_by_name(tmp_path):
    file = tmp_path / "answers.toml"
    for text, said in (
        ("[aws]\nspeed = 1", r"aws\.speed is no indicator; allowed: all_reduce, bucket_price, "),
        ("[aws]\ntools = -1", r"aws\.tools = -1; allowed: a number of at least 0"),
        ("[aws]\ntools = nan", r"aws\.tools = nan; allowed: a number of at least 0"),
        ("[aws]\ntools = true", r"aws\.tools = True; allowed: a number"),
        ("tools = 3", r"tools = 3; allowed: a table \[tools\]"),
        ("[aws", r"--answers .*answers\.toml: "),
    ):
        file.write_text(text)
        with pytest.raises(AnswersError, match=said):
            answers(file)


def test_a_bad_file_of_vendors_or_indicators_is_refused_with_the_place(tmp_path):
    card, vendors = (load, scorecard.FILE), (offers_module.vendors, offers_module.FILE)
    for number, ((read, file), old, new, message) in enumerate(
        (
            (card, "performance = 30", "performance = 31", "weights are 101 in all, must be 100"),
            (card, "value = 3200", "value = -1", "values.fabric.azure.value"),
            (card, 'dimension = "cost"', 'dimension = "price"', "'price' has no weight"),
            (vendors, 'title = "AWS"', "title = 7", "vendors.aws.title"),
        )
    ):
        path = tmp_path / f"{number}.toml"
        path.write_text(file.read_text().replace(old, new, 1))
        with pytest.raises(VendorsError, match=message):
            read(path)


def test_a_price_of_another_region_is_unknown_and_what_is_not_there_is_left_out():
    found = advice(SEVEN, Demands(region="eu-central-1"), "USD")

    assert found.plans
    assert {plan.on_demand for plan in found.plans} == {None}
    assert not any(plan.offer.comparison for plan in found.plans)
    assert "Standard_ND96isr_H100_v5" in found.refused["not known to be sold in eu-central-1"]


def test_compliance_takes_the_regions_of_the_policy_pack():
    found = advice(SEVEN, Demands(compliance="hipaa"), "USD").plans
    refused = r"--region cn-shenzhen and --compliance gdpr; allowed: regions eu-\*"

    assert {plan.offer.price.region for plan in found if plan.offer.price} == {"us-east-1"}
    with pytest.raises(DemandsError, match=refused):
        advice(SEVEN, Demands(region="cn-shenzhen", compliance="gdpr"), "USD")


def test_data_lies_on_local_disks_where_it_fits_and_else_costs_a_disk():
    small = {plan.offer.name: plan for plan in advice(SMALL, Demands(data_gb=100), "USD").plans}
    large = {plan.offer.name: plan for plan in advice(SMALL, Demands(data_gb=10_000), "USD").plans}
    fast = advice(SMALL, Demands(data_gb=10_000, iops=9000), "USD")

    assert (small["g5.xlarge"].data_on, small["g5.xlarge"].data_cost) == ("local NVMe", None)
    plan = large["g5.xlarge"]
    months = Decimal(plan.hours) / 730
    assert plan.data_on == "disk"
    assert plan.data_cost.amount == pytest.approx(Decimal(10**13) / 2**30 * Decimal("0.08") * months)
    assert plan.on_demand == small["g5.xlarge"].on_demand + plan.data_cost
    assert "g5.xlarge" in fast.refused["data larger than its local NVMe, and 3000 IOPS of a volume"]
    with pytest.raises(DemandsError, match="--data-iops 9000: needs --data-gb"):
        advice(SMALL, Demands(iops=9000), "USD")


def test_several_instances_need_the_interconnect_that_is_asked_for_and_one_needs_none():
    large, small = (advice(work, Demands(interconnect_gbps=3200), "USD") for work in (LARGE, SMALL))
    reason = "less than 3200 Gbit/s between instances"

    assert all(plan.offer.network_gbps >= 3200 for plan in large.plans if plan.instances > 1)
    assert large.refused[reason]
    assert reason not in small.refused


def test_spot_is_budgeted_with_its_interruptions_and_is_not_in_time_if_they_make_it_late_or_are_unknown():
    offer = of_type(catalog.load().get("p5.48xlarge"))
    plan = plan_of(SEVEN, offer, 10)
    late = plan_of(SEVEN, offer, plan.hours / 24)
    unknown = plan_of(SEVEN, replace(offer, interruptions=None), 10)

    assert plan.spot_hours > plan.hours
    assert plan.spot_at_least, "AWS names no upper end of >20%"
    longer = Decimal(plan.spot_hours / plan.hours)
    assert plan.spot.amount / plan.on_demand.amount == pytest.approx(Decimal("0.48") * longer)
    for each, in_time, pays in ((plan, True, "on spot"), (late, False, "no"), (unknown, False, "no")):
        most = replace(each.spot, amount=each.spot.amount + 1)
        assert (each.in_time_on_spot, affordable(each, most)) == (in_time, pays)


def test_the_cheapest_within_the_budget_is_recommended_by_what_is_paid():
    found = plans(SEVEN, 10)
    by_budget = {most: choice(found, Money(Decimal(most), "USD")) for most in (30_000, 40_000, 10)}

    on_spot = by_budget[30_000]
    affordable_ones = [plan.spot.amount for plan in found if affordable(plan, on_spot.most) == "on spot"]
    assert on_spot.best.spot.amount == min(affordable_ones)
    assert on_spot.why().startswith("is the cheapest on spot of ")
    assert by_budget[40_000].best.offer.name == "p6-b200.48xlarge"
    assert by_budget[10].best is None


def test_a_plan_whose_disks_for_the_data_have_no_price_is_neither_best_nor_in_the_budget():
    """The disk of Alibaba Cloud has a price in another region than most of its types."""
    found = advice(SMALL, Demands(data_gb=5000), "CNY").plans
    lacking = [plan for plan in found if plan.lacks_data_cost]

    assert any(plan.on_demand and plan.on_demand.currency == "CNY" for plan in lacking)
    assert {affordable(plan, Money(Decimal(10**6), "CNY")) for plan in lacking} == {""}
    assert not choice(found, None).best.lacks_data_cost


def test_the_best_of_a_currency_is_not_said_to_be_cheaper_than_prices_in_another():
    found = plans(SMALL, currency="CNY")
    own = [plan for plan in choice(found, None).paid if plan.on_demand.currency == "CNY"]

    assert choice(found, None).why().startswith(f"is the cheapest on demand of {len(own)} in CNY; next is ")


RUN = ("--params", "7e9", "--batch", "32", "--seq", "2048")


def run(*arguments: str):
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "160"})


def test_the_command_ranks_what_finishes_and_says_what_the_budget_allows():
    done = run(*RUN, "--precision", "bf16", "--days", "10", "--budget", "20000")

    assert done.exit_code == 0
    assert "7e+09 parameters (33 layers of 4224), 1.4e+11 tokens" in done.output
    lines = [line for line in done.output.splitlines() if "p5.48xlarge" in line]
    assert "on spot" in lines[0]
    assert [cell.strip() for cell in lines[0].split("│")][1:4] == ["p5.48xlarge", "aws", "4"]
    assert "Tencent Cloud (comparison)" in done.output


def test_an_amount_of_nothing_or_of_too_much_is_refused_with_what_is_allowed():
    for flag, text, allowed in (
        ("--cny-per-usd", "0.0", "0.0 is not in the range 1<=x<=100"),
        ("--cny-per-usd", "1e+30", "1e+30 is not in the range 1<=x<=100"),
        ("--budget", "0.0", "0.0 is not in the range 0<x<=1000000000"),
        ("--budget", "1e+30", "1e+30 is not in the range 0<x<=1000000000"),
        ("--data-gb", "1e+30", "1e+30 is not in the range 0<x<=1000000000"),
        ("--tokens", "1e+30", "must be a number from 1 to 1e+18, such as 7e9"),
        ("--width", "1" + "0" * 400, "is not in the range 1<=x<=1000000000"),
    ):
        done = run(*RUN, flag, text)
        assert done.exit_code == 2
        assert f"Invalid value for '{flag}': " in done.output
        assert allowed in done.output


def test_one_type_that_a_stack_can_use_is_recommended_and_filters_and_top_cut_the_ranking():
    document = json.loads(run(*RUN, "--gpu", "h100", "--top", "1", "-o", "json").output)

    assert [plan["type"] for plan in document["plans"]] == ["p5.48xlarge"]
    assert document["recommended"] == "p5.48xlarge"
    assert document["why"].startswith("is the cheapest on demand of ")
    assert document["hours_error"] == 0.41
    assert len(document["scorecard"][0]["indicators"]) == 23


def test_what_is_recommended_or_why_nothing_is_is_said():
    for flags, says in {
        "": "recommended: 1 x p6-b200.48xlarge (aws), ",
        "--vendor azure": "recommended: none of these, since no stack can use them",
        "--region eu-central-1 --vendor aws": "since no public price on demand is known of those that",
        "--vendor alicloud --budget 20000": "since --budget pays for none that a stack can use",
    }.items():
        assert says in run(*RUN, *flags.split()).output


def test_prices_are_dated_of_the_shown_rows_alone_and_old_ones_say_their_age():
    few, many = run(*RUN, "--top", "2").output, run("--params", "1e8", "--batch", "8", "--seq", "512").output

    assert len(set(re.findall(r"^prices of ([\w-]+):", few, re.MULTILINE))) == 1
    assert re.search(r"prices of cn-shenzhen: 2024-10-09, \d+ days old; spot unknown", many)
    assert "prices of us-east-1: 2026-07-20" in many


def test_no_plan_fits_by_a_discount_that_nobody_published():
    """The cheapest on demand is 34,942.46 USD; its spot price is unknown, and p5's is 0.48 of the list."""
    done = run(*RUN, "--days", "10", "--budget", "4000")

    assert done.exit_code != 0
    assert "--budget = 4,000.00 USD: nothing finishes for that" in done.output
    found = {plan.offer.name: plan for plan in plans(SEVEN, 10)}
    assert found["p6-b200.48xlarge"].spot is None


def test_a_reservation_says_its_break_even_and_how_much_of_the_months_that_are_paid_is_used():
    done = run("--params", "1e8", "--batch", "8", "--seq", "512", "--reserved-discount", "0.4")
    said = " ".join(done.output.replace("│", "").split())

    for words in (
        "a reservation 40% below the price pays from 438 hours a month",
        "reserved",
        "1 month used",
        "it is paid for whole months, used or not",
    ):
        assert words in said


def test_what_cannot_be_is_said_in_one_message():
    for flags, message in {
        "--params many": "'many' must be a number from 1 to 1e+18, such as 7e9",
        "--budget 1": "--budget = 1.00 USD: nothing finishes for that",
        "--days 0.01": "nothing known finishes it: ",
        "--days nan": "'nan' must be a finite number",
        "--reserved-discount nan": "'nan' must be a finite number",
        "--vendor gcp": "'--vendor': 'gcp'; allowed: alicloud, aws, azure, tencent",
        "--gpu X900": "'--gpu': 'X900'; allowed: a text in one of A10, ",
    }.items():
        done = run(*RUN, *flags.split())
        assert done.exit_code != 0
        assert message in done.output
        assert "Traceback" not in done.output


def test_the_command_scores_the_vendors_and_says_where_its_numbers_are_from():
    done = run("--params", "1e8", "--batch", "8", "--seq", "512", "--cny-per-usd", "7.1", "--sources")

    fabric = "Tencent Cloud (comparison), fabric: GT4.41XLARGE948: intl.cloud.tencent.com"
    for words in ("performance 30", "Azure (comparison)", fabric, "scaling_nodes"):
        assert words in done.output
