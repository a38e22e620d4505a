"""Fifth act: the month's budget is spent. One sweep reports it and freezes the training pools.

The act raises the meter in the bucket as if many instances had run in the first weeks of the month. That cost
is the only invented part; everything else is the stack's own: the function's archive, its policy, its bucket,
the alarms, the groups.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import sweep_archive
from gpu_fleet_stacks.rehearsal import instances, processes, sweeps
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.errors import RehearsalError
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Purpose, Stack

METER = "meter.json"
LAUNCH = "Launch"
RECENT = timedelta(minutes=15)


@dataclass(frozen=True)
class Breached:
    """Results of the act.

    Attributes:
        alarms_raised: the budget's alarms on money spent whose threshold the meter passed.
        groups_frozen: training groups that launch nothing any more and keep their size.
        instances_touched: instances that changed.
        limits_given_back: groups whose limit ``gpu-fleet unfreeze`` restored.
        spent_usd: this month's cost by the meter, most of it invented by this act.
    """

    alarms_raised: int
    alarms_declared: int
    groups_frozen: int
    groups_of_training: int
    instances_touched: int
    limits_given_back: int
    spent_usd: Decimal
    seconds: float


def play(clients: RegionClients, settings: Stack, rehearsed: Rehearsed, folder: Path) -> Breached:
    """Spend the month's budget, sweep once, and lift the freeze.

    Raises:
        ChildError: the sweep or the command fails.
        RehearsalError: there is no meter yet, or the sweep metered nothing.
    """
    started = time.perf_counter()
    function = sweeps.unpacked(rehearsed, folder / "function")
    names = training_groups(settings, rehearsed)
    before, limits = instances.pictures(clients, settings.name), dict(_limits(clients, names))
    spend(clients, rehearsed, Decimal(settings.budget.monthly))
    spending = sweeps.by_function(function)["spending"]
    if spending is None:
        raise RehearsalError("the sweep metered nothing: see function.log")
    after = instances.pictures(clients, settings.name)
    frozen = dict(_groups(clients, names))
    alarms = list(_alarms(clients, settings.name))
    raised = [alarm for alarm in alarms if _published(clients, alarm) > alarm["Threshold"]]
    _unfreeze(function, folder)
    return Breached(
        alarms_raised=len(raised),
        alarms_declared=len(alarms),
        groups_frozen=sum(_is_frozen(group_state) for group_state in frozen.values()),
        groups_of_training=len(names),
        instances_touched=sum(after.get(key) != picture for key, picture in before.items()),
        limits_given_back=sum(limits[name] == most for name, most in _limits(clients, names)),
        spent_usd=Decimal(spending["month_cost"]),
        seconds=time.perf_counter() - started,
    )


def training_groups(settings: Stack, rehearsed: Rehearsed) -> list[str]:
    """Return the scaling groups of every pool that a freeze stops."""
    pools = [pool.name for pool in settings.pools if pool.purpose is Purpose.TRAINING]
    return [name for pool in pools for name in rehearsed.outputs["group_names"][pool]]


def spend(clients: RegionClients, rehearsed: Rehearsed, amount: Decimal) -> None:
    """Raise this month's cost in the meter. Raises RehearsalError."""
    bucket = rehearsed.outputs["bucket_uris"]["records"].removeprefix("s3://")
    key, s3 = f"reaper/{METER}", clients("s3")
    try:
        reading: dict[str, Any] = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except s3.exceptions.NoSuchKey as error:
        raise RehearsalError(f"s3://{bucket}/{key} is not there: no sweep has metered yet") from error
    pool = next(iter(reading["month"]))
    reading["month"][pool] = str(Decimal(reading["month"][pool]) + amount)
    s3.put_object(Bucket=bucket, Key=key, Body=json.dumps(reading).encode())


def _groups(clients: RegionClients, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    answer = clients("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=names)
    for group in answer["AutoScalingGroups"]:
        yield group["AutoScalingGroupName"], group


def _limits(clients: RegionClients, names: list[str]) -> Iterator[tuple[str, int]]:
    for name, group in _groups(clients, names):
        yield name, group["MaxSize"]


def _is_frozen(group: Mapping[str, Any]) -> bool:
    closed = LAUNCH in {suspended_process["ProcessName"] for suspended_process in group["SuspendedProcesses"]}
    return closed and group["MaxSize"] == max(len(group["Instances"]), group["MinSize"])


def _alarms(clients: RegionClients, stack: str) -> Iterator[dict[str, Any]]:
    """Yield the budget's alarms on money spent; moto stores alarms but never raises one."""
    prefix = naming.prefixed(stack, "actual-")
    yield from clients("cloudwatch").describe_alarms(AlarmNamePrefix=prefix)["MetricAlarms"]


def _published(clients: RegionClients, alarm: Mapping[str, Any]) -> float:
    """Return the value that the alarm would read: its statistic of its metric, over the allowed delay."""
    now = datetime.now(UTC)
    statistics = clients("cloudwatch").get_metric_statistics(
        Namespace=alarm["Namespace"],
        MetricName=alarm["MetricName"],
        Dimensions=alarm["Dimensions"],
        StartTime=now - RECENT,
        EndTime=now + RECENT,
        Period=alarm["Period"],
        Statistics=[alarm["Statistic"]],
    )
    return max((point[alarm["Statistic"]] for point in statistics["Datapoints"]), default=0.0)


def _unfreeze(function: sweeps.Function, folder: Path) -> None:
    command = [
        *(sys.executable, "-m", "gpu_fleet_image.console", "unfreeze"),
        *("--reason", "the rehearsal goes on", "--policy", str(function.folder / "policy.json")),
    ]
    processes.run(
        command, folder / "unfreeze.log", {**function.environment, "PYTHONPATH": str(sweep_archive.ROOT)}
    )


def summary(breached: Breached) -> str:
    """Return the act in one line."""
    return (
        f"{breached.spent_usd:,.2f} USD spent: "
        f"{breached.alarms_raised} of {breached.alarms_declared} alarms go off, "
        f"{breached.groups_frozen} of {breached.groups_of_training} training groups launch nothing, "
        f"{breached.instances_touched} instances touched; "
        f"unfreeze restored {breached.limits_given_back} limits"
    )
