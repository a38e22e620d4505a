"""Table of a stack's scheduled functions and their alarms: one row each. Pure."""

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.metrics import METRIC_SWEEP_FAILURES, METRIC_SWEEP_RUNS
from gpu_fleet_stacks.aws import function_roles
from gpu_fleet_stacks.aws.functions import LAMBDA, QUEUES, FunctionAlarm, FunctionRow
from gpu_fleet_stacks.payload import builds_plan, image_files, sweep_archive
from gpu_fleet_stacks.settings import Stack, people, people_rules

SILENT_AFTER_S, HOUR_S = 1800, 3600
# Failed passes within five minutes, of five or more: the next pass makes good for a single one.
FAILED_PASSES = 3


def rows(stack: Stack) -> tuple[FunctionRow, ...]:
    """Return the stack's functions, in the order of their declaration."""
    return (_sweep(stack), _mover(stack), *_reader_of_groups(stack), *_build_controller(stack))


def _sweep(stack: Stack) -> FunctionRow:
    return FunctionRow(
        component="Reaper",
        label="reaper",
        program="the sweep",
        purpose=f"Terminates forgotten instances of gpu-fleet stack {stack.name}",
        entry=sweep_archive.ENTRY,
        every_minutes=stack.reaper.every_minutes,
        timeout_s=300,  # a fleet of thousands is swept within a minute; a sweep's lease lasts 15 minutes
        latest_start_s=300,
        rights=function_roles.sweep,
        alarms=_alarms_of_sweep(stack),
        variables=("GPU_FLEET_LEDGER_URI", "GPU_FLEET_TOPIC_ARN"),
        keeps_failed_events=True,
    )


def _alarms_of_sweep(stack: Stack) -> tuple[FunctionAlarm, ...]:
    """Return its alarms; that on failed notices where the stack names users or rooms to notify."""
    silence_s = max(SILENT_AFTER_S, 3 * stack.reaper.every_minutes * 60)
    held = "More of a pool is idle than is usual there; they are held back for a day"
    unreached = "A user or a room could not be notified before an instance is terminated: see the sweep's log"
    undelivered = "The schedule could not start a sweep"
    return (
        FunctionAlarm("errors", "A sweep failed altogether", "Errors", LAMBDA),
        FunctionAlarm("failures", "A sweep had failed actions: see its log", METRIC_SWEEP_FAILURES),
        FunctionAlarm("silent", "No sweep ran", METRIC_SWEEP_RUNS, period_s=silence_s, at_least=None),
        FunctionAlarm("breaker", held, "SweepBreakerTrips"),
        *([FunctionAlarm("unreached", unreached, "SweepUsersUnreached")] if stack.notify.anybody else []),
        FunctionAlarm("undelivered", undelivered, "NumberOfMessagesSent", QUEUES),
    )


def _mover(stack: Stack) -> FunctionRow:
    """Return the mover, which runs each minute, and at once when an Auto Scaling group could not launch."""
    failed = "The mover fails again and again: no user gets an instance"
    return FunctionRow(
        component="Capacity",
        label="capacity",
        program="the mover",
        purpose=f"Decides where instances of gpu-fleet stack {stack.name} start",
        entry=f"{sweep_archive.MOVER}.aws",
        every_minutes=1,
        timeout_s=120,
        latest_start_s=60,
        rights=function_roles.mover,
        alarms=(FunctionAlarm("errors", failed, "Errors", LAMBDA, at_least=FAILED_PASSES),),
        on_failed_launches=True,
    )


def _reader_of_groups(stack: Stack) -> list[FunctionRow]:
    """Return the function that reads groups of IAM Identity Center and writes the roster of instances."""
    directory = stack.access.directory
    if directory is None:
        return []
    failed = "Groups cannot be read: former members keep their accounts, new members get none"
    return [
        FunctionRow(
            component="People",
            label="people",
            program="the reader of groups",
            purpose=f"Lists the accounts on instances of gpu-fleet stack {stack.name}",
            entry=f"{sweep_archive.PEOPLE}.aws",
            every_minutes=1,
            timeout_s=55,
            latest_start_s=60,
            rights=lambda inputs, log_arn: function_roles.reader_of_groups(inputs, log_arn, directory),
            alarms=(FunctionAlarm("errors", failed, "Errors", LAMBDA, at_least=FAILED_PASSES),),
            beside={keys.DIRECTORY_FILE: people.directory_text(stack, directory, people_rules.TAKEN_NAMES)},
        )
    ]


def _build_controller(stack: Stack) -> list[FunctionRow]:
    """Return the function that tries image builds again, promotes what was scanned and raises alarms."""
    if not stack.image.built:
        return []
    names = [image_files.pipeline_name(stack, zone) for zone in image_files.zones_of_builds(stack)]
    problem, metric = (
        (
            "No image was built or promoted: a build failed, none had an instance for its test in six hours, "
            "its findings are critical, or none began for a week. See the build controller's log"
        ),
        "ImageBuildProblems",
    )
    failed, silent = "The build controller failed", "The build controller did not run"
    return [
        FunctionRow(
            component="ImageBuilds",
            label="builds",
            program="the image build controller",
            purpose=f"Controls image builds of gpu-fleet stack {stack.name}",
            entry=f"{sweep_archive.BUILDS}.aws",
            every_minutes=10,
            timeout_s=120,
            latest_start_s=300,
            rights=function_roles.build_controller,
            alarms=(
                FunctionAlarm("problem", problem, metric, "", HOUR_S, 1, "Maximum"),
                FunctionAlarm("errors", failed, "Errors", LAMBDA, HOUR_S, FAILED_PASSES),
                FunctionAlarm("silent", silent, metric, "", HOUR_S, None, "SampleCount"),
            ),
            variables=(),
            beside={keys.BUILDS_FILE: builds_plan.plan_text(stack, names)},
        )
    ]
