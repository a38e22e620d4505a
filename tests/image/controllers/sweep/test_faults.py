"""No fault makes a sweep end an instance in use, or keeps forgotten instances for long afterwards."""

from typing import ClassVar

import pytest

from gpu_fleet_image.core.policy import Policy
from tests.image.controllers.sweep.fault_state_machine import POOL, FaultStateMachine, play
from tests.image.sweeping import CLOUDS, policy


class AlicloudFaultStateMachine(FaultStateMachine):
    """The same owners, agents and clocks; every call goes through the real SDK to a local server."""

    policy: ClassVar[Policy] = policy(top=CLOUDS["alicloud"], **POOL)


@pytest.mark.parametrize(
    ("machine", "runs"),
    [
        (FaultStateMachine, 5),
        (AlicloudFaultStateMachine, 5),
        pytest.param(FaultStateMachine, 60, marks=pytest.mark.prove),
        pytest.param(AlicloudFaultStateMachine, 12, marks=pytest.mark.prove),
    ],
    ids=["AWS", "Alibaba Cloud", "AWS, more", "Alibaba Cloud, more"],
)
def test_no_instance_at_work_is_terminated_whatever_fails(machine, runs):
    """The runs are always the same; ``bench_reaper`` and ``bench_reaper_alicloud`` look for new ones."""
    before = machine.counts["ends amid faults"]

    play(machine, runs, derandomize=True)

    assert machine.counts["ends amid faults"] > before, "an instance that is never ended proves nothing"
