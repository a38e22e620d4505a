"""The contract between agents and sweep: names, units, dimensions and codes of every metric.

Agents publish every ``HEARTBEAT`` in ``GpuFleet/<stack>`` with the single dimension ``InstanceId``, and
**without a timestamp**: the cloud's time of receipt counts, so an instance's wrong clock cannot make old news
look fresh. (A rehearsal whose clock runs fast says its own time.) ``GpuUtilisationPercent`` and
``GpuMemoryUsedPercent`` are published a second time with the single dimension ``Pool``: the scale-out alarm
of the pool watches the utilisation.

The sweep reads ``SecondsSinceActivity`` alone, with the statistic ``Minimum``: a code below zero or a short
moment of work in a period is never averaged away.
"""

from dataclasses import dataclass
from datetime import timedelta

HEARTBEAT = timedelta(seconds=60)

# Share of the last minute's samples, 0 to 1, in which anything worked. For users' dashboards.
METRIC_ACTIVE_FRACTION = "ActiveFraction"
# Seconds since the last activity, by a monotonic clock, watched without a gap: after a restart of agent or
# instance it counts from the first complete sample, unless the agent knows of nothing missed. Or a code.
METRIC_SECONDS_SINCE_ACTIVITY = "SecondsSinceActivity"
# 1 once the boot check passed, 0 where it failed; nothing while it runs. For who waits for the instance.
METRIC_GATE_PASSED = "GatePassed"
# Mean over the minute and all GPUs that report it of the time in which a kernel ran, 0 to 100: what a GPU
# computed, however busy the rest of the instance was. Nothing where no GPU reports it (MIG).
METRIC_GPU_UTILISATION = "GpuUtilisationPercent"
# Memory in use of the fullest GPU, 0 to 100.
METRIC_GPU_MEMORY = "GpuMemoryUsedPercent"

CODE_UNKNOWN = -1.0  # a sensor failed: neither idle nor busy is known
CODE_HUNG = -2.0  # GPU at 100 % utilisation and idle power: reported, never reaped
CODE_UNFIT = -3.0  # the boot check failed, and nothing works on the instance: the sweep may replace it

DIMENSION_INSTANCE = "InstanceId"
DIMENSION_POOL = "Pool"

# What the sweep says of itself, without dimensions, once a run.
METRIC_SWEEP_RUNS = "SweepRuns"
METRIC_SWEEP_FAILURES = "SweepFailures"
METRIC_SWEEP_BREAKER = "SweepBreakerTrips"
METRIC_SWEEP_ENDED = "SweepMachinesEnded"
METRIC_SWEEP_MARKED = "SweepMachinesMarked"
METRIC_SWEEP_UNKNOWN = "SweepMachinesUnknown"
METRIC_SWEEP_UNREACHED = "SweepUsersUnreached"
# Instances, by their names in the records, that write more there than agents do; the report names them.
METRIC_SWEEP_FLOODING = "SweepFloodingCallers"


# What the meter says after each sweep, in the policy's currency: once with the dimension ``Pool`` for each
# pool (``_shared`` for what all of them use), and once without a dimension for the whole.
METRIC_HOUR_COST = "HourCost"
METRIC_MONTH_COST = "MonthCost"
# Of the whole only: the month's end at the pace of the last day, what the budget is, and how far the pools
# that freeze are frozen (0 not at all, 1 capped at their size, 2 closed to new instances).
METRIC_MONTH_FORECAST = "MonthForecast"
METRIC_MONTH_BUDGET = "MonthBudget"
METRIC_FREEZE = "FreezeStage"
# Of the whole only: running instances whose price nobody knows, and which count nothing.
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
    """The namespace of a stack's metrics."""
    return f"GpuFleet/{stack}"
