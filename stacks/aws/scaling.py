"""Scale out under load; ask, never force, the way in.

A low-load alarm has no action of its own: ending a healthy instance is the sweep's alone. The sweep reads the
alarm's state as a request and takes instances that are idle by its own evidence.
"""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from stacks import naming
from stacks.settings import Pool, Stack

CPU_OUT_PERCENT = 80
CPU_IN_PERCENT = 30
GPU_MEMORY_OUT_PERCENT = 85
COOLDOWN_OUT_S = 300
COOLDOWN_IN_S = 600
PERIOD_S = 60
GPU_MEMORY_METRIC = "GpuMemoryUsedPercent"
LOW_LOAD = "cpu-low"  # label of the alarm that asks the sweep


@dataclass(frozen=True)
class Watch:
    """One alarm on one metric of a scaling group.

    Attributes:
        label: part of the alarm's name.
        namespace, metric, dimensions: what is watched.
        above: threshold in percent when the alarm is for too much load; None when for too little.
        below: threshold in percent when the alarm is for too little load; None when for too much.
        for_s: how long the load must last.
    """

    label: str
    namespace: str
    metric: str
    dimensions: dict[str, pulumi.Input[str]]
    above: int | None
    below: int | None
    for_s: int


def alarm_name(stack: Stack, group: str, label: str) -> str:
    """An alarm's full name: the sweep's policy names the low-load alarm by it."""
    return naming.prefixed(stack.name, group, label)


def watches(stack: Stack, pool: Pool, group_name: pulumi.Input[str], *, first: bool) -> tuple[Watch, ...]:
    """What is watched on a group of the pool: CPU both ways, GPU memory on the way out.

    The memory is the whole pool's, so only its first group answers to it: of a pool with a group for each
    zone all would start an instance at once.
    """
    cpu: dict[str, pulumi.Input[str]] = {"AutoScalingGroupName": group_name}
    memory: dict[str, pulumi.Input[str]] = {"Pool": pool.name}
    own = naming.metric_namespace(stack.name)
    of_group = (
        Watch("cpu-high", "AWS/EC2", "CPUUtilization", cpu, CPU_OUT_PERCENT, None, COOLDOWN_OUT_S),
        Watch(LOW_LOAD, "AWS/EC2", "CPUUtilization", cpu, None, CPU_IN_PERCENT, COOLDOWN_IN_S),
    )
    of_pool = Watch(
        "gpu-memory-high", own, GPU_MEMORY_METRIC, memory, GPU_MEMORY_OUT_PERCENT, None, COOLDOWN_OUT_S
    )
    return (*of_group, of_pool) if first else of_group


def scale_by_load(
    name: str,
    stack: Stack,
    pool: Pool,
    *,
    label: str,
    first: bool,
    group: aws.autoscaling.Group,
    parent: pulumi.Resource,
) -> None:
    """Declare the scale-out policy and the alarms of one group.

    Args:
        name: prefix of the resources' logical names.
        stack: the settings.
        pool: the group's pool.
        label: the group's label, unique in the stack.
        first: whether the group is the pool's first.
        group: the scaling group.
        parent: the component that owns it.
    """
    child = pulumi.ResourceOptions(parent=parent)
    more = aws.autoscaling.Policy(
        f"{name}-out",
        autoscaling_group_name=group.name,
        policy_type="SimpleScaling",
        adjustment_type="ChangeInCapacity",
        scaling_adjustment=1,
        cooldown=COOLDOWN_OUT_S,
        opts=child,
    )
    for watch in watches(stack, pool, group.name, first=first):
        high = watch.above is not None
        aws.cloudwatch.MetricAlarm(
            f"{name}-{watch.label}",
            name=alarm_name(stack, label, watch.label),
            alarm_description=f"{watch.metric} of pool {pool.name}: "
            + ("one instance more" if high else "the sweep may terminate an idle instance"),
            namespace=watch.namespace,
            metric_name=watch.metric,
            dimensions=watch.dimensions,
            statistic="Average",
            comparison_operator="GreaterThanThreshold" if high else "LessThanThreshold",
            threshold=watch.above if high else watch.below,
            period=PERIOD_S,
            evaluation_periods=watch.for_s // PERIOD_S,
            treat_missing_data="notBreaching",
            alarm_actions=[more.arn] if high else [],
            tags=naming.tags(stack.name, stack.owner, pool=pool.name),
            opts=child,
        )
