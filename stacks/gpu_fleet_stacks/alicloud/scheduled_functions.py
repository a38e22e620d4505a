"""The scheduled functions of a stack and their alarms: one row each."""

import json
from collections.abc import Mapping

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.metrics import METRIC_SWEEP_FAILURES
from gpu_fleet_stacks.alicloud import function_roles
from gpu_fleet_stacks.alicloud.alarms import SILENCE_S, alarm
from gpu_fleet_stacks.alicloud.function_roles import FunctionInputs
from gpu_fleet_stacks.alicloud.functions import FunctionRow, ScheduledFunction
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import builds_plan, image_files, sweep_archive
from gpu_fleet_stacks.settings import Stack, people, people_rules

SWEEP = "gpu_fleet_image.controllers.sweep.function_compute"
FAILURES_PERIOD_S = 60


def rows(stack: Stack) -> tuple[FunctionRow, ...]:
    """Return the stack's functions, in the order of their declaration."""
    return (_sweep(stack), _mover(stack), *_reader_of_groups(stack), *_build_controller(stack))


def _sweep(stack: Stack) -> FunctionRow:
    return FunctionRow(
        component="Reaper",
        label="reaper",
        purpose=f"Terminates forgotten instances of gpu-fleet stack {stack.name}",
        entry=SWEEP,
        every_minutes=stack.reaper.every_minutes,
        timeout_s=300,  # a fleet of thousands is swept within a minute; a sweep's lease lasts 15 minutes
        statements=function_roles.sweep,
        metrics={
            "failures": METRIC_SWEEP_FAILURES,
            "breaker": "SweepBreakerTrips",
            "notices": "SweepNotices",
            **({"unreached": "SweepUsersUnreached"} if stack.notify.anybody else {}),
        },
    )


def _mover(stack: Stack) -> FunctionRow:
    """Return the mover, which runs each minute: so long at most a group without capacity is asked in vain."""
    return FunctionRow(
        component="Capacity",
        label="capacity",
        purpose=f"Decides where instances of gpu-fleet stack {stack.name} start",
        entry=f"{sweep_archive.MOVER}.alicloud",
        every_minutes=1,
        timeout_s=120,
        statements=function_roles.mover,
        failed_passes=3,
    )


def _reader_of_groups(stack: Stack) -> list[FunctionRow]:
    """Return the function that reads RAM user groups and writes the roster that instances pull."""
    directory = stack.access.directory
    if directory is None:
        return []
    return [
        FunctionRow(
            component="People",
            label="people",
            purpose=f"Lists the accounts on instances of gpu-fleet stack {stack.name}",
            entry=f"{sweep_archive.PEOPLE}.alicloud",
            every_minutes=1,
            timeout_s=55,
            statements=lambda inputs: function_roles.reader_of_groups(inputs, directory),
            failed_passes=3,
            beside={keys.DIRECTORY_FILE: people.directory_text(stack, directory, people_rules.TAKEN_NAMES)},
        )
    ]


def _build_controller(stack: Stack) -> list[FunctionRow]:
    """Return the function that starts one image build a week, and tries again."""
    if stack.image.base_id is None:
        return []
    plan = builds_plan.plan_text(stack, [image_files.ecs_pipeline_name(stack)])
    return [
        FunctionRow(
            component="ImageBuilds",
            label="builds",
            purpose=f"Controls image builds of gpu-fleet stack {stack.name}",
            entry=f"{builds_plan.KEEPER}.alicloud",
            every_minutes=10,
            timeout_s=120,
            statements=function_roles.build_controller,
            metrics={"problem": "ImageBuildProblems"},
            failed_passes=1,  # passes are further apart than this metric's periods
            beside={keys.BUILDS_FILE: plan},
        )
    ]


class FunctionWithAlarms(pulumi.ComponentResource):
    """One row of the table."""

    function_name: pulumi.Output[str]

    def __init__(
        self, name: str, row: FunctionRow, inputs: FunctionInputs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(f"gpu-fleet:alicloud:{row.component}", name, None, opts)
        stack, own, group = inputs.stack, f"{name}-{row.label}", inputs.contact_group
        function = ScheduledFunction(own, row, inputs, pulumi.ResourceOptions(parent=self))
        for label, metric in row.metrics.items():
            alarm(f"{own}-{label}", stack, metric=metric, above="0", contact_group=group, parent=self)
        if row.failed_passes is not None:
            _alarm_of_failures(
                f"{own}-errors",
                stack,
                function.function_name,
                times=row.failed_passes,
                contact_group=group,
                parent=self,
            )
        self.function_name = function.function_name
        self.register_outputs({"function_name": function.function_name})


def declare(
    name: str, inputs: FunctionInputs, opts: pulumi.ResourceOptions
) -> Mapping[str, pulumi.Output[str]]:
    """Declare every function of the table; return label -> the function's name."""
    return {
        row.label: FunctionWithAlarms(name, row, inputs, opts).function_name for row in rows(inputs.stack)
    }


def _alarm_of_failures(
    name: str,
    stack: Stack,
    function_name: pulumi.Output[str],
    *,
    times: int,
    contact_group: pulumi.Input[str],
    parent: pulumi.Resource,
) -> alicloud.cms.Alarm:
    """Notify the stack's contacts, at most once a day, that a function fails again and again.

    Function Compute counts failures by region and function; its metrics have periods of a minute and the
    statistics ``Value`` (help.aliyun.com/en/functioncompute/fc/user-guide/monitoring-data).
    """
    which = function_name.apply(lambda made: json.dumps([{"region": stack.region, "functionName": made}]))
    return alicloud.cms.Alarm(
        name,
        name=name,
        project="acs_fc",
        metric="FunctionFunctionErrors",
        metric_dimensions=which,
        contact_groups=[contact_group],
        period=FAILURES_PERIOD_S,
        silence_time=SILENCE_S,
        enabled=True,
        escalations_critical=alicloud.cms.AlarmEscalationsCriticalArgs(
            statistics="Value", comparison_operator=">", threshold="0", times=times
        ),
        tags=naming.tags(stack.name, stack.owner),
        opts=pulumi.ResourceOptions(parent=parent),
    )
