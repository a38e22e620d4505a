"""Log group of the stack's instances, and a role's rights to write there."""

from collections.abc import Iterator
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack


@dataclass(frozen=True)
class InstanceLogsArgs:
    """Inputs of the log group.

    Attributes:
        key_arn: encrypts it; the key's own policy names groups below ``/gpu-fleet/STACK/`` (``keys``).
    """

    stack: Stack
    key_arn: pulumi.Input[str]


class InstanceLogs(pulumi.ComponentResource):
    """The log group; instances create their own streams in it."""

    def __init__(self, name: str, args: InstanceLogsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:InstanceLogs", name, None, opts)
        stack = args.stack
        aws.cloudwatch.LogGroup(
            f"{name}-instances",
            name=stack.instance_log,
            kms_key_id=args.key_arn,
            retention_in_days=stack.logs.retention_days,
            tags=naming.tags(stack.name, stack.owner, Name=f"{name}-instances"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})


def write_statements(stack: Stack, folder: str) -> Iterator[policies.Statement]:
    """Yield a role's rights in the group: create streams, and write those whose names begin with its folder.

    Nothing can be read or deleted. IAM asks for CreateLogStream with a name of a stream that is empty, so
    that alone cannot be bound to a folder; a stream that it makes elsewhere stays without an entry.
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazoncloudwatchlogs.html

    Args:
        folder: a pool, or ``queue``; its instances' streams are ``FOLDER/INSTANCE``.
    """
    if not stack.logs.instances:
        return
    partition = policies.partition(stack.region)
    group = f"arn:{partition}:logs:{stack.region}:{stack.account_id}:log-group:{stack.instance_log}"
    yield policies.allow("LogStreams", ["logs:CreateLogStream"], f"{group}:*")
    yield policies.allow("LogEntries", ["logs:PutLogEvents"], f"{group}:log-stream:{folder}/*")
