"""No fault makes a sweep on Alibaba Cloud end work: every call through the real SDK to a local server."""

from typing import ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test

from gpu_fleet_image.core.policy import Policy
from tests.image.controllers.sweep.fault_state_machine import POOL, FaultStateMachine, same_runs_each_time
from tests.image.sweeping import policy

CLOUD = {"cloud": "alicloud", "region": "cn-wulanchabu"}


class AlicloudFaultStateMachine(FaultStateMachine):
    """Fault state machine with Alibaba Cloud, and the same owners, agents and clocks."""

    policy: ClassVar[Policy] = policy(top=CLOUD, **POOL)


@pytest.mark.parametrize("runs", [5, pytest.param(12, marks=pytest.mark.prove)])
def test_no_instance_at_work_is_terminated_on_alibaba_cloud_whatever_fails(runs):
    """The runs are always the same; ``python -m tests.bench.bench_reaper_alicloud`` looks for new ones."""
    before = FaultStateMachine.ends_amid_faults

    run_state_machine_as_test(AlicloudFaultStateMachine, settings=same_runs_each_time(runs))

    assert FaultStateMachine.ends_amid_faults > before, "an instance that is never ended proves nothing"
