"""The scheduled sweep: a function, its schedule, and alarms for when it fails, falls silent or holds back."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from stacks import naming
from stacks.aws import policies
from stacks.aws.reaper_alarms import declare_alarms
from stacks.aws.reaper_role import RoleArgs, role_policy, use_key
from stacks.aws.storage import bucket_name
from stacks.payload import sweep_archive
from stacks.settings import Stack

# A fleet of thousands is swept within a minute; the lease of a sweep lasts 15 minutes.
TIMEOUT_S = 300
MEMORY_MIB = 512
LOG_DAYS = 90
FAILED_EVENT_DAYS = 14
DAY_S = 86_400
LATEST_START_S = 300


@dataclass(frozen=True)
class ReaperArgs:
    """What the sweep depends on.

    Attributes:
        key_arn: encrypts log, ledger and topic.
        topic_arn: where owners and operators listen.
    """

    stack: Stack
    key_arn: pulumi.Output[str]
    records_arn: pulumi.Output[str]
    topic_arn: pulumi.Output[str]


class Reaper(pulumi.ComponentResource):
    """The sweep of one stack."""

    function_name: pulumi.Output[str]

    def __init__(self, name: str, args: ReaperArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Reaper", name, None, opts)
        self._name, self._args = f"{name}-reaper", args
        self._child = pulumi.ResourceOptions(parent=self)
        self._tags = naming.tags(args.stack.name, args.stack.owner)
        queue = self._queue()
        function = self._function(queue)
        self._schedule(function, queue)
        declare_alarms(
            self._name,
            args.stack,
            function_name=function.name,
            queue_name=queue.name,
            topic_arn=args.topic_arn,
            parent=self,
        )
        self.function_name = function.name
        self.register_outputs({"function_name": function.name})

    def _queue(self) -> aws.sqs.Queue:
        """Events that no function took."""
        return aws.sqs.Queue(
            f"{self._name}-failed",
            name=f"{self._name}-failed",
            message_retention_seconds=FAILED_EVENT_DAYS * DAY_S,
            kms_master_key_id=self._args.key_arn,
            tags=self._tags,
            opts=self._child,
        )

    def _function(self, queue: aws.sqs.Queue) -> aws.lambda_.Function:
        args, stack = self._args, self._args.stack
        log = aws.cloudwatch.LogGroup(
            self._name,
            name=f"/aws/lambda/{self._name}",
            kms_key_id=args.key_arn,
            retention_in_days=LOG_DAYS,
            tags=self._tags,
            opts=self._child,
        )
        role_arn, policy = self._role(queue, log)
        function = aws.lambda_.Function(
            self._name,
            name=self._name,
            description=f"Terminates forgotten instances of gpu-fleet stack {stack.name}",
            runtime="python3.12",
            architectures=["arm64"],
            handler=sweep_archive.HANDLER,
            code=bundle(stack),
            role=role_arn,
            timeout=TIMEOUT_S,
            memory_size=MEMORY_MIB,
            reserved_concurrent_executions=1,
            environment={
                "variables": {
                    "GPU_FLEET_LEDGER_URI": f"s3://{bucket_name(stack, 'records')}/reaper",
                    "GPU_FLEET_TOPIC_ARN": args.topic_arn,
                }
            },
            dead_letter_config={"target_arn": queue.arn},
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[log, policy]),
        )
        # The next sweep is the retry: what a late one would do has been done by then.
        aws.lambda_.FunctionEventInvokeConfig(
            self._name,
            function_name=function.name,
            maximum_retry_attempts=0,
            maximum_event_age_in_seconds=LATEST_START_S,
            opts=self._child,
        )
        return function

    def _role(
        self, queue: aws.sqs.Queue, log: aws.cloudwatch.LogGroup
    ) -> tuple[pulumi.Output[str], aws.iam.RolePolicy]:
        """The function's role, and the policy that must stand before it runs."""
        args, stack = self._args, self._args.stack
        role = aws.iam.Role(
            self._name,
            # Lambda names no source account when it takes an execution role.
            assume_role_policy=policies.trust("lambda.amazonaws.com", stack.account_id, check_source=False),
            description=f"The sweep of gpu-fleet stack {stack.name}",
            tags=self._tags,
            opts=self._child,
        )
        allowed = RoleArgs(stack, args.key_arn, args.records_arn, args.topic_arn, queue.arn, log.arn)
        policy = aws.iam.RolePolicy(self._name, role=role.id, policy=role_policy(allowed), opts=self._child)
        return role.arn, policy

    def _schedule(self, function: aws.lambda_.Function, queue: aws.sqs.Queue) -> None:
        stack = self._args.stack
        role = aws.iam.Role(
            f"{self._name}-schedule",
            assume_role_policy=policies.trust("scheduler.amazonaws.com", stack.account_id),
            description=f"Starts the sweep of gpu-fleet stack {stack.name}",
            tags=self._tags,
            opts=self._child,
        )
        policy = aws.iam.RolePolicy(
            f"{self._name}-schedule",
            role=role.id,
            policy=policies.document(
                policies.allow("Start", ["lambda:InvokeFunction"], function.arn),
                policies.allow("FailedEvents", ["sqs:SendMessage"], queue.arn),
                use_key(stack, self._args.key_arn, "sqs"),
            ),
            opts=self._child,
        )
        aws.scheduler.Schedule(
            self._name,
            name=self._name,
            description=f"The sweep of gpu-fleet stack {stack.name}",
            schedule_expression=f"rate({stack.reaper.every_minutes} minutes)",
            flexible_time_window={"mode": "OFF"},
            target={
                "arn": function.arn,
                "role_arn": role.arn,
                "input": "{}",
                "dead_letter_config": {"arn": queue.arn},
                "retry_policy": {
                    "maximum_event_age_in_seconds": LATEST_START_S,
                    "maximum_retry_attempts": 2,
                },
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )


def bundle(stack: Stack) -> pulumi.AssetArchive:
    """The function's code: equal settings and equal modules give an equal hash."""
    return archive(stack, sweep_archive.ENTRY)


def archive(stack: Stack, entry: str) -> pulumi.AssetArchive:
    """The code of a function: what a module needs, and the stack's policy.

    Args:
        entry: the module with the handler.
    """
    files: dict[str, pulumi.Asset | pulumi.Archive] = {
        path: pulumi.FileAsset(str(sweep_archive.ROOT / path))
        for path in sweep_archive.modules(entry, cloud="aws")
    }
    policy = pulumi.StringAsset(sweep_archive.policy_text(stack))
    return pulumi.AssetArchive(files | {sweep_archive.POLICY_FILE: policy})
