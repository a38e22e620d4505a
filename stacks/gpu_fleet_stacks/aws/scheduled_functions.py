"""The scheduled functions of a stack and their alarms: one row each."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.metrics import METRIC_SWEEP_FAILURES, METRIC_SWEEP_RUNS
from gpu_fleet_stacks.aws import function_roles
from gpu_fleet_stacks.aws.function_roles import FunctionInputs
from gpu_fleet_stacks.aws.functions import FunctionAlarm, FunctionRow, declare_function
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import builds_plan, image_files, sweep_archive
from gpu_fleet_stacks.settings import Stack, people, people_rules

LAMBDA, QUEUES = "AWS/Lambda", "AWS/SQS"
SILENT_AFTER_S, HOUR_S = 1800, 3600
FAILED_EVENT_DAYS, DAY_S = 14, 86_400
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
            entry=f"{builds_plan.KEEPER}.aws",
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


class FunctionWithAlarms(pulumi.ComponentResource):
    """One row of the table."""

    function_name: pulumi.Output[str]

    def __init__(
        self, name: str, row: FunctionRow, inputs: FunctionInputs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(f"gpu-fleet:aws:{row.component}", name, None, opts)
        self._name, self._inputs = f"{name}-{row.label}", inputs
        self._child = pulumi.ResourceOptions(parent=self)
        self._tags = naming.tags(inputs.stack.name, inputs.stack.owner)
        dimensions: dict[str, dict[str, pulumi.Input[str]]] = {}
        if row.keeps_failed_events:
            queue = self._failed_events()
            inputs = replace(inputs, failed_events_arn=queue.arn)
            dimensions[QUEUES] = {"QueueName": queue.name}
        function = declare_function(self._name, row, inputs, self)
        dimensions[LAMBDA] = {"FunctionName": function.name}
        if row.on_failed_launches:
            self._on_failed_launches(function)
        for alarm in row.alarms:
            self._alarm(alarm, dimensions.get(alarm.namespace, {}))
        self.function_name = function.name
        self.register_outputs({"function_name": function.name})

    def _failed_events(self) -> aws.sqs.Queue:
        """Declare the queue of events that no function handled."""
        return aws.sqs.Queue(
            f"{self._name}-failed",
            name=f"{self._name}-failed",
            message_retention_seconds=FAILED_EVENT_DAYS * DAY_S,
            kms_master_key_id=self._inputs.key_arn,
            tags=self._tags,
            opts=self._child,
        )

    def _on_failed_launches(self, function: aws.lambda_.Function) -> None:
        """Run the mover at once when a launch failed, so that the next group is tried."""
        prefix = f"{naming.prefixed(self._inputs.stack.name)}-"
        rule = aws.cloudwatch.EventRule(
            f"{self._name}-failed",
            name=f"{self._name}-failed",
            description="An Auto Scaling group of the stack could not launch an instance",
            event_pattern=json.dumps(
                {
                    "source": ["aws.autoscaling"],
                    "detail-type": ["EC2 Instance Launch Unsuccessful"],
                    "detail": {"AutoScalingGroupName": [{"prefix": prefix}]},
                }
            ),
            tags=self._tags,
            opts=self._child,
        )
        aws.cloudwatch.EventTarget(
            f"{self._name}-failed", rule=rule.name, arn=function.arn, input="{}", opts=self._child
        )
        aws.lambda_.Permission(
            f"{self._name}-failed",
            action="lambda:InvokeFunction",
            function=function.name,
            principal="events.amazonaws.com",
            source_arn=rule.arn,
            opts=self._child,
        )

    def _alarm(self, alarm: FunctionAlarm, dimensions: Mapping[str, pulumi.Input[str]]) -> None:
        silent = alarm.at_least is None
        aws.cloudwatch.MetricAlarm(
            f"{self._name}-{alarm.label}",
            name=f"{self._name}-{alarm.label}",
            alarm_description=alarm.says,
            namespace=alarm.namespace or naming.metric_namespace(self._inputs.stack.name),
            metric_name=alarm.metric,
            dimensions=dimensions,
            statistic=alarm.statistic,
            comparison_operator="LessThanThreshold" if silent else "GreaterThanOrEqualToThreshold",
            threshold=1 if alarm.at_least is None else alarm.at_least,
            period=alarm.period_s,
            evaluation_periods=1,
            treat_missing_data="breaching" if silent else "notBreaching",
            alarm_actions=[self._inputs.topic_arn],
            tags=self._tags,
            opts=self._child,
        )


def declare(
    name: str, inputs: FunctionInputs, opts: pulumi.ResourceOptions
) -> Mapping[str, pulumi.Output[str]]:
    """Declare every function of the table; return label -> the function's name."""
    return {
        row.label: FunctionWithAlarms(name, row, inputs, opts).function_name for row in rows(inputs.stack)
    }
