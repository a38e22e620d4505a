"""Alarms on the sweep for operators: it fails, falls silent, or holds instances back."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core.metrics import METRIC_SWEEP_FAILURES, METRIC_SWEEP_RUNS
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

SILENT_AFTER_S = 1800
PERIOD_S = 300


@dataclass(frozen=True)
class Alarm:
    """A condition of the sweep that an operator must look at.

    Attributes:
        period_s: seconds over which the metric is summed.
        at_least: the sum from which it alarms; None to alarm for a sum below 1 or without data.
    """

    label: str
    says: str
    namespace: str
    metric: str
    dimensions: dict[str, pulumi.Input[str]]
    period_s: int = PERIOD_S
    at_least: int | None = 1


def alarms(
    stack: Stack, function_name: pulumi.Input[str], queue_name: pulumi.Input[str]
) -> tuple[Alarm, ...]:
    """Return every alarm on the sweep."""
    own = naming.metric_namespace(stack.name)
    function = {"FunctionName": function_name}
    longest_silence_s = max(SILENT_AFTER_S, 3 * stack.reaper.every_minutes * 60)
    return (
        Alarm("errors", "A sweep failed altogether", "AWS/Lambda", "Errors", function),
        Alarm("failures", "A sweep had failed actions: see its log", own, METRIC_SWEEP_FAILURES, {}),
        Alarm("silent", "No sweep ran", own, METRIC_SWEEP_RUNS, {}, longest_silence_s, None),
        Alarm(
            "breaker",
            "More of a pool is idle than is usual there; they are held back for a day",
            own,
            "SweepBreakerTrips",
            {},
        ),
        *_unreached(stack),
        Alarm(
            "undelivered",
            "The schedule could not start a sweep",
            "AWS/SQS",
            "NumberOfMessagesSent",
            {"QueueName": queue_name},
        ),
    )


def _unreached(stack: Stack) -> tuple[Alarm, ...]:
    """Return the alarm on failed notices, for a stack that names users or rooms to notify."""
    if not stack.notify.anybody:
        return ()
    says = "A user or a room could not be notified before an instance is terminated: see the sweep's log"
    own = naming.metric_namespace(stack.name)
    return (Alarm("unreached", says, own, "SweepUsersUnreached", {}),)


def declare_alarms(
    name: str,
    stack: Stack,
    *,
    function_name: pulumi.Input[str],
    queue_name: pulumi.Input[str],
    topic_arn: pulumi.Input[str],
    parent: pulumi.Resource,
) -> None:
    """Declare every alarm of the sweep.

    Args:
        queue_name: queue of the events that the function did not handle.
    """
    for alarm in alarms(stack, function_name, queue_name):
        silent = alarm.at_least is None
        aws.cloudwatch.MetricAlarm(
            f"{name}-{alarm.label}",
            name=f"{name}-{alarm.label}",
            alarm_description=alarm.says,
            namespace=alarm.namespace,
            metric_name=alarm.metric,
            dimensions=alarm.dimensions,
            statistic="Sum",
            comparison_operator="LessThanThreshold" if silent else "GreaterThanOrEqualToThreshold",
            threshold=1 if alarm.at_least is None else alarm.at_least,
            period=alarm.period_s,
            evaluation_periods=1,
            treat_missing_data="breaching" if silent else "notBreaching",
            alarm_actions=[topic_arn],
            tags=naming.tags(stack.name, stack.owner),
            opts=pulumi.ResourceOptions(parent=parent),
        )
