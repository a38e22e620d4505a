"""Scale out under load; ask, never force, the way in.

A low-load alarm has no action of its own: ending a healthy instance is the sweep's alone. The sweep reads the
alarm's state as a request and takes instances that are idle by its own evidence.
"""

from typing import Any

import pulumi
import pulumi_aws as aws

from stacks import naming
from stacks.settings import Pool, Stack
from stacks.settings.pools import (
    COOLDOWN_OUT_S,
    GPU_MEMORY_METRIC,
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
    """Declare the scale-out policy and the alarms of one group.

    Args:
        name: prefix of the resources' logical names.
    """
    more = aws.autoscaling.Policy(
        f"{name}-out",
        autoscaling_group_name=group.name,
        policy_type="SimpleScaling",
        adjustment_type="ChangeInCapacity",
        scaling_adjustment=1,
        cooldown=COOLDOWN_OUT_S,
        opts=opts,
    )
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
            alarm_actions=[more.arn] if alarm.high else [],
            tags=naming.tags(stack.name, stack.owner, pool=pool.name),
            opts=opts,
            **metric,
        )


def _metric(stack: Stack, pool: Pool, group: aws.autoscaling.Group, alarm: LoadAlarm) -> dict[str, Any]:
    if alarm.gpu_memory:
        namespace, name, of = naming.metric_namespace(stack.name), GPU_MEMORY_METRIC, {"Pool": pool.name}
        return {"namespace": namespace, "metric_name": name, "dimensions": of}
    of_group = {"AutoScalingGroupName": group.name}
    return {"namespace": "AWS/EC2", "metric_name": "CPUUtilization", "dimensions": of_group}
