"""What the mover says of money to users' commands, as it lies in the bucket (refusals: tests/image/slurm)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from gpu_fleet_image.console.runs.batch import JobScript
from gpu_fleet_image.console.runs.refusals import QueueRecords, never_runs
from gpu_fleet_image.controllers.mover import growth
from gpu_fleet_image.controllers.mover.growth import GROWTH, Growth
from gpu_fleet_image.controllers.mover.pool_view import MoneyLeft
from gpu_fleet_image.core.reaper_errors import CloudError
from tests.image.cloud_of_groups import START

MONEY = MoneyLeft(Decimal("12.50"), {"train": Decimal("1.006"), "dev": None}, frozenset({"dev"}))
TOTALS = {"dev": 0, "train": 3}


@pytest.mark.parametrize("money", [MONEY, replace(MONEY, left=None, prices={}, frozen=frozenset())])
def test_what_is_written_is_read_again(money):
    said = Growth.from_json(growth.of(money, TOTALS, START).to_json(), GROWTH)

    assert said.totals == TOTALS
    assert said.at == START
    assert (said.left, said.frozen, said.currency) == (money.left, money.frozen, "USD")
    assert said.prices == {pool: price for pool, price in money.prices.items() if price is not None}


@pytest.mark.parametrize(
    "damage",
    [
        *({"left": "x"}, {"prices": None}, {"frozen": 7}, {"at": ""}, {"prices": {"a": []}}),
        *({"totals": None}, {"totals": {"a": "x"}}),
    ],
)
def test_a_damaged_word_is_named(damage):
    with pytest.raises(CloudError, match=r"growth\.json"):
        Growth.from_json(growth.of(MONEY, TOTALS, START).to_json() | damage, GROWTH)


def test_a_pool_of_an_unknown_size_is_not_refused():
    frozen = replace(MONEY, frozen=frozenset({"train"}))
    written = [growth.of(frozen, totals, START).to_json() for totals in ({"train": 0}, {})]

    says = [growth.refusal(Growth.from_json(content, GROWTH), "train", 1, START) for content in written]

    assert [bool(said) for said in says] == [True, False]


def test_a_job_of_a_frozen_team_is_refused_at_once_and_another_team_s_is_not():
    why = "team vision has spent 21 of 20 USD this month, and is frozen"
    money = replace(MONEY, frozen_teams={"vision": why})
    users = [{"name": "ada", "team": "vision"}, {"name": "bob", "team": "nlp"}]
    said = QueueRecords({"users": users}, Growth.from_json(growth.of(money, TOTALS, START).to_json(), GROWTH))
    job = JobScript("digits", "train", 1, 1, "/home/ada", "log", ())

    assert never_runs(job, "ada", said, START) == why
    assert never_runs(job, "bob", said, START) == ""


@pytest.mark.parametrize(
    ("now", "begins"),
    [
        (datetime(2026, 12, 31, 23, 59, tzinfo=UTC), "2027-01-01 00:00 UTC"),
        (datetime(2027, 2, 1, tzinfo=UTC), "2027-03-01 00:00 UTC"),
        (datetime(2026, 12, 1, 1, tzinfo=timezone(timedelta(hours=8))), "2026-12-01 00:00 UTC"),
    ],
)
@pytest.mark.parametrize("frozen", [frozenset(), frozenset({"train"})])
def test_a_refusal_for_money_says_when_the_new_month_begins(now, begins, frozen):
    said = Growth.from_json(growth.of(replace(MONEY, frozen=frozen), {"train": 0}, now).to_json(), GROWTH)

    assert growth.refusal(said, "train", 20, now).endswith(f"; the new month begins at {begins}")
