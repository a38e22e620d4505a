"""The act in which the month's money is spent, played by itself against moto."""

from dataclasses import asdict

import pytest

from gpu_fleet_stacks.rehearsal import budget_act, closing, sweeps
from gpu_fleet_stacks.rehearsal.clients import ClientPool, RegionClients
from gpu_fleet_stacks.rehearsal.errors import RehearsalError
from gpu_fleet_stacks.settings import stack_files
from tests.stacks.standing import usable


@pytest.fixture
def local(forked_functions):
    with usable("local") as rehearsed:
        yield rehearsed, RegionClients("us-east-1", ClientPool())


def test_one_sweep_after_the_money_is_spent_alarms_freeze_and_no_instance_is_touched(local, tmp_path):
    rehearsed, clients = local
    with pytest.raises(RehearsalError, match="no sweep has metered yet"):
        budget_act.spend(clients, rehearsed, 1)
    sweeps.by_function(sweeps.unpacked(rehearsed, tmp_path / "first"))

    breached = budget_act.play(clients, stack_files.settings_of("local"), rehearsed, tmp_path / "act")

    assert (breached.alarms_raised, breached.alarms_declared) == (2, 2)
    assert (breached.groups_frozen, breached.groups_of_training) == (1, 1)
    assert (breached.instances_touched, breached.limits_given_back) == (0, 1)
    assert closing.broken_promises({"budget": asdict(breached)}) == []


RIGHT = {
    "alarms_raised": 2,
    "alarms_declared": 2,
    "groups_frozen": 1,
    "groups_of_training": 1,
    "instances_touched": 0,
    "limits_given_back": 1,
}


def test_a_figure_of_the_budget_that_must_never_be_is_reported():
    for wrong, words in (
        ({"alarms_raised": 1}, "stays silent"),
        ({"groups_frozen": 0}, "launches instances although"),
        ({"instances_touched": 3}, "touched 3 instances"),
        ({"limits_given_back": 0}, "did not get its limit back"),
    ):
        (promise,) = closing.broken_promises({"budget": RIGHT | wrong})
        assert words in promise
