"""Efficiency of a day's GPU hours, and its report."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.meter.daily_report import hours_of
from gpu_fleet_image.controllers.meter.efficiency import PERIOD_S, UNREPORTED, reported, sum_up
from gpu_fleet_image.controllers.meter.efficiency_page import mail, page
from gpu_fleet_image.controllers.meter.meter_state import Day, DayShare, MeteredInstance, Unused
from tests.image.controllers.metered import NOON

MIDNIGHT = NOON.replace(hour=0)


def share(hours=24, pool="dev", gpus=1, per_hour="1", owner="ada"):
    instance = MeteredInstance(pool, owner, "g5.xlarge", gpus, Decimal(per_hour))
    seconds = int(hours * 3600)
    return DayShare(instance, seconds, Decimal(per_hour) * Decimal(str(hours)), ((0, seconds),))


def periods(percents):
    return {number * PERIOD_S: percent for number, percent in enumerate(percents)}


def day(instances, saved=()):
    costs = {}
    for instance in instances.values():
        costs[instance.instance.pool] = costs.get(instance.instance.pool, Decimal(0)) + instance.cost
    return Day(MIDNIGHT, costs, instances, dict(saved))


def told(instances, shares):
    """Return what agents reported in every period of the time that their instances ran."""
    return {
        key: reported(periods([shares[key] * 100] * (each.seconds // PERIOD_S)), each)
        for key, each in instances.items()
        if key in shares
    }


def summed(instances, computing, saved=(), **changes):
    whole = replace(day(instances, saved), **changes)
    return sum_up(whole, "aws-dev", "USD", told(instances, computing), {"dev": 8})


def test_hours_of_a_silent_agent_are_unknown_and_neither_computing_nor_idle():
    found = summed({"i-1": share()}, {})

    assert [found.total(name) for name in ("computing", "unknown", "idle")] == [0, 24, 0]
    assert found.idle == ()
    assert "For 24.00 GPU hours there is no report whether GPUs computed." in mail(found, "s3://there")


@pytest.mark.parametrize(
    ("percents", "hours"),
    [
        ([100.0] * 4, [1, 0, 23]),
        # any user of an instance may publish in its name; absurd numbers count like missing ones
        ([50.0] * 4 + [-5.0, 1e100, float("nan"), float("inf")], [0.5, 0.5, 23]),
        ([0.0] * 96, [0, 24, 0]),
        ([50.0] * 97, [12, 12, 0]),
    ],
)
def test_hours_in_which_an_agent_was_silent_are_unknown_whatever_it_reported_in_others(percents, hours):
    instances = {"i-1": share()}

    found = sum_up(day(instances), "lab", "USD", {"i-1": reported(periods(percents), share())}, {})

    assert [found.total(name) for name in ("computing", "idle", "unknown")] == hours
    assert sum(use.idle_cost for use in found.idle) == hours[1]
    assert page(found)


def test_a_short_life_without_a_report_is_unknown_although_the_others_of_the_day_are_known():
    lives = tuple((hour * 3600, hour * 3600 + 300) for hour in range(4))
    short = replace(share(hours=1 / 3), spans=lives)

    found = reported({begin: 100.0 for begin, _ in lives[:3]}, short)

    assert found == (1, Decimal("0.75"))


def test_a_share_without_a_second_is_unknown_whatever_its_spans_say():
    assert reported(periods([100.0]), replace(share(), seconds=0)) == UNREPORTED


@pytest.mark.parametrize(("count", "unknown"), [(4, ", 23.00 unknown"), (96, "")])
def test_the_line_of_a_day_says_how_many_hours_are_unknown_where_any_are(count, unknown):
    instances = {"i-1": share()}
    found = sum_up(day(instances), "lab", "USD", {"i-1": reported(periods([100.0] * count), share())}, {})
    store = SimpleNamespace(get=lambda _key: SimpleNamespace(content=found.to_json()))

    hours = f"24.00 rented, {count / 4:.2f} computing, 0.00 idle{unknown}"
    assert hours_of(store, "2026-11-21") == f"GPU hours of 2026-11-21: dev {hours}"


def test_reserved_hours_without_an_instance_are_rented_and_idle():
    found = summed({"i-1": share(gpus=8)}, {"i-1": 1.0}, unused={"dev": {"": Unused(24 * 3600, Decimal(24))}})

    assert [found.total(name) for name in ("rented", "computing", "idle", "unused")] == [384, 192, 192, 192]
    assert "192.00 reserved GPU hours were paid for but had no instance: they count as idle." in page(found)


def test_a_day_with_instances_without_a_price_says_at_least():
    nameless = DayShare(MeteredInstance("dev", "ada", "p6", 8, Decimal(0), priced=False), 3600, Decimal(0))
    found = summed({"i-1": share(), "i-2": nameless}, {})

    for text in (mail(found, "s3://there"), page(found)):
        assert "at least 24.00 USD" in text
        assert "1 instance without a price: not counted, so true costs may be higher" in text
    assert found.to_json()["unpriced_machines"] == 1
    assert "at least" not in mail(summed({"i-1": share()}, {}), "s3://there")
    lacking = mail(replace(summed({"i-1": share()}, {}), lacks=("log",)), "s3://there")
    assert "at least 24.00 USD" in lacking
    assert "Costs are without a public price, not counted: log." in lacking


def test_the_ten_that_left_most_money_idle_come_dearest_first():
    instances = {f"i-{n:02}": share(per_hour=str(n)) for n in range(15)}

    idle = summed(instances, dict.fromkeys(instances, 0.75)).idle

    assert [instance.instance_id for instance in idle] == [f"i-{n:02}" for n in range(14, 4, -1)]
    assert idle[0].idle_cost == 14 * 24 / Decimal(4)


def test_what_the_reaper_saved_stands_beside_what_was_bought():
    found = summed({"i-1": share()}, {"i-1": 1.0}, saved={"i-2": share(hours=6, gpus=8, per_hour="2")})

    assert (found.total("saved"), found.saved_cost) == (48, 12)
    assert "saved 48.00 GPU hours, 12.00 USD" in mail(found, "s3://there")


def test_a_day_without_instances_is_reported_too():
    text = page(summed({}, {}))

    assert "0.00 GPU hours rented, 0.00 computing, 0.00 idle" in text
    assert "<svg" not in text


@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        ("7 of 9", "7 of 9"),
        ("ada@research.example.com", "ada@<wbr>research.<wbr>example.<wbr>com"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("1<script>alert(1)</script>", "1&lt;script&gt;alert(1)&lt;/script&gt;"),
    ],
)
def test_a_page_shows_any_owner_beside_numbers_that_are_right_aligned_and_names_each_column(owner, shown):
    """A name that begins like a number changes no sum; a long address widens no table."""
    text = page(summed({"i-1": share(owner=owner)}, {"i-1": 0.5}))

    assert '<th scope="col" class="number">GPU hours idle</th>' in text
    assert '<td data-column="GPU hours idle" class="number">12.00</td>' in text
    assert f'<td data-column="owner">{shown}</td>' in text
    assert "<script>" not in text
    assert ">g5.xlarge<" in text


SHARES = st.builds(
    share,
    st.integers(1, 24),
    st.sampled_from(["dev", "train", "a & b"]),
    st.integers(0, 8),
    st.sampled_from(["0", "1.006", "32.77"]),
)
INSTANCES = st.dictionaries(st.sampled_from([f"i-{n}" for n in range(12)]), SHARES, max_size=12)


@given(INSTANCES, st.dictionaries(st.sampled_from([f"i-{n}" for n in range(12)]), st.floats(-0.1, 1.1)))
def test_computing_and_unknown_hours_are_part_of_those_rented_and_pools_add_up(instances, computing):
    found = summed(instances, computing)

    for pool in found.pools:
        assert min(pool.computing, pool.unknown, pool.idle) >= 0
        assert pool.computing + pool.unknown + pool.idle == pool.rented
    assert found.total("cost") == sum((instance.cost for instance in instances.values()), Decimal(0))
    assert len(found.idle) <= 10
    drawn = page(found).partition("<svg")[2].partition("</svg>")[0]
    if drawn:
        assert 5 <= drawn.count('text-anchor="middle"') <= 11  # ticks of the axis
        assert ET.fromstring(f"<svg{drawn}</svg>").tag == "svg"


def test_sm_activity_is_the_mean_over_the_hours_that_report_it_and_unknown_elsewhere():
    instances = {"i-1": share(gpus=8), "i-2": share(hours=12, gpus=8), "i-3": share(pool="old")}

    active = told(instances, {"i-1": 0.6, "i-2": 0.3})
    found = sum_up(day(instances), "aws-dev", "USD", {}, {}, sm_active=active)

    by_pool = {pool.pool: pool.sm_active for pool in found.pools}
    assert by_pool == {"dev": Decimal("0.5"), "old": None}
    assert found.to_json()["pools"]["dev"]["sm_active"] == "0.50"
    assert "used 50% of their multiprocessors" in mail(found, "s3://there")
    assert ">unknown<" in page(found)
