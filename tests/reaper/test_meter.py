"""What the month has cost: exact over gaps, ends and restarts, and never in two currencies."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.reaper.errors import CloudError
from image.reaper.money.meter import (
    SHARED,
    advance,
    forecast,
    note_ends,
    per_hour,
    unpriced,
    with_spot_prices,
)
from image.reaper.money.meter_state import from_json
from tests.reaper.metered import HOUR, NOON, at_noon, budget, fleet, make_instance, metered

DEV_HOUR = Decimal("2.10")


def test_an_hour_of_an_instance_costs_its_price_and_its_disks():
    reading = metered(at_noon(make_instance()), fleet(make_instance()), NOON + HOUR)

    assert reading.month == {"dev": DEV_HOUR, "train": 0, SHARED: Decimal("0.50")}


def test_sweeps_that_were_missed_lose_no_money():
    gap = metered(at_noon(make_instance()), fleet(make_instance()), NOON + 30 * HOUR)
    often = at_noon(make_instance())
    for hour in range(1, 31):
        often = metered(often, fleet(make_instance()), NOON + hour * HOUR)

    assert gap.month == often.month
    assert gap.month["dev"] == 30 * DEV_HOUR


def test_an_instance_counts_from_its_launch_in_between():
    late = make_instance(launched_at=NOON + HOUR / 2)

    assert metered(at_noon(), fleet(late), NOON + HOUR).month["dev"] == DEV_HOUR / 2


def test_an_instance_that_came_and_went_in_between_counts_from_launch_to_end():
    brief = make_instance(launched_at=NOON + HOUR / 4, state="terminated", stopped_at=NOON + HOUR / 2)

    assert metered(at_noon(), fleet(gone=(brief,)), NOON + HOUR).month["dev"] == DEV_HOUR / 4


def test_an_instance_that_was_terminated_counts_until_the_cloud_says_it_was_and_once_only():
    ended = make_instance(state="terminated", stopped_at=NOON + HOUR / 2)
    once = metered(at_noon(make_instance()), fleet(gone=(ended,)), NOON + HOUR)

    again = metered(once, fleet(gone=(ended,)), NOON + 2 * HOUR)

    assert once.month["dev"] == again.month["dev"] == DEV_HOUR / 2


def test_an_instance_that_vanished_counts_until_it_was_missed():
    assert metered(at_noon(make_instance()), fleet(), NOON + HOUR).month["dev"] == DEV_HOUR


def test_an_instance_that_a_sweep_terminated_counts_until_then_where_the_cloud_says_nothing_more():
    noted = note_ends(at_noon(make_instance()), ["i-1"], NOON + HOUR / 2)

    reading = metered(noted, fleet(), NOON + HOUR)

    assert reading.month["dev"] == DEV_HOUR / 2
    assert reading.day.saved["i-1"].seconds == 1800


def test_what_an_instance_saves_ends_with_its_month():
    noted = note_ends(at_noon(make_instance()), ["i-1"], NOON)
    into_december, days = advance(noted, fleet(), budget(), "USD", datetime(2026, 12, 2, tzinfo=UTC))

    assert sum(day.saved["i-1"].seconds for day in days if day.saved) == 9.5 * 86_400
    assert into_december.saved == {}


def test_an_instance_that_was_stopped_saves_all_but_its_disks():
    noted = note_ends(at_noon(make_instance()), ["i-1"], NOON)

    reading = metered(noted, fleet(make_instance(state="stopped", stopped_at=NOON)), NOON + HOUR)

    assert reading.day.saved["i-1"].cost == Decimal(2)


def test_an_instance_that_runs_again_saves_no_more():
    noted = note_ends(at_noon(make_instance()), ["i-1"], NOON)

    assert metered(noted, fleet(make_instance(launched_at=NOON + HOUR)), NOON + 2 * HOUR).saved == {}


def test_a_stopped_instance_costs_its_disks():
    stopped = make_instance(state="stopped", stopped_at=NOON + HOUR)

    reading = metered(at_noon(make_instance()), fleet(stopped), NOON + 3 * HOUR)

    assert reading.month["dev"] == DEV_HOUR + 2 * Decimal("0.10")


def test_an_instance_that_was_stopped_all_along_and_then_terminated_did_not_run():
    stopped = make_instance(state="stopped", stopped_at=NOON - HOUR, launched_at=NOON - 2 * HOUR)
    before = metered(metered(None, fleet(stopped), NOON), fleet(stopped), NOON + HOUR)

    gone = replace(stopped, state="terminated", stopped_at=NOON + 2 * HOUR)

    assert metered(before, fleet(gone=(gone,)), NOON + 3 * HOUR).month == {
        **before.month,
        SHARED: before.month[SHARED] + 2 * Decimal("0.50"),
    }


def test_a_spot_instance_counts_at_the_price_of_spot():
    assert per_hour([make_instance(spot=True)], budget())["dev"] == Decimal("1.10")


def test_an_instance_without_a_price_counts_its_disks_and_is_reported():
    nameless = make_instance(type="p4d.24xlarge", spot=True)

    assert per_hour([nameless], budget())["dev"] == Decimal("0.10")
    assert unpriced([nameless, make_instance(pool="other"), make_instance()], budget()) == 2


def test_a_type_without_a_list_price_counts_what_is_assumed_and_is_not_unpriced():
    assumed = budget(assumed={"p4d.24xlarge": Decimal(20)})
    nameless = make_instance(type="p4d.24xlarge", spot=True)

    assert per_hour([nameless], assumed)["dev"] == Decimal("20.10")
    assert unpriced([nameless], assumed) == 0


def test_a_listed_price_comes_before_an_assumed_one():
    assumed = budget(assumed={"g5.xlarge": Decimal(20)})

    assert per_hour([make_instance()], assumed)["dev"] == DEV_HOUR


def test_a_market_price_of_spot_comes_before_an_assumed_one():
    assumed = budget(assumed={"p4d.24xlarge": Decimal(20)})

    market = with_spot_prices(assumed, {"p4d.24xlarge": Decimal(9)})

    assert per_hour([make_instance(type="p4d.24xlarge", spot=True)], market)["dev"] == Decimal("9.10")


def test_a_month_with_an_hour_that_has_no_price_is_a_least_one_until_it_ends():
    nameless = make_instance(type="p4d.24xlarge", spot=True)

    during = metered(at_noon(nameless), fleet(nameless), NOON + HOUR)
    after = metered(during, fleet(), NOON + 2 * HOUR)
    later = metered(after, fleet(), NOON + 3 * HOUR)
    kept = from_json(json.loads(json.dumps(later.to_json())), "meter.json")
    december = metered(kept, fleet(), datetime(2026, 12, 1, 1, tzinfo=UTC))

    assert (during.at_least, after.at_least, kept.at_least) == (True, True, True)
    assert kept.day.unpriced == 1
    assert not december.at_least


def test_what_an_earlier_version_kept_is_read_as_priced():
    old = at_noon(make_instance()).to_json()
    del old["at_least"]

    read = from_json(old, "meter.json")

    assert (read.at_least, read.running["i-1"].priced) == (False, True)


def test_at_first_what_runs_counts_from_its_launch_in_this_month():
    since_october = make_instance(launched_at=datetime(2026, 10, 1, tzinfo=UTC))

    reading = metered(None, fleet(since_october), datetime(2026, 11, 2, tzinfo=UTC))

    assert reading.month["dev"] == 24 * DEV_HOUR
    assert reading.month[SHARED] == 0


def test_a_new_month_begins_with_nothing():
    reading = metered(at_noon(make_instance()), fleet(make_instance()), datetime(2026, 12, 1, 1, tzinfo=UTC))

    assert reading.month["dev"] == DEV_HOUR


def test_each_day_that_ends_is_reported_once_with_its_own_hours():
    begun = at_noon(make_instance())

    reading, days = advance(
        begun, fleet(make_instance()), budget(), "USD", datetime(2026, 11, 23, 6, tzinfo=UTC)
    )

    assert [day.name for day in days] == ["2026-11-21", "2026-11-22"]
    assert [day.instances["i-1"].seconds / 3600 for day in days] == [12, 24]
    assert reading.day.instances["i-1"].seconds / 3600 == 6
    assert advance(reading, fleet(make_instance()), budget(), "USD", reading.until)[1] == []


def test_two_currencies_are_never_added():
    with pytest.raises(CloudError, match="counts in USD, and the policy's prices are in CNY"):
        advance(at_noon(make_instance()), fleet(make_instance()), budget(), "CNY", NOON + HOUR)


def test_a_clock_that_is_set_back_changes_nothing():
    reading = metered(at_noon(make_instance()), fleet(make_instance()), NOON + HOUR)

    assert metered(reading, fleet(), NOON) == reading


def test_the_forecast_continues_at_the_pace_of_the_last_day():
    start = datetime(2026, 11, 21, tzinfo=UTC)
    old = make_instance(launched_at=start)
    reading = metered(metered(None, fleet(old), start), fleet(old), start + 36 * HOUR)

    pace = DEV_HOUR + Decimal("0.50")
    assert forecast(reading, Decimal(0)) == 36 * pace + pace * (240 - 36)


def test_the_forecast_of_the_first_hour_counts_what_runs():
    reading = at_noon(make_instance())

    assert forecast(reading, Decimal(1)) == 9 * 24 + 12


@pytest.mark.parametrize("damage", [{"until": "yesterday"}, {"month": None}, {"running": {"i-1": {}}}])
def test_a_damaged_reading_is_named_and_not_begun_anew(damage):
    with pytest.raises(CloudError, match=r"meter\.json: .*put back a version"):
        from_json({**at_noon(make_instance()).to_json(), **damage}, "meter.json")


MINUTES = st.integers(1, 4000)
STATES = st.sampled_from(["running", "stopped", "terminated", "vanished"])


@st.composite
def lives(draw):
    """Sweeps at rising minutes, each with what became of up to four instances by then."""
    moments = sorted(draw(st.sets(MINUTES, min_size=1, max_size=6)))
    story, alive = [], {}
    for minute in moments:
        for name in draw(st.sets(st.sampled_from(["i-1", "i-2", "i-3", "i-4"]))):
            kind, pool, spot = draw(STATES), draw(st.sampled_from(["dev", "train"])), draw(st.booleans())
            launched = NOON + timedelta(minutes=draw(st.integers(0, minute)))
            stopped = NOON + timedelta(minutes=minute) if draw(st.booleans()) else None
            alive[name] = (kind, make_instance(name, pool, launched, spot=spot), stopped)
        story.append((NOON + timedelta(minutes=minute), _seen(alive)))
    return story


def _seen(alive):
    listed = [
        (kind, process if kind == "running" else replace(process, state=kind, stopped_at=stopped))
        for kind, process, stopped in alive.values()
    ]
    return fleet(
        *(entry for kind, entry in listed if kind in ("running", "stopped")),
        gone=tuple(entry for kind, entry in listed if kind == "terminated"),
    )


@given(lives())
def test_the_month_only_grows_and_its_pools_add_up_to_the_whole(story):
    reading, counted = at_noon(), []
    for now, seen in story:
        before = reading
        reading, days = advance(before, seen, budget(), "USD", now)
        counted += days
        assert all(reading.month[pool] >= cost for pool, cost in before.month.items())
        assert reading.month_cost == sum(reading.month.values())
    assert sum(day.cost for day in [*counted, reading.day]) == reading.month_cost
    for day in (*counted, reading.day):
        assert sum(share.cost for share in day.instances.values()) <= day.cost - day.costs.get(SHARED, 0)
        assert all(0 < share.seconds <= 86_400 for share in day.instances.values())


@given(lives())
def test_a_restart_between_any_two_sweeps_changes_nothing(story):
    straight = restarted = at_noon()
    for now, seen in story:
        straight = metered(straight, seen, now)
        restarted = from_json(json.loads(json.dumps(metered(restarted, seen, now).to_json())), "meter.json")
        # the same sweep once more
        assert metered(restarted, seen, now) == restarted
    assert restarted == straight


@given(st.lists(st.integers(0, 2000), max_size=8), st.integers(0, 2000))
def test_how_often_a_sweep_comes_makes_no_difference_to_instances_that_stay(minutes, end):
    stays = make_instance(), make_instance("i-2", "train", NOON)
    last = NOON + timedelta(minutes=end)
    often = at_noon(*stays)
    for minute in sorted(minutes):
        often = metered(often, fleet(*stays), min(last, NOON + timedelta(minutes=minute)))

    assert abs(
        metered(often, fleet(*stays), last).month_cost
        - metered(at_noon(*stays), fleet(*stays), last).month_cost
    ) < Decimal("1e-7")
