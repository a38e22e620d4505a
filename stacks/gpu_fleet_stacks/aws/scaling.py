"""Alarms that request one more instance under high load, or one less under low load.

No alarm has an action of its own. The mover reads the alarms on high load, and decides where an instance
starts. The sweep reads those on low load, and terminates instances that are idle by its own evidence.
"""

from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core.metrics import METRIC_GPU_UTILISATION
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Pool, Stack
from gpu_fleet_stacks.settings.pools import (
    PERIOD_S,
    GroupPlan,
    LoadAlarm,
    alarm_name,
    load_alarms,
)


def scale_by_load(
    name: str,
    stack: Stack,
    pool: Pool,
    *,
    plan: GroupPlan,
    group: aws.autoscaling.Group,
    opts: pulumi.ResourceOptions,
) -> None:
    """Declare the alarms of one group."""
    for alarm in load_alarms(plan):
        metric = _metric(stack, pool, group, alarm)
        aws.cloudwatch.MetricAlarm(
            f"{name}-{alarm.label}",
            name=alarm_name(stack, plan, alarm),
            alarm_description=f"{metric['metric_name']} of pool {pool.name}: {alarm.asks}",
            statistic="Average",
            comparison_operator="GreaterThanThreshold" if alarm.high else "LessThanThreshold",
            threshold=alarm.percent,
            period=PERIOD_S,
            evaluation_periods=alarm.for_s // PERIOD_S,
            treat_missing_data="notBreaching",
            tags=naming.tags(stack.name, stack.owner, pool=pool.name),
            opts=opts,
            **metric,
        )


def _metric(stack: Stack, pool: Pool, group: aws.autoscaling.Group, alarm: LoadAlarm) -> dict[str, Any]:
    if alarm.of_gpus:
        namespace, name, of = naming.metric_namespace(stack.name), METRIC_GPU_UTILISATION, {"Pool": pool.name}
        return {"namespace": namespace, "metric_name": name, "dimensions": of}
    of_group = {"AutoScalingGroupName": group.name}
    return {"namespace": "AWS/EC2", "metric_name": "CPUUtilization", "dimensions": of_group}
