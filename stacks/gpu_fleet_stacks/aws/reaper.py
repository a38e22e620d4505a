"""The scheduled sweep: its function, its schedule, and alarms on failure, silence and held instances."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws.functions import ScheduledFunctionArgs, declare_function
from gpu_fleet_stacks.aws.reaper_alarms import declare_alarms
from gpu_fleet_stacks.aws.reaper_role import RoleArgs, role_policy
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import sweep_archive, sweep_policy
from gpu_fleet_stacks.settings import Stack

# A fleet of thousands is swept within a minute; the lease of a sweep lasts 15 minutes.
TIMEOUT_S = 300
FAILED_EVENT_DAYS = 14
DAY_S = 86_400
LATEST_START_S = 300


@dataclass(frozen=True)
class ReaperArgs:
    """Inputs of the sweep.

    Attributes:
        key_arn: encrypts log, ledger and topic.
        topic_arn: the topic of owners and operators.
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
        """Declare the queue of events that no function handled."""
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
        return declare_function(
            self._name,
            ScheduledFunctionArgs(
                stack=stack,
                program="the sweep",
                purpose=f"Terminates forgotten instances of gpu-fleet stack {stack.name}",
                handler=sweep_archive.HANDLER,
                code=bundle(stack),
                every=f"rate({stack.reaper.every_minutes} minutes)",
                timeout_s=TIMEOUT_S,
                latest_start_s=LATEST_START_S,
                environment={
                    "GPU_FLEET_LEDGER_URI": f"s3://{stack.bucket_name('records')}/reaper",
                    "GPU_FLEET_TOPIC_ARN": args.topic_arn,
                },
                key_arn=args.key_arn,
                policy=lambda log_arn: role_policy(
                    RoleArgs(stack, args.key_arn, args.records_arn, args.topic_arn, queue.arn, log_arn)
                ),
                queue=queue,
            ),
            self,
        )


def bundle(stack: Stack) -> pulumi.AssetArchive:
    """Return the function's code; equal settings and equal modules give an equal hash."""
    return archive(stack, sweep_archive.ENTRY)


def archive(stack: Stack, entry: str, beside: Mapping[str, str] | None = None) -> pulumi.AssetArchive:
    """Return the code of a function: the modules that it needs, and the stack's policy.

    Args:
        entry: the module with the handler.
        beside: name -> text of further files beside the policy.
    """
    files: dict[str, pulumi.Asset | pulumi.Archive] = {
        path: pulumi.FileAsset(str(sweep_archive.ROOT / path))
        for path in sweep_archive.modules(entry, cloud="aws")
    }
    texts = {keys.POLICY: sweep_policy.policy_text(stack), **(beside or {})}
    return pulumi.AssetArchive(files | {name: pulumi.StringAsset(text) for name, text in texts.items()})
