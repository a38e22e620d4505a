"""No fault makes a sweep end work, and none keeps forgotten machines for long once it is over."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.reaper.fault_machine import FaultMachine


def test_no_machine_at_work_is_ended_whatever_goes_wrong():
    """The same runs each time; ``python -m tests.bench.bench_reaper`` looks for new ones."""
    run_state_machine_as_test(
        FaultMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            suppress_health_check=list(HealthCheck),
            deadline=None,
            derandomize=True,
            database=None,
        ),
    )

    assert FaultMachine.ends > 0, "a machine that is never ended proves nothing"
