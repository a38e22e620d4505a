"""No fault makes a sweep end an instance in use, or keeps forgotten instances for long afterwards."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.image.controllers.sweep.fault_state_machine import FaultStateMachine, same_runs_each_time


@pytest.mark.parametrize("runs", [5, pytest.param(60, marks=pytest.mark.prove)])
def test_no_instance_at_work_is_terminated_whatever_fails(runs):
    """The runs are always the same; ``python -m tests.bench.bench_reaper`` looks for new ones."""
    before = FaultStateMachine.ends_amid_faults

    run_state_machine_as_test(FaultStateMachine, settings=same_runs_each_time(runs))

    assert FaultStateMachine.ends_amid_faults > before, "an instance that is never ended proves nothing"
