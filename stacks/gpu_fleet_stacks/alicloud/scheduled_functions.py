"""Table of a stack's scheduled functions and their alarms: one row each. Pure."""

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.metrics import METRIC_SWEEP_FAILURES
from gpu_fleet_stacks.alicloud import function_roles
from gpu_fleet_stacks.alicloud.functions import FunctionRow
from gpu_fleet_stacks.payload import builds_plan, image_files, sweep_archive
from gpu_fleet_stacks.settings import Stack, people, people_rules

SWEEP = "gpu_fleet_image.controllers.sweep.function_compute"


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
            entry=f"{sweep_archive.BUILDS}.alicloud",
            every_minutes=10,
            timeout_s=120,
            statements=function_roles.build_controller,
            metrics={"problem": "ImageBuildProblems"},
            failed_passes=1,  # passes are further apart than this metric's periods
            beside={keys.BUILDS_FILE: plan},
        )
    ]
