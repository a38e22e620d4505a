"""The scheduled sweep: its function, its schedule, and alarms on failure and held instances."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud.functions import ScheduledFunction, ScheduledFunctionArgs
from gpu_fleet_stacks.alicloud.reaper_alarms import declare_alarms
from gpu_fleet_stacks.alicloud.reaper_role import RoleArgs, role_policy
from gpu_fleet_stacks.payload import sweep_archive, sweep_policy
from gpu_fleet_stacks.settings import Stack

# Function Compute calls a function of a file at the root of the archive.
ENTRY = "gpu_fleet_image.controllers.sweep.function_compute"
ENTRY_FILE = "index.py"
HANDLER = "index.handler"
# A fleet of thousands is swept within a minute; the lease of a sweep lasts 15 minutes.
TIMEOUT_S = 300


@dataclass(frozen=True)
class ReaperArgs:
    """Inputs of the sweep.

    Attributes:
        key_id: encrypts log and ledger.
    """

    stack: Stack
    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    records_arn: pulumi.Output[str]
    contact_group: pulumi.Output[str]


class Reaper(pulumi.ComponentResource):
    """The sweep of one stack."""

    function_name: pulumi.Output[str]

    def __init__(self, name: str, args: ReaperArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Reaper", name, None, opts)
        stack = args.stack
        sweep = ScheduledFunction(
            f"{name}-reaper",
            ScheduledFunctionArgs(
                stack=stack,
                label="reaper",
                purpose=f"Terminates forgotten instances of gpu-fleet stack {stack.name}",
                handler=HANDLER,
                files=bundle(stack),
                every_minutes=stack.reaper.every_minutes,
                timeout_s=TIMEOUT_S,
                statements=role_policy(RoleArgs(stack, args.key_arn, args.records_arn)),
                key_id=args.key_id,
                key_arn=args.key_arn,
            ),
            pulumi.ResourceOptions(parent=self),
        )
        declare_alarms(f"{name}-reaper", stack, contact_group=args.contact_group, parent=self)
        self.function_name = sweep.function_name
        self.register_outputs({"function_name": sweep.function_name})


def bundle(stack: Stack) -> dict[str, bytes]:
    """Return the function's code with its packages; equal settings and equal modules give equal bytes."""
    return archive(stack, ENTRY)


def archive(stack: Stack, entry: str, beside: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Return the code of a function: the modules that it needs, packages, and the stack's policy.

    Args:
        entry: the module with the handler.
        beside: name -> text of further files beside the policy.
    """
    modules = sweep_archive.modules(entry, cloud="alicloud")
    files = {path: (sweep_archive.ROOT / path).read_bytes() for path in modules}
    return {
        **sweep_archive.packages(),
        **files,
        ENTRY_FILE: f"from {entry} import handle as handler\n".encode(),
        keys.POLICY: sweep_policy.policy_text(stack).encode(),
        **{name: text.encode() for name, text in (beside or {}).items()},
    }
