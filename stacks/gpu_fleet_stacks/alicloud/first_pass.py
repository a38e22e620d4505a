"""Resources that the provider cannot create in one pass, and the passes of ``gpu-fleet up``. Pure.

Two resources take more than one ``pulumi up`` to reach the declared state, without manual steps:

- A scaling configuration with an eRDMA interface. The provider creates none that names its security group
  inside ``network_interfaces`` ("security_group_id or security_group_ids must be assigned",
  resource_alicloud_ess_scaling_configuration.go), but its update does, and Auto Scaling then drops the group
  outside. The same update enables the scaling group before it changes the interface, and an enabled group
  launches instances. So the first pass makes the configuration, the second sets its interface, the third
  enables the group. The third also suspends processes: Auto Scaling may refuse that for a group that is not
  enabled (IncorrectScalingGroupStatus), which the provider retries until it gives up
  (resource_alicloud_ess_suspend_process.go).
- An alarm on a custom metric. Auto Scaling accepts one only once CloudMonitor knows the metric (API
  CreateAlarm), so it is left out until a first value was reported into the stack's application group.

The plan shows which resources are in this state, whatever an earlier ``up`` left unfinished. One environment
variable passes the stages to the program. Without it the program declares the finished stack, so a bare
``pulumi up`` of a deployed stack reverts nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

VARIABLE = "GPU_FLEET_FIRST_PASS"
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"
ALARM = "alicloud:ess/alarm:Alarm"
SUSPENSION = "alicloud:ess/suspendProcess:SuspendProcess"
HEALTH = "-health"  # ends the name of a group's suspension, which begins as its configuration's
CREATES = ("create", "create-replacement", "replace")


class DeclaredStage(StrEnum):
    """Stage of a resource that takes several passes.

    ``made``: the configuration as the provider creates it, its scaling group not enabled. ``joined``: with
    its interface, the group still not enabled. ``withheld``: not declared at all.
    """

    MADE = "made"
    JOINED = "joined"
    WITHHELD = "withheld"


class PlanStep(Protocol):
    """A step of Pulumi's plan (``gpu_fleet_stacks.plan_check.plan``)."""

    @property
    def op(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def old(self) -> Mapping[str, Any]: ...
    @property
    def new(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class FirstValue:
    """A metric that CloudMonitor must know before an alarm can watch it.

    Attributes:
        dimensions: name -> value, as the alarm has them.
    """

    metric: str
    dimensions: Mapping[str, str]


def stage_of(name: str, environ: Mapping[str, str]) -> DeclaredStage | None:
    """Return the stage of a resource in this pass; None for its final state.

    Raises ValueError if the variable holds nothing that ``passes`` wrote.
    """
    stages = json.loads(environ.get(VARIABLE) or "{}")
    return DeclaredStage(stages[name]) if name in stages else None


def passes(steps: Sequence[PlanStep]) -> tuple[dict[str, DeclaredStage], ...]:
    """Return the passes before the last, which has no stages; none where one ``up`` is enough."""
    created = [step.name for step in steps if step.op in CREATES and _wants_interface(step)]
    made = [step.name for step in steps if _lacks_interface(step)]
    withheld = [step.name for step in steps if _on_custom_metric(step)]
    first = (
        dict.fromkeys(created, DeclaredStage.MADE)
        | dict.fromkeys(made, DeclaredStage.JOINED)
        | dict.fromkeys([*withheld, *_suspended(steps, [*created, *made])], DeclaredStage.WITHHELD)
    )
    second = dict.fromkeys(created, DeclaredStage.JOINED) | dict.fromkeys(
        _suspended(steps, created), DeclaredStage.WITHHELD
    )
    return tuple(stages for stages in (first, second) if stages)


def first_values(steps: Sequence[PlanStep]) -> tuple[FirstValue, ...]:
    """Return the metrics to report after the first pass, before the alarms are created."""
    return tuple(
        FirstValue(step.new["metricName"], dict(step.new["dimensions"]))
        for step in steps
        if _on_custom_metric(step)
    )


def _wants_interface(step: PlanStep) -> bool:
    return step.type == CONFIGURATION and bool(step.new.get("networkInterfaces"))


def _lacks_interface(step: PlanStep) -> bool:
    """Return whether only a first pass has made the configuration, so that it lacks its interface."""
    return step.op == "update" and _wants_interface(step) and not step.old.get("networkInterfaces")


def _suspended(steps: Sequence[PlanStep], configurations: Sequence[str]) -> list[str]:
    """Return the new suspensions of processes in the groups of some configurations; existing ones stay."""
    names = {f"{name}{HEALTH}" for name in configurations}
    return [
        step.name for step in steps if step.type == SUSPENSION and step.op == "create" and step.name in names
    ]


def _on_custom_metric(step: PlanStep) -> bool:
    return step.type == ALARM and step.op in CREATES and step.new.get("metricType") == "custom"
