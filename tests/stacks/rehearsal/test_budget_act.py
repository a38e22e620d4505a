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
    for words, wrong in WRONG.items():
        (promise,) = closing.broken_promises({"budget": asdict(breached) | wrong})
        assert words in promise


WRONG = {
    "stays silent": {"alarms_raised": 1},
    "launches instances although": {"groups_frozen": 0},
    "touched 3 instances": {"instances_touched": 3},
    "did not get its limit back": {"limits_given_back": 0},
}
