"""Alarms on the sweep for operators: it fails, or holds instances back."""

from dataclasses import dataclass

import pulumi

from gpu_fleet_image.core.metrics import METRIC_SWEEP_FAILURES
from gpu_fleet_stacks.alicloud.alarms import alarm
from gpu_fleet_stacks.settings import Stack


@dataclass(frozen=True)
class Alarm:
    """A condition of the sweep that an operator must look at.

    Attributes:
        metric: the metric to watch; any value above zero alarms.
    """

    label: str
    metric: str


def alarms(stack: Stack) -> tuple[Alarm, ...]:
    """Return every alarm on the sweep."""
    return (
        Alarm("failures", METRIC_SWEEP_FAILURES),
        Alarm("breaker", "SweepBreakerTrips"),
        Alarm("notices", "SweepNotices"),
        *([Alarm("unreached", "SweepUsersUnreached")] if stack.notify.anybody else []),
    )


def declare_alarms(
    name: str, stack: Stack, *, contact_group: pulumi.Input[str], parent: pulumi.Resource
) -> None:
    """Declare every alarm of the sweep."""
    for watched in alarms(stack):
        alarm(
            f"{name}-{watched.label}",
            stack,
            metric=watched.metric,
            above="0",
            contact_group=contact_group,
            parent=parent,
        )
