"""The metrics between agents and sweep: names, units, dimensions and codes.

Agents publish every ``HEARTBEAT`` in ``GpuFleet/<stack>`` with the single dimension ``InstanceId``, and
**without a timestamp**: the cloud's time of receipt counts, so that an instance's wrong clock cannot make old
data look fresh. (A rehearsal whose clock runs fast sends its own time.) ``GpuUtilisationPercent`` and
``GpuMemoryUsedPercent`` are published a second time with the single dimension ``Pool``: the pool's scale-out
alarm watches the utilisation.

The sweep reads ``SecondsSinceActivity`` alone, with the statistic ``Minimum``, so that a code below zero or a
short activity within a period is never averaged away.
"""

from dataclasses import dataclass
from datetime import timedelta

HEARTBEAT = timedelta(seconds=60)

# Share of the last minute's samples with activity, 0 to 1. For users' dashboards.
METRIC_ACTIVE_FRACTION = "ActiveFraction"
# Seconds since the last activity by a monotonic clock, or a code. After a restart of agent or instance it
# counts from the first complete sample, unless the agent knows that it missed nothing.
METRIC_SECONDS_SINCE_ACTIVITY = "SecondsSinceActivity"
# 1 once the boot check passed, 0 if it failed; nothing while it runs. For users who wait for the instance.
METRIC_GATE_PASSED = "GatePassed"
# Share of the time in which a kernel ran, 0 to 100: mean over the minute and all GPUs that report it,
# whatever else the instance did. Nothing if no GPU reports it (MIG).
METRIC_GPU_UTILISATION = "GpuUtilisationPercent"
# Share of multiprocessors with work, 0 to 100: mean as above, of GPUs that report it (NVML's GPM, Hopper and
# newer). A kernel that fills one multiprocessor of 132 is 100 % of the utilisation, and 1 % of this.
METRIC_GPU_SM_ACTIVITY = "GpuSmActivityPercent"
# Memory in use on the fullest GPU, 0 to 100.
METRIC_GPU_MEMORY = "GpuMemoryUsedPercent"

CODE_UNKNOWN = -1.0  # a sensor failed: it is unknown whether the instance is idle
CODE_HUNG = -2.0  # GPU at 100 % utilisation and idle power: reported, never terminated
CODE_UNFIT = -3.0  # the boot check failed and nothing runs: the sweep may replace the instance

DIMENSION_INSTANCE = "InstanceId"
DIMENSION_POOL = "Pool"

# The sweep's own figures, without dimensions, once a run.
METRIC_SWEEP_RUNS = "SweepRuns"
METRIC_SWEEP_FAILURES = "SweepFailures"
METRIC_SWEEP_BREAKER = "SweepBreakerTrips"
METRIC_SWEEP_ENDED = "SweepMachinesEnded"
METRIC_SWEEP_MARKED = "SweepMachinesMarked"
METRIC_SWEEP_UNKNOWN = "SweepMachinesUnknown"
METRIC_SWEEP_UNREACHED = "SweepUsersUnreached"
# Instances, by their names in the records, that write more names there than agents do; the report lists them.
METRIC_SWEEP_FLOODING = "SweepFloodingCallers"


# The meter's figures after each sweep, in the policy's currency: once for each pool with the dimension
# ``Pool`` (``_shared`` for what all of them use), and once for the whole stack without a dimension.
METRIC_HOUR_COST = "HourCost"
METRIC_MONTH_COST = "MonthCost"
# Of the whole stack only: the month's cost at the rate of the last day, the budget, and the freeze of the
# pools that freeze (0 none, 1 capped at their size, 2 closed to new instances).
METRIC_MONTH_FORECAST = "MonthForecast"
METRIC_MONTH_BUDGET = "MonthBudget"
METRIC_FREEZE = "FreezeStage"
# Of the whole stack only: running instances without a known price, which count as nothing.
METRIC_UNPRICED = "UnpricedInstances"


@dataclass(frozen=True)
class Figure:
    """One number that the sweep or its meter publishes.

    Attributes:
        pool: the value of its dimension ``Pool``; None for no dimension.
    """

    name: str
    value: float
    pool: str | None = None


def namespace(stack: str) -> str:
    """Return the namespace of a stack's metrics."""
    return f"GpuFleet/{stack}"
