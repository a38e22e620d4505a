"""A POC that is refused takes nothing."""

from decimal import Decimal

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.poc.plan import PocPlan, confirmed_price
from gpu_fleet_image.console.poc.spending import price_of_work
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from tests.image.console.poc.played import CAPACITY, policy
from tests.image.moto_fleet import budget_json, pool_policy

PLAN = {"pool": "train", "counts": (1, 2), "cap": Decimal(100), "cny_per_usd": None}
OTHERS = {"account": None, "seconds": 15.0, "size_mib": 1024}
QUEUE = {"queue_gpus": 1, "queue_cpus": 4, "queue_memory_mib": 1024}


def plan(**changes):
    return PocPlan(**{**PLAN, **OTHERS, **changes})


def test_within_the_cap_the_price_of_an_hour_is_known():
    assert confirmed_price(policy(), plan()) == Decimal("1.026")


def test_prices_in_another_currency_are_converted_at_the_rate_that_is_given():
    assert confirmed_price(policy(currency="CNY"), plan(cny_per_usd=2.0)) == Decimal("0.513")


REFUSED = {
    "no such pool": (
        {},
        {"pool": "trian"},
        "POOL 'trian': no such pool; stack test has train (nearest: train)",
    ),
    "more than the pool's max": ({}, {"counts": (1, 5)}, "--nodes 5; allowed: up to 4, size.max of train"),
    "over the cap": (
        {},
        {"cap": Decimal("1.96")},
        "--max-usd 1.96: 1,2 instances of train take about 1.97 USD; allowed: that much or more",
    ),
    "an unknown price": ({"budget": None}, {}, "POOL 'train': the price of its instances is not known"),
    "prices in another currency": ({"currency": "CNY"}, {}, "--cny-per-usd is missing: the prices of stack"),
    "sweeps that only plan": ({"dry_run": True}, {}, "stack test: its sweeps only plan (reaper.dry_run)"),
    "a queue": (
        {"pools": {"train": pool_policy(capacity=CAPACITY | QUEUE)}},
        {},
        "stack test: has a queue, whose instances take no other runs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_within_the_cap_is_one_message(case):
    of_policy, of_plan, message = REFUSED[case]

    with pytest.raises(ConfigurationError) as raised:
        confirmed_price(policy(**of_policy), plan(**of_plan))

    assert message in str(raised.value)


def test_a_reserved_pool_counts_what_its_instances_cost_used_or_not():
    budget = budget_json()
    budget["pools"] = {"train": budget["pools"]["dev"] | {"reserved": 2}}

    assert confirmed_price(policy(budget=budget), plan()) == Decimal("1.026")


def test_a_dollar_buys_no_known_samples_in_a_capacity_block_that_was_paid_for_before():
    block = policy(pools={"train": pool_policy(capacity=CAPACITY, market="capacity-block")})

    assert price_of_work(block, "train", Decimal("0.02")) is None
    assert price_of_work(policy(), "train", Decimal("1.026")) == Decimal("1.026")


WORDS = {
    "no number": (("--nodes", "two"), "'two'; allowed: numbers from 1 to 50, ascending, such as 1,2,4"),
    "not ascending": (("--nodes", "2,1"), "'2,1'; allowed"),
    "twice": (("--nodes", "1,1"), "'1,1'; allowed"),
    "none": (("--nodes", "0,1"), "'0,1'; allowed"),
    "no cap": ((), "POOL and --max-usd are needed to measure"),
    "a cap of 0": (("--max-usd", "0"), "0.0 is not in the range 0<x<=1000000000"),
    "a cap below 0": (("--max-usd", "-1"), "-1.0 is not in the range 0<x<=1000000000"),
    "a cap that no sum can show": (("--max-usd", "1e30"), "1e+30 is not in the range 0<x<=1000000000"),
    "a rate that makes all free": (("--cny-per-usd", "1e300"), "1e+300 is not in the range 1<=x<=100"),
    "a rate the other way round": (("--cny-per-usd", "0.14"), "0.14 is not in the range 1<=x<=100"),
    "no finite cap": (("--max-usd", "nan"), "must be a finite number"),
}


@pytest.mark.parametrize("case", WORDS)
def test_wrong_words_are_one_message(case):
    words, message = WORDS[case]

    said = CliRunner().invoke(main, ["poc", "train", *words, "--stack", "nowhere"])

    assert said.exit_code == 2
    assert message in said.output


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_taken(tmp_path):
    (tmp_path / "file").touch()

    said = CliRunner().invoke(
        main, ["poc", "train", "--max-usd", "9", "--to", str(tmp_path / "file" / "in"), "--stack", "nowhere"]
    )

    assert said.exit_code == 1
    assert said.output == f"error: --to {tmp_path}/file/in: Not a directory\n"


def test_an_earlier_result_takes_no_words_that_nothing_would_read(tmp_path):
    said = CliRunner().invoke(main, ["poc", "train", "--result", str(tmp_path / "poc.json")])

    assert said.exit_code == 1
    assert "takes no POOL, --max-usd or --limits" in said.output
