"""Fifth act: the month's budget is spent. One sweep of the function reports it, and freezes training pools.

The meter in the bucket is moved on as if there had been many instances in the month's first weeks: that
money is the one thing here that nobody spent. Everything else is the stack's own: the function's archive, its
policy, its bucket, the alarms, the groups.
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

from stacks import naming
from stacks.rehearsal import instances, processes, sweeps
from stacks.rehearsal.clients import RegionClients
from stacks.rehearsal.errors import RehearsalError
from stacks.rehearsal.program import ROOT, Rehearsed
from stacks.settings import Purpose, Stack

METER = "meter.json"
LAUNCH = "Launch"
RECENT = timedelta(minutes=15)


@dataclass(frozen=True)
class Breached:
    """Results of the act.

    Attributes:
        alarms_raised: of the budget's alarms on money spent, those whose threshold the meter passed.
        groups_frozen: training groups that start nothing any more, and are as large as they are.
        instances_touched: instances that are not as they were.
        limits_given_back: groups that ``gpu-fleet unfreeze`` gave their limit back.
        spent_usd: this month by the meter, most of it invented by this act.
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
    """Spend the month's money, sweep once, and lift the freeze.

    Raises:
        ChildError: when the sweep or the command fails.
        RehearsalError: when nothing was metered before, or the sweep says nothing of it.
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
    """The scaling groups of every pool that a freeze concerns."""
    pools = [pool.name for pool in settings.pools if pool.purpose is Purpose.TRAINING]
    return [name for pool in pools for name in rehearsed.outputs["group_names"][pool]]


def spend(clients: RegionClients, rehearsed: Rehearsed, amount: Decimal) -> None:
    """Let the meter say that so much more was spent this month.

    Raises:
        RehearsalError: there is no meter yet: a sweep makes it.
    """
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
    """The budget's alarms on what is spent; moto keeps them and lets none go off."""
    prefix = naming.prefixed(stack, "actual-")
    yield from clients("cloudwatch").describe_alarms(AlarmNamePrefix=prefix)["MetricAlarms"]


def _published(clients: RegionClients, alarm: Mapping[str, Any]) -> float:
    """What the alarm would have looked at: its statistic of its metric, over the time it may come late."""
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
        *(sys.executable, "-m", "image.reaper", "unfreeze"),
        *("--reason", "the rehearsal goes on", "--policy", str(function.folder / "policy.json")),
    ]
    processes.run(command, folder / "unfreeze.log", {**function.environment, "PYTHONPATH": str(ROOT)})


def summary(breached: Breached) -> str:
    """The act in one line."""
    return (
        f"{breached.spent_usd:,.2f} USD spent: "
        f"{breached.alarms_raised} of {breached.alarms_declared} alarms go off, "
        f"{breached.groups_frozen} of {breached.groups_of_training} training groups launch nothing, "
        f"{breached.instances_touched} instances touched; "
        f"unfreeze restored {breached.limits_given_back} limits"
    )
