"""Log store of the stack's instances, and a role's rights to write there."""

from collections.abc import Iterator
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.logs import LogStore, LogStoreArgs
from gpu_fleet_stacks.settings import Stack

# Characters that end a word of a line: https://www.alibabacloud.com/help/en/sls/api-createindex ("token")
WORD_ENDS = ", '\";=()[]{}?@&<>/:\n\t\r"


@dataclass(frozen=True)
class InstanceLogsArgs:
    """Inputs of the log store.

    Attributes:
        key_arn: the same key, for the role by which Simple Log Service reaches it.
    """

    stack: Stack
    key_id: pulumi.Input[str]
    key_arn: pulumi.Input[str]


class InstanceLogs(pulumi.ComponentResource):
    """The store with its project, and the index that makes its lines searchable."""

    def __init__(self, name: str, args: InstanceLogsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:InstanceLogs", name, None, opts)
        stack, child = args.stack, pulumi.ResourceOptions(parent=self)
        _, label = stack.instance_log.split("/")
        store = LogStoreArgs(stack, label, args.key_id, args.key_arn, stack.logs.retention_days)
        written = LogStore(f"{name}-{label}", store, child)
        alicloud.log.StoreIndex(
            f"{name}-{label}",
            project=written.project_name,
            logstore=written.store_name,
            full_text=alicloud.log.StoreIndexFullTextArgs(token=WORD_ENDS),
            opts=child,
        )
        self.register_outputs({})


def write_statements(stack: Stack, folder: str) -> Iterator[policies.Statement]:  # noqa: ARG001 - as on AWS
    """Yield a role's right to write in the store. RAM has no resource within a store, so no folder.

    https://www.alibabacloud.com/help/en/sls/developer-reference/api-sls-2020-12-30-putlogs ("Authorization")

    Args:
        folder: as on AWS.
    """
    if not stack.logs.instances:
        return
    project, store = stack.instance_log.split("/")
    yield policies.allow(
        ["log:PostLogStoreLogs"],
        f"acs:log:{stack.region}:{stack.account_id}:project/{project}/logstore/{store}",
    )
