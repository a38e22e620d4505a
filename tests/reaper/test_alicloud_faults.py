"""No fault makes a sweep on Alibaba Cloud end work: every call through the real SDK to a local server."""

from typing import ClassVar

from hypothesis.stateful import run_state_machine_as_test

from image.reaper.policy import Policy
from tests.reaper.fault_machine import POOL, FaultMachine, same_runs_each_time
from tests.reaper.sweeping import policy

CLOUD = {"cloud": "alicloud", "region": "cn-wulanchabu"}


class AlicloudFaultMachine(FaultMachine):
    """The same owners, agents and clocks; another cloud."""

    policy: ClassVar[Policy] = policy(top=CLOUD, **POOL)


def test_no_instance_at_work_is_ended_on_alibaba_cloud_whatever_goes_wrong():
    """The same few runs each time; ``python -m tests.bench.bench_reaper_alicloud`` looks for new ones."""
    before = FaultMachine.ends_amid_faults

    run_state_machine_as_test(
        AlicloudFaultMachine,
        settings=same_runs_each_time(12),
    )

    assert FaultMachine.ends_amid_faults > before, "a machine that is never ended proves nothing"
