"""No fault makes a sweep end work, and none keeps forgotten instances for long once it is over."""

from hypothesis.stateful import run_state_machine_as_test

from tests.reaper.fault_state_machine import FaultStateMachine, same_runs_each_time


def test_no_instance_at_work_is_terminated_whatever_fails():
    """The same runs each time; ``python -m tests.bench.bench_reaper`` looks for new ones."""
    run_state_machine_as_test(
        FaultStateMachine,
        settings=same_runs_each_time(60),
    )

    assert FaultStateMachine.ends_amid_faults > 0, "an instance that is never ended proves nothing"
