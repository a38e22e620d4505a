"""Alarms on the stack's own metrics in CloudMonitor."""

import json

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

# The default application group, for custom metrics that name no other (API PutCustomMetric).
NO_MONITOR_GROUP = "0"
PERIOD_S = 300
SILENCE_S = 86_400


def alarm(
    name: str,
    stack: Stack,
    *,
    metric: str,
    above: str,
    contact_group: pulumi.Input[str],
    parent: pulumi.Resource,
) -> alicloud.cms.Alarm:
    """Notify the stack's contacts, at most once a day, that a metric of the stack passed a threshold.

    Args:
        stack: the settings; the metric has the one dimension ``Stack``.
        above: the threshold, in the metric's unit.
    """
    return alicloud.cms.Alarm(
        name,
        name=name,
        project=f"acs_customMetric_{stack.account_id}",
        metric=metric,
        metric_dimensions=json.dumps([{"groupId": NO_MONITOR_GROUP, "dimension": f"Stack={stack.name}"}]),
        contact_groups=[contact_group],
        period=PERIOD_S,
        silence_time=SILENCE_S,
        enabled=True,
        escalations_critical=alicloud.cms.AlarmEscalationsCriticalArgs(
            statistics="Maximum", comparison_operator=">", threshold=above, times=1
        ),
        tags=naming.tags(stack.name, stack.owner),
        opts=pulumi.ResourceOptions(parent=parent),
    )
