"""A function on a timer: its log, role and schedule. Runs do not overlap; the next run is the retry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.aws.reaper_role import use_key
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

MEMORY_MIB = 512
# Failed passes within 5 minutes (of five or more) that alarm: the next pass makes good for a single one.
PERIOD_S, FAILED_PASSES = 300, 3


@dataclass(frozen=True)
class ScheduledFunctionArgs:
    """Inputs of a function on a timer.

    Attributes:
        program: name of the program, such as ``the sweep``.
        handler: ``module.function`` in the archive.
        every: EventBridge Scheduler's expression, such as ``rate(10 minutes)``.
        timeout_s: time after which a run is stopped.
        latest_start_s: a run that could not start within this time is skipped.
        policy: ARN of the function's log -> policy of its role.
        queue: receives events that no function handled; None to keep none and to retry none.
    """

    stack: Stack
    program: str
    purpose: str
    handler: str
    code: pulumi.AssetArchive
    every: str
    timeout_s: int
    latest_start_s: int
    environment: Mapping[str, pulumi.Input[str]]
    key_arn: pulumi.Output[str]
    policy: Callable[[pulumi.Output[str]], pulumi.Output[str]]
    queue: aws.sqs.Queue | None = None


def declare_function(name: str, args: ScheduledFunctionArgs, parent: pulumi.Resource) -> aws.lambda_.Function:
    """Declare the function with its log, role and schedule, below a component of the caller."""
    child = pulumi.ResourceOptions(parent=parent)
    tags = naming.tags(args.stack.name, args.stack.owner)
    log = aws.cloudwatch.LogGroup(
        name,
        name=f"/aws/lambda/{name}",
        kms_key_id=args.key_arn,
        retention_in_days=args.stack.logs.retention_days,
        tags=tags,
        opts=child,
    )
    role = aws.iam.Role(
        name,
        # Lambda sends no source account when it assumes an execution role.
        assume_role_policy=policies.trust("lambda.amazonaws.com", args.stack.account_id, check_source=False),
        description=f"{args.program.capitalize()} of gpu-fleet stack {args.stack.name}",
        tags=tags,
        opts=child,
    )
    policy = aws.iam.RolePolicy(name, role=role.id, policy=args.policy(log.arn), opts=child)
    function = aws.lambda_.Function(
        name,
        name=name,
        description=args.purpose,
        runtime="python3.12",
        architectures=["arm64"],
        handler=args.handler,
        code=args.code,
        role=role.arn,
        timeout=args.timeout_s,
        memory_size=MEMORY_MIB,
        reserved_concurrent_executions=1,
        environment={"variables": dict(args.environment)},
        dead_letter_config={"target_arn": args.queue.arn} if args.queue else None,
        tags=tags,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[log, policy]),
    )
    # The next run is the retry: a late retry would repeat its work.
    aws.lambda_.FunctionEventInvokeConfig(
        name,
        function_name=function.name,
        maximum_retry_attempts=0,
        maximum_event_age_in_seconds=args.latest_start_s,
        opts=child,
    )
    _declare_schedule(name, args, function, parent)
    return function


def _declare_schedule(
    name: str, args: ScheduledFunctionArgs, function: aws.lambda_.Function, parent: pulumi.Resource
) -> None:
    child = pulumi.ResourceOptions(parent=parent)
    queue = args.queue
    role = aws.iam.Role(
        f"{name}-schedule",
        assume_role_policy=policies.trust("scheduler.amazonaws.com", args.stack.account_id),
        description=f"Starts {args.program} of gpu-fleet stack {args.stack.name}",
        tags=naming.tags(args.stack.name, args.stack.owner),
        opts=child,
    )
    statements = [policies.allow("Start", ["lambda:InvokeFunction"], function.arn)]
    if queue is not None:
        statements.append(policies.allow("FailedEvents", ["sqs:SendMessage"], queue.arn))
        statements.append(use_key(args.stack, args.key_arn, "sqs"))
    policy = aws.iam.RolePolicy(
        f"{name}-schedule", role=role.id, policy=policies.document(*statements), opts=child
    )
    aws.scheduler.Schedule(
        name,
        name=name,
        description=f"{args.program.capitalize()} of gpu-fleet stack {args.stack.name}",
        schedule_expression=args.every,
        flexible_time_window={"mode": "OFF"},
        target=aws.scheduler.ScheduleTargetArgs(
            arn=function.arn,
            role_arn=role.arn,
            input="{}",
            dead_letter_config=aws.scheduler.ScheduleTargetDeadLetterConfigArgs(arn=queue.arn)
            if queue
            else None,
            retry_policy=aws.scheduler.ScheduleTargetRetryPolicyArgs(
                maximum_event_age_in_seconds=args.latest_start_s,
                maximum_retry_attempts=2 if queue else 0,
            ),
        ),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[policy]),
    )


def alarm_of_failures(
    name: str,
    stack: Stack,
    function: aws.lambda_.Function,
    *,
    says: str,
    topic_arn: pulumi.Output[str],
    parent: pulumi.Resource,
) -> aws.cloudwatch.MetricAlarm:
    """Alarm when a function that runs each minute fails again and again.

    Args:
        name: the alarm's name, logical and physical.
        says: what the failure means for the stack's users.
    """
    return aws.cloudwatch.MetricAlarm(
        name,
        name=name,
        alarm_description=says,
        namespace="AWS/Lambda",
        metric_name="Errors",
        dimensions={"FunctionName": function.name},
        statistic="Sum",
        comparison_operator="GreaterThanOrEqualToThreshold",
        threshold=FAILED_PASSES,
        period=PERIOD_S,
        evaluation_periods=1,
        treat_missing_data="notBreaching",
        alarm_actions=[topic_arn],
        tags=naming.tags(stack.name, stack.owner),
        opts=pulumi.ResourceOptions(parent=parent),
    )
