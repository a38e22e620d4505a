"""No fault makes a sweep end work, and none keeps forgotten instances for long once it is over."""

from hypothesis.stateful import run_state_machine_as_test

from tests.reaper.fault_machine import FaultMachine, same_runs_each_time


def test_no_instance_at_work_is_ended_whatever_goes_wrong():
    """The same runs each time; ``python -m tests.bench.bench_reaper`` looks for new ones."""
    run_state_machine_as_test(
        FaultMachine,
        settings=same_runs_each_time(60),
    )

    assert FaultMachine.ends_amid_faults > 0, "a machine that is never ended proves nothing"
