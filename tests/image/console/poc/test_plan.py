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


def test_within_the_cap_the_price_of_an_hour_is_known_in_dollars_reserved_or_not():
    budget = budget_json()
    budget["pools"] = {"train": budget["pools"]["dev"] | {"reserved": 2}}

    assert confirmed_price(policy(), plan()) == Decimal("1.026")
    assert confirmed_price(policy(currency="CNY"), plan(cny_per_usd=2.0)) == Decimal("0.513")
    assert confirmed_price(policy(budget=budget), plan()) == Decimal("1.026")


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


def test_a_dollar_buys_no_known_samples_in_a_capacity_block_that_was_paid_for_before():
    block = policy(pools={"train": pool_policy(capacity=CAPACITY, market="capacity-block")})

    assert price_of_work(block, "train", Decimal("0.02")) is None
    assert price_of_work(policy(), "train", Decimal("1.026")) == Decimal("1.026")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--nodes", "two"], 2, "'two'; allowed: numbers from 1 to 50, ascending, such as 1,2,4"),
        *((["--nodes", nodes], 2, f"'{nodes}'; allowed") for nodes in ("2,1", "1,1", "0,1")),
        ([], 2, "POOL and --max-usd are needed to measure"),
        (["--max-usd", "0"], 2, "0.0 is not in the range 0<x<=1000000000"),
        (["--max-usd", "-1"], 2, "-1.0 is not in the range 0<x<=1000000000"),
        (["--max-usd", "1e30"], 2, "1e+30 is not in the range 0<x<=1000000000"),  # no sum can show it
        (["--max-usd", "nan"], 2, "must be a finite number"),
        (["--cny-per-usd", "1e300"], 2, "1e+300 is not in the range 1<=x<=100"),  # it makes all free
        (["--cny-per-usd", "0.14"], 2, "0.14 is not in the range 1<=x<=100"),  # the other way round
        (["--max-usd", "9", "--to", f"{__file__}/in"], 1, f"error: --to {__file__}/in: Not a directory\n"),
        (["--result", "poc.json"], 1, "takes no POOL, --max-usd or --limits"),
    ],
)
def test_wrong_words_are_one_message_before_anything_is_taken(words, code, message):
    said = CliRunner().invoke(main, ["poc", "train", *words, "--stack", "nowhere"])

    assert said.exit_code == code
    assert message in said.output
