"""Scale out under load; ask, never force, the way in.

Every alarm of Auto Scaling must act. The one for low load acts by a rule that changes nothing: ending a
healthy instance is the sweep's alone. The sweep reads the alarm's state as a request and takes instances that
are idle by its own evidence.
"""

import os
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from stacks import naming
from stacks.alicloud.first_pass import Stage, stage_of
from stacks.settings import Pool, Stack

CPU_OUT_PERCENT = 80
CPU_IN_PERCENT = 30
GPU_MEMORY_OUT_PERCENT = 85
COOLDOWN_OUT_S = 300
COOLDOWN_IN_S = 600
PERIOD_S = 60
GPU_MEMORY_METRIC = "GpuMemoryUsedPercent"
LOW_LOAD = "cpu-low"


@dataclass(frozen=True)
class Watch:
    """One alarm on one metric of a scaling group.

    Attributes:
        label: part of the alarm's name.
        custom: whether agents publish the metric rather than the cloud.
        metric, dimensions: what is watched.
        above: threshold in percent when the alarm is for too much load; None when for too little.
        below: threshold in percent when the alarm is for too little load; None when for too much.
        for_s: how long the load must last.
    """

    label: str
    custom: bool
    metric: str
    dimensions: dict[str, pulumi.Input[str]]
    above: int | None
    below: int | None
    for_s: int


def alarm_name(stack: Stack, group: str, label: str) -> str:
    """An alarm's full name: the sweep's policy names the low-load alarm by it."""
    return naming.prefixed(stack.name, group, label)


def watches(stack: Stack, pool: Pool, *, first: bool) -> tuple[Watch, ...]:
    """What is watched on a group of the pool: CPU both ways, GPU memory on the way out.

    The memory is the whole pool's, so only its first group answers to it: of a pool with a group for each
    zone all would start an instance at once.
    """
    memory: dict[str, pulumi.Input[str]] = {"Stack": stack.name, "Pool": pool.name}
    of_group = (
        Watch("cpu-high", False, "CpuUtilization", {}, CPU_OUT_PERCENT, None, COOLDOWN_OUT_S),
        Watch(LOW_LOAD, False, "CpuUtilization", {}, None, CPU_IN_PERCENT, COOLDOWN_IN_S),
    )
    of_pool = Watch(
        "gpu-memory-high", True, GPU_MEMORY_METRIC, memory, GPU_MEMORY_OUT_PERCENT, None, COOLDOWN_OUT_S
    )
    return (*of_group, of_pool) if first else of_group


def scale_by_load(
    name: str,
    stack: Stack,
    pool: Pool,
    *,
    label: str,
    first: bool,
    group: alicloud.ess.ScalingGroup,
    monitor_group: pulumi.Output[str],
    parent: pulumi.Resource,
) -> None:
    """Declare the scale-out rule and the alarms of one group.

    Args:
        name: prefix of the resources' logical names.
        stack: the settings.
        pool: the group's pool.
        label: the group's label, unique in the stack.
        first: whether the group is the pool's first.
        group: the scaling group.
        monitor_group: the application group of the metrics that agents publish.
        parent: the component that owns it.
    """
    child = pulumi.ResourceOptions(parent=parent)
    more = _rule(f"{name}-out", group, 1, COOLDOWN_OUT_S, child)
    ask = _rule(f"{name}-ask", group, 0, COOLDOWN_IN_S, child)
    for watch in watches(stack, pool, first=first):
        if stage_of(f"{name}-{watch.label}", os.environ) is Stage.WITHHELD:
            continue
        high = watch.above is not None
        alicloud.ess.Alarm(
            f"{name}-{watch.label}",
            name=alarm_name(stack, label, watch.label),
            description=f"{watch.metric} of pool {pool.name}: "
            + ("one instance more" if high else "the sweep may terminate an idle instance"),
            enable=True,
            scaling_group_id=group.id,
            metric_type="custom" if watch.custom else "system",
            metric_name=watch.metric,
            dimensions=watch.dimensions or None,
            cloud_monitor_group_id=monitor_group.apply(int) if watch.custom else None,
            statistics="Average",
            comparison_operator=">" if high else "<",
            threshold=str(watch.above if high else watch.below),
            period=PERIOD_S,
            evaluation_count=watch.for_s // PERIOD_S,
            alarm_actions=[(more if high else ask).ari],
            opts=child,
        )


def _rule(
    name: str,
    group: alicloud.ess.ScalingGroup,
    change: int,
    cooldown_s: int,
    opts: pulumi.ResourceOptions,
) -> alicloud.ess.ScalingRule:
    return alicloud.ess.ScalingRule(
        name,
        scaling_group_id=group.id,
        scaling_rule_name=name,
        scaling_rule_type="SimpleScalingRule",
        # Only some references of CreateScalingRule allow a change by 0 instances; all allow one by 0 percent.
        adjustment_type="QuantityChangeInCapacity" if change else "PercentChangeInCapacity",
        adjustment_value=change,
        cooldown=cooldown_s,
        opts=opts,
    )
