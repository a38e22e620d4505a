"""Cost of the month: exact over gaps, ends and restarts, and never in two currencies."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.meter.meter import (
    SHARED,
    ReservedUse,
    advance,
    forecast,
    note_ends,
    per_hour,
    reserved_in_use,
    unpriced,
    with_spot_prices,
)
from gpu_fleet_image.controllers.meter.meter_state import MeterReading, Unused
from gpu_fleet_image.core.budget_policy import PaidReservation
from gpu_fleet_image.core.model import Group
from gpu_fleet_image.core.reaper_errors import CloudError
from tests.image.controllers.metered import HOUR, NOON, at_noon, budget, fleet, make_instance, metered, prices

DEV_HOUR = Decimal("2.10")


def at(hours):
    return NOON + hours * HOUR


ENDED = make_instance(state="terminated", stopped_at=at(0.5))
BRIEF = make_instance(launched_at=at(0.25), state="terminated", stopped_at=at(0.5))
# (seen at noon, then at later hours; hours of its price, and of its disks alone)
COSTS = {
    "an hour": ([make_instance()], {1: fleet(make_instance())}, 1, 0),
    "sweeps that were missed": ([make_instance()], {30: fleet(make_instance())}, 30, 0),
    "launched in between": ([], {1: fleet(make_instance(launched_at=at(0.5)))}, 0.5, 0),
    "came and went in between": ([], {1: fleet(gone=(BRIEF,))}, 0.25, 0),
    "until the cloud says it was terminated, once": (
        [make_instance()],
        {1: fleet(gone=(ENDED,)), 2: fleet(gone=(ENDED,))},
        0.5,
        0,
    ),
    "vanished, until it was missed": ([make_instance()], {1: fleet()}, 1, 0),
    "its disks while it is stopped": (
        [make_instance()],
        {3: fleet(make_instance(state="stopped", stopped_at=at(1)))},
        1,
        2,
    ),
}


def test_an_instance_costs_its_price_from_launch_to_end_and_its_disks_while_it_is_stopped():
    def cost(begins, later):
        reading = at_noon(*begins)
        for hours, seen in later.items():
            reading = metered(reading, seen, at(hours))
        return reading.month["dev"]

    found = {name: cost(begins, later) for name, (begins, later, _, _) in COSTS.items()}

    assert found == {
        name: DEV_HOUR * Decimal(runs) + Decimal("0.10") * Decimal(stopped)
        for name, (_, _, runs, stopped) in COSTS.items()
    }


def test_what_pools_share_and_a_pool_without_instances_are_metered_too():
    assert metered(at_noon(), fleet(), at(1)).month == {"dev": 0, "train": 0, SHARED: Decimal("0.50")}


def ended_at(hours):
    """Return a meter that began at noon, with an instance that a sweep terminated `hours` later."""
    return note_ends(at_noon(make_instance()), ["i-1"], at(hours))


def test_an_instance_that_a_sweep_terminated_counts_until_then_where_the_cloud_says_nothing_more():
    reading = metered(ended_at(0.5), fleet(), at(1))

    assert reading.month["dev"] == DEV_HOUR / 2
    assert reading.day.saved["i-1"].seconds == 1800


def test_an_instance_whose_pool_left_the_stack_costs_what_it_did_until_it_ends():
    renamed = {"pools": {"dev2": prices()}}
    still = metered(at_noon(make_instance()), fleet(make_instance()), at(1), **renamed)

    ended = fleet(gone=(make_instance(state="terminated", stopped_at=at(2)),))
    after = metered(still, ended, at(4), **renamed)

    assert after.month["dev"] == 2 * Decimal("2.10")
    assert after.running == {}
    assert still.at_least, "nobody says its price any more"


def test_a_day_says_when_an_instance_ran_and_for_how_long_the_meter_counted():
    reading = at_noon(make_instance())
    stopped, again = make_instance(state="stopped", stopped_at=at(1.5)), make_instance(launched_at=at(3))
    for hours, seen in ((1, make_instance()), (2, stopped), (4, again)):
        reading = metered(reading, fleet(seen), at(hours))

    assert reading.day.instances["i-1"].spans == ((43_200, 48_600), (54_000, 57_600))
    assert reading.day.seconds == 4 * 3600


def test_disks_of_a_stopped_instance_whose_pool_left_the_stack_are_unknown_and_not_free():
    stopped = make_instance(state="stopped", stopped_at=NOON)
    before = metered(None, fleet(stopped), NOON)

    after = metered(before, fleet(stopped), at(1), pools={"dev2": prices()})

    assert (before.at_least, after.at_least) == (False, True)


def test_an_instance_saves_all_but_its_disks_until_it_runs_again_or_its_month_ends():
    stopped = metered(ended_at(0), fleet(make_instance(state="stopped", stopped_at=NOON)), at(1))
    again = metered(ended_at(0), fleet(make_instance(launched_at=at(1))), at(2))
    december, days = advance(ended_at(0), fleet(), budget(), "USD", datetime(2026, 12, 2, tzinfo=UTC))

    assert stopped.day.saved["i-1"].cost == Decimal(2)
    assert again.saved == december.saved == {}
    assert sum(day.saved["i-1"].seconds for day in days if day.saved) == 9.5 * 86_400


def test_an_instance_that_was_stopped_all_along_and_then_terminated_did_not_run():
    stopped = make_instance(state="stopped", stopped_at=at(-1), launched_at=at(-2))
    before = metered(metered(None, fleet(stopped), NOON), fleet(stopped), at(1))

    after = metered(before, fleet(gone=(replace(stopped, state="terminated", stopped_at=at(2)),)), at(3))

    assert after.month == before.month | {SHARED: before.month[SHARED] + 2 * Decimal("0.50")}


def test_an_hour_costs_the_market_price_of_spot_the_listed_one_or_what_is_assumed_in_this_order():
    nameless, own = make_instance(type="p4d.24xlarge", spot=True), make_instance()
    assumed = budget(assumed={"p4d.24xlarge": Decimal(20), "g5.xlarge": Decimal(20)})
    market = with_spot_prices(assumed, {"p4d.24xlarge": Decimal(9)})
    rows = {
        "1.10": (make_instance(spot=True), budget()),
        "0.10": (nameless, budget()),  # its disks
        "0.1": (make_instance(state="stopped"), budget(pools={"dev": prices(disk_per_hour=Decimal("0.1"))})),
        "20.10": (nameless, assumed),
        "2.10": (own, assumed),
        "9.10": (nameless, market),
    }

    assert {text: str(per_hour([row[0]], row[1])["dev"]) for text, row in rows.items()} == {
        text: text for text in rows
    }
    assert unpriced([nameless, make_instance(pool="other"), own], budget()) == 2
    assert unpriced([nameless], assumed) == 0


def test_a_month_with_an_hour_that_has_no_price_is_a_least_one_until_it_ends():
    nameless = make_instance(type="p4d.24xlarge", spot=True)

    during = metered(at_noon(nameless), fleet(nameless), NOON + HOUR)
    after = metered(during, fleet(), NOON + 2 * HOUR)
    later = metered(after, fleet(), NOON + 3 * HOUR)
    kept = MeterReading.from_json(json.loads(json.dumps(later.to_json())), "meter.json")
    december = metered(kept, fleet(), datetime(2026, 12, 1, 1, tzinfo=UTC))

    assert (during.at_least, after.at_least, kept.at_least) == (True, True, True)
    assert kept.day.unpriced == 1
    assert not december.at_least


def test_a_month_begins_with_nothing_but_what_ran_in_it_since_its_launch():
    october = make_instance(launched_at=datetime(2026, 10, 1, tzinfo=UTC))

    first = metered(None, fleet(october), datetime(2026, 11, 2, tzinfo=UTC))
    next_month = metered(at_noon(october), fleet(october), datetime(2026, 12, 1, 1, tzinfo=UTC))

    assert (first.month["dev"], first.month[SHARED]) == (24 * DEV_HOUR, 0)
    assert next_month.month["dev"] == DEV_HOUR


def test_each_day_that_ends_is_reported_once_with_its_own_hours():
    begun = at_noon(make_instance())

    reading, days = advance(
        begun, fleet(make_instance()), budget(), "USD", datetime(2026, 11, 23, 6, tzinfo=UTC)
    )

    assert [day.name for day in days] == ["2026-11-21", "2026-11-22"]
    assert [day.instances["i-1"].seconds / 3600 for day in days] == [12, 24]
    assert reading.day.instances["i-1"].seconds / 3600 == 6
    assert advance(reading, fleet(make_instance()), budget(), "USD", reading.until)[1] == []


RESERVED = {"on_demand": {"g5.xlarge": Decimal(2)}, "spot": {"g5.xlarge": Decimal(2)}, "reserved": 2}


def reserved(**changes):
    return {"pools": {"dev": prices(**RESERVED, **changes), "train": prices()}}


def test_what_is_reserved_is_paid_whether_used_or_not_and_an_end_inside_it_saves_nothing():
    begun = note_ends(metered(None, fleet(make_instance()), NOON, **reserved()), ["i-1"], at(1))

    reading = metered(
        begun, fleet(gone=(make_instance(state="terminated", stopped_at=at(1)),)), at(3), **reserved()
    )

    disks = Decimal("0.10")
    assert reading.month["dev"] == 3 * 2 * Decimal(2) + disks
    assert reading.day.unused == {"dev": {"": Unused(3600 * (3 + 2), Decimal(5 * 2))}}
    assert reading.day.saved == {}
    assert MeterReading.from_json(json.loads(json.dumps(reading.to_json())), "meter.json") == reading


SEVERAL = {
    "dev": prices(
        **RESERVED | {"reserved": 4},
        disk_per_hour=Decimal(0),
        reservations=(
            PaidReservation("cr-a", 2, "gpu-fleet-test-dev-cr-a", at(2)),
            PaidReservation("cr-b", 2, "gpu-fleet-test-dev-cr-b"),
        ),
    )
}


def in_group(name, *instances):
    """Return a fleet whose instances a group started, as AWS names groups."""
    title = f"gpu-fleet-test-dev-{name}-1a2b3c4"
    group = Group(title, 0, 0, {each.id: "InService" for each in instances}, pool="dev", title=title)
    return replace(fleet(*instances), groups=(group,))


def test_each_reservation_is_paid_until_it_ends_and_no_instance_of_another_uses_it():
    both = [make_instance(), make_instance("i-2")]
    begun = metered(None, in_group("cr-a", *both), NOON, pools=SEVERAL)

    reading = metered(begun, in_group("cr-a", *both), at(4), pools=SEVERAL)
    detached = metered(reading, fleet(*both), at(5), pools=SEVERAL)  # the sweep detaches before it terminates

    uses = reserved_in_use(detached.running.values(), budget(pools=SEVERAL), at(5))
    assert reading.month["dev"] == 2 * 2 * 2 + 2 * 2 * 2 + 2 * 2 * 2 + 2 * 2 * 2
    assert reading.day.unused == {"dev": {"cr-b": Unused(2 * 4 * 3600, Decimal(16))}}
    assert uses == [ReservedUse("dev", "cr-b", 0, 2)]
    assert detached.day.unused["dev"]["cr-b"].seconds == 2 * 5 * 3600
    assert MeterReading.from_json(json.loads(json.dumps(detached.to_json())), "meter.json") == detached


@pytest.mark.parametrize("pools", [reserved()["pools"], SEVERAL], ids=["only", "several"])
def test_an_instance_of_a_renamed_pool_stays_in_its_reservation_and_is_no_unpriced_one(pools):
    running = in_group("cr-b", make_instance())
    known, renamed = (budget(pools={name: pools["dev"]}) for name in ("dev", "dev2"))
    before, _ = advance(None, running, known, "USD", NOON)

    after, _ = advance(before, running, renamed, "USD", at(1))
    ended, _ = advance(note_ends(after, ["i-1"], at(1)), fleet(), renamed, "USD", at(2))

    uses = reserved_in_use(after.running.values(), renamed, at(3))
    assert [(use.pool, use.used) for use in uses][-1] == ("dev2", 1)
    paid = sum(use.paid for use in reserved_in_use((), renamed, NOON))
    assert sum(unused.seconds for unused in after.day.unused["dev2"].values()) == (paid - 1) * 3600
    assert unpriced(running.instances, renamed, after.running) == 0
    assert per_hour(running.instances, renamed, uses, after.running)["dev"] > 0
    assert ended.day.saved == {}


def test_an_hour_of_a_reservation_costs_all_of_it_and_what_nobody_knows_the_price_of_makes_a_least_sum():
    known, unknown = (
        budget(**reserved()),
        budget(**reserved() | {"pools": {"dev": prices(on_demand={"p": None}, reserved=1)}}),
    )

    both = [make_instance(), make_instance("i-2")]
    running = at_noon(*both).running.values()
    assert per_hour([], known, reserved_in_use([], known, NOON))["dev"] == 4
    assert per_hour(both, known, reserved_in_use(running, known, NOON))["dev"] == Decimal("4.20")
    assert advance(at_noon(), fleet(), unknown, "USD", at(1))[0].at_least


def test_two_currencies_are_never_added():
    with pytest.raises(CloudError, match="counts in USD, and the policy's prices are in CNY"):
        advance(at_noon(make_instance()), fleet(make_instance()), budget(), "CNY", NOON + HOUR)


def test_a_clock_that_is_set_back_changes_nothing():
    reading = metered(at_noon(make_instance()), fleet(make_instance()), NOON + HOUR)

    assert metered(reading, fleet(), NOON) == reading


def test_the_forecast_continues_at_the_pace_of_the_last_day_or_of_what_runs_in_the_first_hour():
    start = datetime(2026, 11, 21, tzinfo=UTC)
    old = make_instance(launched_at=start)
    reading = metered(metered(None, fleet(old), start), fleet(old), start + 36 * HOUR)

    pace = DEV_HOUR + Decimal("0.50")
    assert forecast(reading, Decimal(0)) == 36 * pace + pace * (240 - 36)
    assert forecast(at_noon(make_instance()), Decimal(1)) == 9 * 24 + 12


@pytest.mark.parametrize("damage", [{"until": "yesterday"}, {"month": None}, {"running": {"i-1": {}}}])
def test_a_damaged_reading_is_named_and_not_begun_anew(damage):
    with pytest.raises(CloudError, match=r"meter\.json: .*restore a version"):
        MeterReading.from_json({**at_noon(make_instance()).to_json(), **damage}, "meter.json")


MINUTES = st.integers(1, 4000)
STATES = st.sampled_from(["running", "stopped", "terminated", "vanished"])


@st.composite
def lives(draw):
    """Draw sweeps at rising minutes, each with the states of up to four instances."""
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
def test_a_reservation_costs_as_much_as_if_it_was_used_all_the_time(story):
    reading = at_noon()
    for now, seen in story:
        reading, days = advance(reading, seen, budget(**reserved(disk_per_hour=Decimal(0))), "USD", now)
        hours = Decimal((now - NOON).total_seconds()) / 3600
        assert reading.month["dev"] >= (2 * 2 * hours).quantize(Decimal("1e-6")) - Decimal("1e-6")
        assert not any(
            share.instance.pool == "dev" for day in [*days, reading.day] for share in day.saved.values()
        )


@given(lives())
def test_a_restart_between_any_two_sweeps_changes_nothing(story):
    straight = restarted = at_noon()
    for now, seen in story:
        straight = metered(straight, seen, now)
        restarted = MeterReading.from_json(
            json.loads(json.dumps(metered(restarted, seen, now).to_json())), "meter.json"
        )
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
