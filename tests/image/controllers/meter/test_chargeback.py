"""Chargeback of a month: the rows add up to the meter."""

import csv
import io
import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.operators import focus
from gpu_fleet_image.console.operators.waste import NO_INSTANCE, sum_up
from gpu_fleet_image.controllers.meter.chargeback import (
    BY,
    CENT,
    Attribution,
    RunSpan,
    RunWork,
    as_text,
    charges,
    of_month,
    team_costs,
    work_of,
)
from gpu_fleet_image.controllers.meter.efficiency import Reported
from gpu_fleet_image.controllers.meter.meter import SHARED, advance
from gpu_fleet_image.controllers.meter.meter_state import Day, DayShare, MeteredInstance, Unused
from gpu_fleet_image.core.job_use import DayUse
from tests.image.console.operators.test_focus import POLICY
from tests.image.controllers.metered import HOUR, NOON, at_noon, budget, fleet, make_instance

MIDNIGHT = NOON.replace(hour=0)
UNUSED = {"dev": {"cr-1": Unused(7200, Decimal(4))}}


def share(hours=24, pool="dev", owner="ada", cost="24", gpus=8):
    instance = MeteredInstance(pool, owner, "g5.xlarge", gpus, Decimal(1))
    return DayShare(instance, int(hours * 3600), Decimal(cost))


def day(instances, rest="0", shared="1.20", **changes):
    costs = {"dev": sum((each.cost for each in instances.values()), Decimal(rest)), SHARED: Decimal(shared)}
    return Day(MIDNIGHT, costs, instances, **changes)


def test_owners_pay_for_their_instances_and_the_rest_has_rows_of_its_own():
    found = charges(
        [day({"i-1": share(), "i-2": share(hours=12, owner="bob", cost="12")}, "5", unused=UNUSED)],
        {"2026-11-21": {"i-1": Reported(Decimal("0.25"), Decimal("0.5"))}},
        "owner",
        {"dev": 8},
    )

    assert [(row.name, row.rented, row.computing, row.idle, row.unknown, row.cost) for row in found] == [
        ("ada", 192, 24, 72, 96, 24),
        ("bob", 96, 0, 0, 96, 12),
        ("(pool dev, cr-1 unused)", 16, 0, 16, 0, 4),
        ("(shared)", 0, 0, 0, 0, Decimal("1.20")),
        ("(pool dev, no instance)", 0, 0, 0, 0, 1),
    ]


def test_a_run_pays_for_its_hours_of_an_instance_and_the_owner_for_the_others():
    runs = [
        RunSpan("bob/digits-1", MIDNIGHT - 5 * HOUR, MIDNIGHT + 6 * HOUR),
        RunSpan("ada/gpt-2", MIDNIGHT + 12 * HOUR, MIDNIGHT + 15 * HOUR),
    ]

    found = charges([day({"i-1": share()})], {}, "run", {}, attribution=Attribution(runs={"i-1": runs}))

    assert {row.name: (row.rented, row.cost) for row in found} == {
        "(ada, no run)": (120, 15),
        "bob/digits-1": (48, 6),
        "ada/gpt-2": (24, 3),
        "(shared)": (0, Decimal("1.20")),
    }


def test_runs_that_share_an_instance_share_its_day():
    both = [RunSpan(name, MIDNIGHT, MIDNIGHT + 24 * HOUR) for name in ("ada/one", "ada/two")]

    found = charges([day({"i-1": share()})], {}, "run", {}, attribution=Attribution(runs={"i-1": both}))

    assert [(row.name, row.cost) for row in found[:2]] == [("ada/one", 12), ("ada/two", 12)]


def test_a_run_s_samples_are_those_of_its_own_time_on_all_its_instances():
    begin, end = MIDNIGHT, MIDNIGHT + HOUR
    node = RunSpan("ada/gpt-2", begin, end, 900, 100, 2.0)
    runs = {
        "i-1": [node, RunSpan("ada/old", begin - 24 * HOUR, end, 5)],
        "i-2": [node, RunSpan("bob/silent", begin, end), RunSpan("eve/odd", begin, end, 10**400, 0, 1.0)],
        "i-3": [replace(node, samples=1500, samples_before=900)],
    }

    work = work_of(runs, MIDNIGHT)

    assert work == {"ada/gpt-2": RunWork(1400, 2800), "bob/silent": RunWork(), "eve/odd": RunWork()}
    assert work["ada/gpt-2"].columns(Decimal(7)) == {
        "samples": 1400,
        "tokens": 2800,
        "samples_per_unit": "200.0",
        "tokens_per_unit": "400.0",
    }
    assert set(work["bob/silent"].columns(Decimal(7)).values()) == {None}


def test_a_team_pays_for_its_people_and_who_has_none_is_named():
    held = {"i-1": share(), "i-2": share(owner="bob"), "i-3": share(owner="")}

    found = charges([day(held)], {}, "team", {}, attribution=Attribution(teams={"ada": "vision"}))

    assert {row.name for row in found} == {"vision", "(bob, no team)", "nobody", "(shared)"}


QUEUED = Attribution(
    teams={"ada": "vision"},
    jobs={"2026-11-21": {"i-1": {"ada/gpt": 21_600.0, "bob/wrap": 43_200.0}}},
    queued={"train"},
)


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("owner", {"bob": 12, "ada": 6, "(pool train, no job)": 30}),
        ("team", {"(bob, no team)": 12, "vision": 6, "(pool train, no job)": 30}),
        ("run", {"bob/wrap": 12, "ada/gpt": 6, "(pool train, no job)": 30}),
        ("pool", {"train": 48}),
        ("instance", {"i-1": 24, "i-2": 24}),
    ],
)
def test_jobs_pay_for_their_time_and_that_without_one_is_the_pools(by, rows):
    held = {name: share(pool="train", owner="") for name in ("i-1", "i-2")}
    whole = Day(MIDNIGHT, {"train": Decimal(48)}, held)

    found = charges([whole], {}, by, {}, attribution=QUEUED)

    assert {row.name: row.cost for row in found} == rows
    assert sum(row.rented for row in found) == 2 * 24 * 8


@pytest.mark.parametrize("by", ["owner", "team", "run"])
def test_a_day_without_a_record_of_jobs_is_unknown_and_not_idle(by):
    whole = Day(MIDNIGHT, {"train": Decimal(24)}, {"i-1": share(pool="train", owner="")})

    (row,) = charges([whole], {}, by, {}, attribution=replace(QUEUED, jobs={}))

    assert (row.name, row.cost) == ("(pool train, jobs unknown)", 24)


@pytest.mark.parametrize("by", ["owner", "team", "run"])
def test_time_that_no_controller_saw_is_unknown_and_not_idle(by):
    held = {name: share(pool="train", owner="") for name in ("i-1", "i-2")}
    unseen = replace(QUEUED, unseen={"2026-11-21": 8 * 3600.0})

    found = charges([Day(MIDNIGHT, {"train": Decimal(48)}, held)], {}, by, {}, attribution=unseen)

    costs = {row.name: row.cost for row in found}
    assert costs["(pool train, jobs unknown)"] == 6 + 8, "what jobs left of one, and eight hours of the other"
    assert costs["(pool train, no job)"] == 16


def test_jobs_on_an_instance_that_somebody_took_leave_them_the_rest():
    found = charges([day({"i-1": share(owner="eve")}, shared="0")], {}, "run", {}, attribution=QUEUED)

    assert {row.name: row.cost for row in found} == {"ada/gpt": 6, "bob/wrap": 12, "(eve, no run)": 6}


def test_a_team_pays_for_the_jobs_of_its_people():
    held = day({"i-1": share(owner=""), "i-2": share(owner="ada")})

    costs = team_costs(held, QUEUED.teams, DayUse("2026-11-21", QUEUED.jobs["2026-11-21"]))

    assert costs == {"vision": 30, "no-team": 18}


def test_who_logs_in_by_an_address_is_in_the_team_of_their_account():
    held, teams = day({"i-1": share(owner="Ada@lab.example"), "i-2": share(owner="bob")}), {"ada": "vision"}

    rows = charges([held], {}, "team", {}, attribution=Attribution(teams=teams))

    assert set(team_costs(held, teams)) == {"vision", "no-team"}
    assert "vision" in {row.name for row in rows}


COSTS = st.decimals("0", "99", places=9)
MINUTES = st.integers(-1500, 5000)


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), COSTS), max_size=6), min_size=1, max_size=4),
    COSTS,
    st.sampled_from(sorted(BY)),
    st.lists(st.tuples(st.integers(0, 5), MINUTES, MINUTES), max_size=9),
    st.dictionaries(
        st.integers(0, 5).map("i-{}".format),
        st.dictionaries(st.sampled_from(["a/x", "b/x", "b/y"]), st.floats(0, 86_400), max_size=3),
    ),
)
def test_the_rows_add_up_to_the_meter_to_the_cent(days, earlier, by, runs, used):
    listed = [
        replace(
            day({f"i-{n}": share(owner=owner, cost=str(cost)) for n, (owner, cost) in enumerate(each)}),
            date=MIDNIGHT + timedelta(days=index),
        )
        for index, each in enumerate(days)
    ]
    month = sum((each.cost for each in listed), earlier)

    spans = {
        f"i-{at}": [
            RunSpan(f"run {n}", MIDNIGHT + timedelta(minutes=begin), MIDNIGHT + timedelta(minutes=end))
            for n, (of, begin, end) in enumerate(runs)
            if of == at
        ]
        for at in range(6)
    }

    jobs = {each.name: used for each in listed[:2]}
    attribution = Attribution({"a": "vision"}, spans, jobs, {"dev"})

    found = charges(listed, {}, by, {}, month, attribution=attribution)
    as_focus = focus.rows(listed, month, POLICY, "123456789012", teams={"a": "vision"}, jobs=jobs)

    assert sum(Decimal(row["BilledCost"]) for row in as_focus) == month
    assert sum(row.cost for row in found) == month.quantize(CENT)
    assert all(row.cost == row.cost.quantize(CENT) for row in found)


HELD = st.dictionaries(
    st.sampled_from(["cr-1", "cr-2", "cr-10"]), st.tuples(st.integers(1, 9 * 86400), COSTS), max_size=3
)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), COSTS), max_size=4),
    HELD,
    HELD,
    COSTS,
    st.sampled_from(sorted(BY)),
)
def test_unused_reservations_are_charged_once_and_are_the_whole_idle_cost_of_no_instance(
    own, dev, train, rest, by
):
    """By chargeback and by the report of waste alike; other costs of a pool are neither idle nor unused."""
    unused = {
        pool: {name: Unused(seconds, cost) for name, (seconds, cost) in held.items()}
        for pool, held in (("dev", dev), ("train", train))
    }
    held = {pool: sum((each.cost for each in of.values()), Decimal(0)) for pool, of in unused.items()}
    instances = {
        f"i-{number}": share(owner=owner, cost=str(cost)) for number, (owner, cost) in enumerate(own)
    }
    first = day(instances, str(held["dev"] + rest), unused=unused)
    first = replace(first, costs={**first.costs, "train": held["train"]})
    gpus = {"dev": 8, "train": 1}

    charged = charges([first], {}, by, gpus)
    wasted = sum_up([first], {}, gpus, stack="lab", currency="USD")

    assert sum(row.cost for row in charged) == first.cost.quantize(CENT)
    assert {
        key: hours.idle_cost for key, hours in wasted.days[first.name].items() if key[1] == NO_INSTANCE
    } == {(pool, NO_INSTANCE): held[pool] for pool, of in unused.items() if of}
    assert abs(sum(row.rented for row in charged) - wasted.of().rented) <= CENT * len(charged)


def test_a_month_that_is_not_over_adds_up_to_the_meter_s_own_sum():
    begun, two = at_noon(make_instance(), make_instance("i-2", "train")), make_instance("i-2", "train")
    reading, over = advance(begun, fleet(make_instance(), two), budget(), "USD", NOON + 30 * HOUR)
    today, cost = of_month(reading, "2026-11")

    found = charges([*over, *today], {}, "pool", {}, cost)

    assert sum(row.cost for row in found) == reading.month_cost.quantize(CENT)
    assert {row.name for row in found} == {"dev", "train", "(shared)"}
    assert of_month(reading, "2026-10") == ([], None)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_both_forms_have_the_same_rows_and_no_owner_is_a_formula(form):
    rows = charges([day({"i-1": share(owner="=cmd()")})], {}, "owner", {})

    text = as_text(rows, "owner", "USD", form)

    read = json.loads(text) if form == "json" else list(csv.DictReader(io.StringIO(text)))
    assert [row["cost"] for row in read] == ["24.00", "1.20"]
    assert {row["currency"] for row in read} == {"USD"}
    assert read[0]["owner"] == ("=cmd()" if form == "json" else "'=cmd()")
