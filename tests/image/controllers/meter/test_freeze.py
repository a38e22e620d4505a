"""A freeze: no instance starts, no running one is touched, and every group gets its limit back."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.meter.freeze_rules import Freeze, FreezeStage, due, follow, lift, note, steps
from gpu_fleet_image.core.model import Group
from gpu_fleet_image.core.reaper_errors import CloudError
from tests.image.controllers.metered import NOON, budget

CAPPED_AT, CLOSED_AT = Decimal(800), Decimal(1000)
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC)
NOVEMBER = Freeze("2026-11")


def group(name="train", members=2, **changes):
    states = {f"i-{name}-{index}": "InService" for index in range(members)}
    known = {"min_size": 0, "desired": members, "members": states, "max_size": 8, "pool": "train"}
    return Group(name=name, **(known | changes))


def applied(freeze, groups):
    """Return the groups after all steps; no step may set a limit below the running instances."""
    after = {group.name: group for group in groups}
    for step in steps(freeze, groups, budget()):
        item = after[step.group]
        if step.max_size is not None:
            assert step.max_size >= max(item.size, item.min_size)
            after[step.group] = replace(item, max_size=step.max_size)
        else:
            after[step.group] = replace(item, closed=step.closed)
    return list(after.values())


def frozen(spent, groups, before=NOVEMBER, now=NOON):
    freeze = note(follow(before, Decimal(spent), budget(), now), groups, budget())
    return freeze, applied(freeze, groups)


@pytest.mark.parametrize(
    ("spent", "stage"),
    [
        *((spent, FreezeStage.OPEN) for spent in (0, 799)),
        *((spent, FreezeStage.CAPPED) for spent in (800, 999)),
        (1000, FreezeStage.CLOSED),
    ],
)
def test_the_last_but_one_share_caps_and_the_last_closes(spent, stage):
    assert due(Decimal(spent), budget(percents=(50, 80, 100))) is stage


def test_a_budget_that_only_notifies_never_freezes():
    assert due(Decimal(10**6), budget(on_exceeded="notify")) is FreezeStage.OPEN


@pytest.mark.parametrize(("spent", "closed", "after"), [(CAPPED_AT, False, 3), (CLOSED_AT, True, 1)])
def test_a_capped_group_may_replace_what_leaves_and_a_closed_one_shrinks_with_it(spent, closed, after):
    freeze, (held,) = frozen(spent, [group(members=3)])

    later = replace(held, members=dict(list(held.members.items())[:1]))

    assert (held.max_size, held.closed) == (3, closed)
    assert applied(freeze, [later])[0].max_size == after


def test_instances_on_their_way_out_are_not_counted_and_those_on_their_way_in_are():
    members = {"i-1": "InService", "i-2": "Terminating:Wait", "i-3": "Pending:Wait", "i-4": "Detaching"}

    assert group(members=0, desired=4).size == 0
    assert frozen(CLOSED_AT, [replace(group(), members=members)])[1][0].max_size == 2


def test_pools_that_do_not_freeze_are_left_alone():
    freeze, _ = frozen(CLOSED_AT, [group("people", pool="dev")])

    assert freeze.groups == {}


def test_a_user_lifts_what_is_spent_and_the_next_share_freezes_again():
    freeze, groups = frozen(CAPPED_AT, [group()])
    lifted = lift(freeze, CAPPED_AT, budget(), NOON)

    assert [group.max_size for group in applied(lifted, groups)] == [8]
    assert follow(lifted, Decimal(999), budget(), NOON).stage is FreezeStage.OPEN
    assert follow(lifted, CLOSED_AT, budget(), NOON).stage is FreezeStage.CLOSED
    assert follow(lifted, CAPPED_AT, budget(), DECEMBER).stage is FreezeStage.CAPPED, "for its month only"


@pytest.mark.parametrize("members", [2, 5])
def test_a_limit_that_a_user_raised_meanwhile_is_held_again_at_what_runs_and_its_first_value_kept(members):
    freeze, _ = frozen(CAPPED_AT, [group(members=2)])
    raised = replace(group(members=members), max_size=6)

    again, (held,) = frozen(CAPPED_AT, [raised], freeze)

    assert held.max_size == members
    assert again.groups["train"].max_size == 8


def test_groups_in_line_need_no_step():
    freeze, groups = frozen(CLOSED_AT, [group()])

    assert list(steps(freeze, groups, budget())) == []


@pytest.mark.parametrize(
    "damage", [{"stage": "melted"}, {"groups": {"a": {}}}, {"month": None, "groups": None}]
)
def test_a_damaged_freeze_is_named(damage):
    with pytest.raises(CloudError, match=r"freeze\.json"):
        Freeze.from_json(NOVEMBER.to_json() | damage, "freeze.json")


GROUPS = st.lists(
    st.builds(
        lambda name, members, least, most, closed: group(
            name, members, min_size=min(least, most), max_size=max(members, most), closed=closed
        ),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 8),
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda build: build.name,
)


@given(GROUPS, st.lists(st.integers(0, 1200), min_size=1, max_size=5))
def test_whatever_is_spent_no_limit_falls_below_what_runs_and_all_come_back_in_a_new_month(groups, amounts):
    first, freeze, now = groups, NOVEMBER, groups
    for spent in amounts:
        freeze, now = frozen(spent, now, freeze)
        assert Freeze.from_json(freeze.to_json(), "freeze.json").stage is freeze.stage
    opened, back = frozen(0, now, freeze, DECEMBER)

    assert opened.stage is FreezeStage.OPEN
    assert [(one.max_size, one.closed) for one in back] == [(one.max_size, one.closed) for one in first]


@pytest.mark.parametrize("spent", [CAPPED_AT, CLOSED_AT])
@pytest.mark.parametrize("lifted_at_once", [True, False])
def test_a_limit_that_users_raise_during_a_freeze_is_the_one_that_comes_back(spent, lifted_at_once):
    """The stack counts as updated: the next update would see no difference, and leave the old limit."""
    freeze, (held,) = frozen(spent, [group()])
    now = replace(held, max_size=20)
    if not lifted_at_once:
        freeze, (now,) = frozen(spent, [now], freeze)

    _, (opened,) = frozen(0, [now], freeze)

    assert opened.max_size == 20
