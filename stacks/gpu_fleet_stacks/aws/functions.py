"""A function on a timer: its log, role, schedule and alarms. Runs do not overlap; the next is the retry."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.aws.function_roles import FunctionInputs, use_key
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import sweep_archive

MEMORY_MIB = 512
LAMBDA, QUEUES = "AWS/Lambda", "AWS/SQS"
FAILED_EVENT_DAYS, DAY_S = 14, 86_400


@dataclass(frozen=True)
class FunctionAlarm:
    """A condition of a function that an operator must look at.

    Attributes:
        namespace: of the metric; empty for the stack's own.
        period_s: seconds over which the metric is summed.
        at_least: the value from which it alarms; None to alarm for a value below 1 or without data.
    """

    label: str
    says: str
    metric: str
    namespace: str = ""
    period_s: int = 300
    at_least: int | None = 1
    statistic: str = "Sum"


@dataclass(frozen=True)
class FunctionRow:
    """A scheduled function and its alarms: a row of the table in ``scheduled_functions.py``.

    Attributes:
        label: its own name, such as ``reaper``.
        program: name of the program, such as ``the sweep``.
        entry: the module with the handler.
        every_minutes: time between two runs.
        timeout_s: time after which a run is stopped.
        latest_start_s: a run that could not start within this time is skipped.
        rights: gives the policy of its role; takes the ARN of its log too.
        alarms: for operators.
        variables: names of its environment's variables.
        beside: name -> text of further files beside the policy.
        keeps_failed_events: a queue receives events that it did not handle, which are tried again.
        on_failed_launches: it runs at once when an Auto Scaling group could not launch.
    """

    component: str
    label: str
    program: str
    purpose: str
    entry: str
    every_minutes: int
    timeout_s: int
    latest_start_s: int
    rights: Callable[[FunctionInputs, pulumi.Output[str]], pulumi.Output[str]]
    alarms: tuple[FunctionAlarm, ...]
    variables: tuple[str, ...] = ("GPU_FLEET_LEDGER_URI",)
    beside: Mapping[str, str] = field(default_factory=dict)
    keeps_failed_events: bool = False
    on_failed_launches: bool = False


def code(row: FunctionRow, policy: str) -> pulumi.AssetArchive:
    """Return a function's code: its modules and the policy; equal settings give an equal hash."""
    modules = sweep_archive.modules(row.entry, cloud="aws")
    files: dict[str, pulumi.Asset | pulumi.Archive] = {
        path: pulumi.FileAsset(str(sweep_archive.ROOT / path)) for path in modules
    }
    texts = {keys.POLICY: policy, **row.beside}
    return pulumi.AssetArchive(files | {name: pulumi.StringAsset(text) for name, text in texts.items()})


def _declare_function(
    name: str, row: FunctionRow, inputs: FunctionInputs, parent: pulumi.Resource
) -> aws.lambda_.Function:
    """Declare the function with its log, role and schedule, below a component of the caller."""
    child = pulumi.ResourceOptions(parent=parent)
    stack, queue = inputs.stack, inputs.failed_events_arn
    tags = naming.tags(stack.name, stack.owner)
    log = aws.cloudwatch.LogGroup(
        name,
        name=f"/aws/lambda/{name}",
        kms_key_id=inputs.key_arn,
        retention_in_days=stack.logs.retention_days,
        tags=tags,
        opts=child,
    )
    role = aws.iam.Role(
        name,
        # Lambda sends no source account when it assumes an execution role.
        assume_role_policy=policies.trust("lambda.amazonaws.com", stack.account_id, check_source=False),
        description=f"{row.program.capitalize()} of gpu-fleet stack {stack.name}",
        tags=tags,
        opts=child,
    )
    policy = aws.iam.RolePolicy(name, role=role.id, policy=row.rights(inputs, log.arn), opts=child)
    function = aws.lambda_.Function(
        name,
        name=name,
        description=row.purpose,
        runtime="python3.12",
        architectures=["arm64"],
        handler=f"{row.entry}.handle",
        code=code(row, inputs.policy),
        role=role.arn,
        timeout=row.timeout_s,
        memory_size=MEMORY_MIB,
        reserved_concurrent_executions=1,
        environment={"variables": _environment(row, inputs)},
        dead_letter_config={"target_arn": queue} if queue else None,
        tags=tags,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[log, policy]),
    )
    # The next run is the retry: a late retry would repeat its work.
    aws.lambda_.FunctionEventInvokeConfig(
        name,
        function_name=function.name,
        maximum_retry_attempts=0,
        maximum_event_age_in_seconds=row.latest_start_s,
        opts=child,
    )
    _declare_schedule(name, row, inputs, function, parent)
    return function


def _environment(row: FunctionRow, inputs: FunctionInputs) -> dict[str, pulumi.Input[str]]:
    known: dict[str, pulumi.Input[str]] = {
        "GPU_FLEET_LEDGER_URI": f"s3://{inputs.stack.bucket_name('records')}/reaper",
        "GPU_FLEET_TOPIC_ARN": inputs.topic_arn,
    }
    return {name: known[name] for name in row.variables}


def _rate(every_minutes: int) -> str:
    """Return EventBridge Scheduler's expression, which refuses the plural for 1."""
    return f"rate({every_minutes} minute{'s' if every_minutes > 1 else ''})"


def _declare_schedule(
    name: str,
    row: FunctionRow,
    inputs: FunctionInputs,
    function: aws.lambda_.Function,
    parent: pulumi.Resource,
) -> None:
    child = pulumi.ResourceOptions(parent=parent)
    stack, queue = inputs.stack, inputs.failed_events_arn
    role = aws.iam.Role(
        f"{name}-schedule",
        assume_role_policy=policies.trust("scheduler.amazonaws.com", stack.account_id),
        description=f"Starts {row.program} of gpu-fleet stack {stack.name}",
        tags=naming.tags(stack.name, stack.owner),
        opts=child,
    )
    statements = [policies.allow("Start", ["lambda:InvokeFunction"], function.arn)]
    if queue is not None:
        statements.append(policies.allow("FailedEvents", ["sqs:SendMessage"], queue))
        statements.append(use_key(stack, inputs.key_arn, "sqs"))
    policy = aws.iam.RolePolicy(
        f"{name}-schedule", role=role.id, policy=policies.document(*statements), opts=child
    )
    aws.scheduler.Schedule(
        name,
        name=name,
        description=f"{row.program.capitalize()} of gpu-fleet stack {stack.name}",
        schedule_expression=_rate(row.every_minutes),
        flexible_time_window={"mode": "OFF"},
        target=aws.scheduler.ScheduleTargetArgs(
            arn=function.arn,
            role_arn=role.arn,
            input="{}",
            dead_letter_config=aws.scheduler.ScheduleTargetDeadLetterConfigArgs(arn=queue) if queue else None,
            retry_policy=aws.scheduler.ScheduleTargetRetryPolicyArgs(
                maximum_event_age_in_seconds=row.latest_start_s,
                maximum_retry_attempts=2 if queue else 0,
            ),
        ),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[policy]),
    )


class FunctionWithAlarms(pulumi.ComponentResource):
    """A function and its alarms: one row of the table."""

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
        function = _declare_function(self._name, row, inputs, self)
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
    name: str, rows: Iterable[FunctionRow], inputs: FunctionInputs, opts: pulumi.ResourceOptions
) -> Mapping[str, pulumi.Output[str]]:
    """Declare every function of the table; return label -> the function's name."""
    return {row.label: FunctionWithAlarms(name, row, inputs, opts).function_name for row in rows}
