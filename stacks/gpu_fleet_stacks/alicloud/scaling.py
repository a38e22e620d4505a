"""Alarms that request one more instance under high load, or one less under low load.

Every alarm of Auto Scaling must act, so these act by a rule that changes nothing. The mover reads the alarms
on high load, and decides where an instance starts. The sweep reads those on low load, and terminates
instances that are idle by its own evidence.
"""

import os

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_image.core.metrics import METRIC_GPU_UTILISATION
from gpu_fleet_stacks.alicloud.first_pass import DeclaredStage, stage_of
from gpu_fleet_stacks.settings import Pool, Stack
from gpu_fleet_stacks.settings.pools import (
    COOLDOWN_IN_S,
    PERIOD_S,
    GroupPlan,
    alarm_name,
    load_alarms,
)


def scale_by_load(
    name: str,
    stack: Stack,
    pool: Pool,
    *,
    plan: GroupPlan,
    group: alicloud.ess.ScalingGroup,
    monitor_group: pulumi.Output[str],
    opts: pulumi.ResourceOptions,
) -> None:
    """Declare the alarms of one group, and the rule of their action.

    Args:
        name: prefix of the resources' logical names.
        monitor_group: the application group of the metrics that agents publish.
    """
    ask = alicloud.ess.ScalingRule(
        f"{name}-ask",
        scaling_group_id=group.id,
        scaling_rule_name=f"{name}-ask",
        scaling_rule_type="SimpleScalingRule",
        # Only some references of CreateScalingRule allow a change by 0 instances; all allow 0 percent.
        adjustment_type="PercentChangeInCapacity",
        adjustment_value=0,
        cooldown=COOLDOWN_IN_S,
        opts=opts,
    )
    for alarm in load_alarms(plan):
        if stage_of(f"{name}-{alarm.label}", os.environ) is DeclaredStage.WITHHELD:
            continue
        metric = METRIC_GPU_UTILISATION if alarm.of_gpus else "CpuUtilization"
        alicloud.ess.Alarm(
            f"{name}-{alarm.label}",
            name=alarm_name(stack, plan, alarm),
            description=f"{metric} of pool {pool.name}: {alarm.asks}",
            enable=True,
            scaling_group_id=group.id,
            metric_type="custom" if alarm.of_gpus else "system",
            metric_name=metric,
            dimensions={"Stack": stack.name, "Pool": pool.name} if alarm.of_gpus else None,
            cloud_monitor_group_id=monitor_group.apply(int) if alarm.of_gpus else None,
            statistics="Average",
            comparison_operator=">" if alarm.high else "<",
            threshold=str(alarm.percent),
            period=PERIOD_S,
            evaluation_count=alarm.for_s // PERIOD_S,
            alarm_actions=[ask.ari],
            opts=opts,
        )
