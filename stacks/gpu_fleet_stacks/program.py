"""The Pulumi program: read the settings, pick the cloud, build, export."""

import pulumi

from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.settings import Stack, reader


def main() -> None:
    """Build the selected stack; a refusal is one message without a traceback."""
    try:
        stack = reader.load()
        exports = build(stack)
    except StacksError as error:
        raise pulumi.RunError(str(error)) from None
    for name, value in exports.items():
        pulumi.export(name, value)


def build(stack: Stack) -> dict[str, object]:
    """Build the stack by its cloud's module; only that one is imported, since the SDKs are large."""
    if stack.cloud is Cloud.AWS:
        from gpu_fleet_stacks.aws.stack import build as build_aws  # noqa: PLC0415 - see above

        return build_aws(stack)
    from gpu_fleet_stacks.alicloud.stack import build as build_alicloud  # noqa: PLC0415 - see above

    return build_alicloud(stack)
