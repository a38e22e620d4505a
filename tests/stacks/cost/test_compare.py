"""The ways to pay for a pool: break-even hours, interrupted spot, what is unknown, the buyer's file."""

import csv
import datetime
import io
import json
import re
from decimal import Decimal

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core import report_page
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, Money
from gpu_fleet_stacks.cost import compare_page, offers_file
from gpu_fleet_stacks.cost.command import cost as command
from gpu_fleet_stacks.cost.compare import PurchaseOption, compare, slowdown
from gpu_fleet_stacks.cost.compare_page import HEADINGS
from gpu_fleet_stacks.cost.offers_file import OffersFileError, SpotRuns
from tests.stacks.examples import pool, stack

TYPE = "p4d.24xlarge"  # 21.957642 USD on demand, 7.246 expected on spot, 10-15 % interrupted in a month
FILE = f"""
currency = "USD"
[quotes."{TYPE}"]
one_year = 13.20
[own."{TYPE}"]
title = "in <our> rack"
price = 180000
years = 4
power_kw = 6.5
energy_per_kwh = 0.12
staff_per_year = 15000
"""


def two(**changes):
    return stack(pools=[pool(types=[TYPE], size={"max": 2})], **changes)


def offers(tmp_path, text=FILE):
    path = tmp_path / "offers.toml"
    path.write_text(text)
    return offers_file.read(path, currency="USD", types=frozenset({TYPE}))


def options(settings, file=None):
    (compared,) = compare(settings, file)
    return {option.name: option for option in compared.options}, compared.on_demand


def hours(option, on_demand):
    return str(option.break_even(on_demand).quantize(Decimal("0.01")))


def test_a_commitment_pays_from_its_month_by_the_catalog_until_the_buyer_s_file_has_another_price(tmp_path):
    listed, _ = options(two())
    known, on_demand = options(two(), offers(tmp_path))

    # 13.921094 * 730 / 21.957642; 13.20 * 730 / 21.957642;
    # (180000 / 48 + 15000 / 12) / (21.957642 - 6.5 * 0.12)
    pays = (listed["1 year"], known["1 year"], known["in <our> rack"])
    assert [hours(option, on_demand) for option in pays] == ["462.82", "438.84", "236.10"]
    source = "github.com/tsaol/aws-gpu at 7412fd2, data/all_gpu_instances.js, 2026-01-21"
    assert source in listed["1 year"].source
    assert known["1 year"].source == "your file; paid used or not"


@pytest.mark.parametrize(("day", "is_known"), [(30, True), (31, False)])
def test_a_price_that_was_announced_to_end_is_unknown_from_that_day_on(monkeypatch, day, is_known):
    monkeypatch.setattr(prices, "today", lambda: datetime.date(2026, 9, 1) + datetime.timedelta(days=day - 1))

    known, _ = options(stack(pools=[pool(types=["p5.48xlarge"], size={"max": 2})]))

    block = known["capacity block"]
    assert (block.month is not None) is is_known
    assert is_known or "an hour until 2026-10-01, unknown since; --offers FILE takes yours" in block.source


def test_a_savings_plan_is_compared_as_the_buyer_s_file_has_it_and_else_unknown(tmp_path):
    known, on_demand = options(two(), offers(tmp_path, FILE.replace("one_year", "savings_plan_one_year")))

    assert known["savings plan, 1 year"].month == Money(Decimal("13.20") * 2 * 730, "USD")
    assert hours(known["savings plan, 1 year"], on_demand) == "438.84"
    assert (known["3 years"].month, known["savings plan, 3 years"].month) == (None, None)


def test_nine_ways_to_pay_have_lines_that_differ():
    assert len({compare_page._stroke(index) for index in range(20)}) == 20


def test_what_nobody_published_is_unknown_and_never_borrowed():
    elsewhere, on_demand = options(
        two(region="me-south-1", network={"cidr": "10.0.0.0/16", "zones": ["me-south-1a", "me-south-1b"]})
    )

    assert on_demand is None
    assert {option.cost(1) for option in elsewhere.values()} == {None}
    assert elsewhere["on demand"].source == "published for us-east-1 in USD alone"


def test_spot_pays_for_its_interruptions():
    known, _ = options(two())

    slower = slowdown(15, 2, SpotRuns())
    assert known["spot, expected"].hour == Money(Decimal("7.246") * 2 * slower, "USD")
    # M = 730 h / (2 * -ln 0.85) = 2,245.92 h; interval = sqrt(2 * 60 s * M) = 8.65 h;
    # lost = 60 s / 8.65 h + (8.65 h / 2 + 600 s) / M = 0.39 %
    assert slower.quantize(Decimal("0.0001")) == Decimal("1.0039")


@given(st.integers(0, 99), st.integers(1, 200), st.integers(1, 3600), st.integers(1, 7200))
def test_more_instances_are_never_interrupted_less(percent, count, save_s, restart_s):
    runs = SpotRuns(save_s=Decimal(save_s), restart_s=Decimal(restart_s))

    fewer, more = slowdown(percent, count, runs), slowdown(percent, count + 1, runs)

    assert more is None or (fewer is not None and 1 <= fewer <= more)


@given(
    st.decimals("0.01", "99", places=2),
    st.decimals("0", "9999", places=2),
    st.decimals("0.01", "99", places=2),
)
def test_at_its_break_even_an_option_costs_what_on_demand_does(hour, month, on_demand):
    option = PurchaseOption("own", Money(hour, "USD"), Money(month, "USD"), "")
    hours = option.break_even(Money(on_demand, "USD"))

    if hours is None:
        assert hour >= on_demand
    else:
        assert abs(option.cost(hours).amount - on_demand * hours) < Decimal("1e-9")


RACK = f'[own."{TYPE}"]'
WRONG = (
    ('currency = "USD"', "", "currency: required, and missing"),
    ("USD", "CNY", "currency = 'CNY'; allowed: USD, as the stack's prices"),
    (RACK, '[own."p5.48xlarge"]', f"'p5.48xlarge' is no type of the stack; allowed: {TYPE}"),
    ("price = 180000", "price = -1", f"own.{TYPE}.price = -1: must be more than 0"),
    ("years = 4", "years = 4\nluck = 1", f"own.{TYPE}.luck = 1: unknown key; allowed: energy_per_kwh, power"),
    ("years = 4", 'years = "four"', f"own.{TYPE}.years = 'four': must be a number"),
    ("years = 4", "years = 44", f"own.{TYPE}.years = 44: must be 20 or less"),
    ("years = 4", 'years = "1e-30"', f"own.{TYPE}.years = '1e-30': must be 0.1 or more"),
    ("price = ", 'price = "1e400" # ', f"own.{TYPE}.price = '1e400': must be 1000000000000 or less"),
    (RACK, "[own]", "must be a table of keys and values"),
    ("USD", "dollar", "currency = 'dollar': must be the three capital letters of one, such as USD"),
    ("[quotes", "[quotes[", "is not TOML"),
)


def test_a_wrong_file_of_offers_is_refused_by_one_message(tmp_path):
    for sound, wrong, says in WRONG:
        with pytest.raises(OffersFileError, match="--offers") as raised:
            offers(tmp_path, FILE.replace(sound, wrong, 1))
        assert says in str(raised.value)


def test_the_page_has_a_line_for_each_known_option_and_escapes_the_buyer_s_words(tmp_path):
    text = compare_page.html("two", compare(two(), offers(tmp_path)))

    assert text.count("<span class=key>") == 4  # on demand, spot, 1 year, own
    assert "in &lt;our&gt; rack" in text
    assert "<our>" not in text
    assert 'data-column="pays from" class="number">237 hours</td>' in text
    classes = dict(re.findall(r'<td data-column="([^"]+)"(?: class="(\w+)")?>', text))
    assert classes == dict(zip(HEADINGS, ["id", *["number"] * 4], strict=True)) | {"source": ""}
    assert re.findall(r'text-anchor="middle">(\d+)<', text) == ["0", "182", "365", "547", "730"]
    assert report_page.STYLE in text


def test_the_command_compares_and_writes_the_page(tmp_path):
    page, path = tmp_path / "page.html", tmp_path / "offers.toml"
    path.write_text(FILE)

    done = CliRunner().invoke(
        command, ["aws-prod", "--compare", "--offers", str(path), "--html", str(page), "-o", "json"]
    )

    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    (train,) = [each for each in document["pools"] if each["type"] == TYPE]
    assert document["stack"] == "aws-prod"
    assert {each["name"]: each["break_even_hours"] for each in train["options"]}["1 year"] == "438.84"
    assert page.read_text().startswith("<!doctype html>")


def test_rows_have_a_way_to_pay_each_and_nothing_where_it_is_unknown():
    done = CliRunner().invoke(command, ["aws-prod", "--compare", "-o", "csv"])

    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.output)))
    (one,) = [row for row in rows if (row["type"], row["name"]) == (TYPE, "1 year")]
    assert (one["hour"], one["break_even_hours"], one["currency"]) == ("0.00", "462.82", "USD")
    (three,) = [row for row in rows if (row["type"], row["name"]) == (TYPE, "3 years")]
    assert (three["month"], three["break_even_hours"], three["at_least"]) == ("", "", "false")


def test_a_table_says_from_when_each_way_pays():
    done = CliRunner().invoke(command, ["aws-prod", "--compare"])

    assert re.search(r"1 year .* 463 hours ", done.output)


def test_options_that_would_do_nothing_are_refused():
    for words, message in (
        (["--html", "page.html"], "--html page.html: needs --compare"),
        (["--compare", "--egress-gb", "5"], "--egress-gb 5: not with --compare"),
    ):
        done = CliRunner().invoke(command, ["aws-prod", *words])
        assert (done.exit_code, message in done.output) == (2, True)


def test_a_month_of_every_hour_is_the_clouds_own():
    known, _ = options(two())

    assert known["on demand"].cost(HOURS_PER_MONTH) == Money(Decimal("21.957642") * 2 * 730, "USD")
