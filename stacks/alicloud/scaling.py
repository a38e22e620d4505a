"""Scale out under load; ask, never force, the way in.

Every alarm of Auto Scaling must act. The one for low load acts by a rule that changes nothing: ending a
healthy instance is the sweep's alone. The sweep reads the alarm's state as a request and takes instances that
are idle by its own evidence.
"""

import os

import pulumi
import pulumi_alicloud as alicloud

from stacks.alicloud.first_pass import DeclaredStage, stage_of
from stacks.settings import Pool, Stack
from stacks.settings.pools import (
    COOLDOWN_IN_S,
    COOLDOWN_OUT_S,
    GPU_MEMORY_METRIC,
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
    """Declare the scale-out rule and the alarms of one group.

    Args:
        name: prefix of the resources' logical names.
        monitor_group: the application group of the metrics that agents publish.
    """
    more = _rule(f"{name}-out", group, 1, COOLDOWN_OUT_S, opts)
    ask = _rule(f"{name}-ask", group, 0, COOLDOWN_IN_S, opts)
    for alarm in load_alarms(plan):
        if stage_of(f"{name}-{alarm.label}", os.environ) is DeclaredStage.WITHHELD:
            continue
        metric = GPU_MEMORY_METRIC if alarm.gpu_memory else "CpuUtilization"
        alicloud.ess.Alarm(
            f"{name}-{alarm.label}",
            name=alarm_name(stack, plan, alarm),
            description=f"{metric} of pool {pool.name}: {alarm.asks}",
            enable=True,
            scaling_group_id=group.id,
            metric_type="custom" if alarm.gpu_memory else "system",
            metric_name=metric,
            dimensions={"Stack": stack.name, "Pool": pool.name} if alarm.gpu_memory else None,
            cloud_monitor_group_id=monitor_group.apply(int) if alarm.gpu_memory else None,
            statistics="Average",
            comparison_operator=">" if alarm.high else "<",
            threshold=str(alarm.percent),
            period=PERIOD_S,
            evaluation_count=alarm.for_s // PERIOD_S,
            alarm_actions=[(more if alarm.high else ask).ari],
            opts=opts,
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
