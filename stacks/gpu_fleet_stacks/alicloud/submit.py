"""Runs that users start on their instances: one command of Cloud Assistant, and a policy for each account.

Cloud Assistant runs it as the account that the caller names, and RAM lets a user name only their own
(condition key ``ecs:CommandRunAs``). That account may call ``start-run`` by sudo, for itself only. Custom
parameters are put into the text unchanged, so whatever a caller writes there runs as their own account, where
they have a shell too. RAM has no variable for the caller, so the stack writes a policy for each account that
it names.
"""

import base64

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.function_roles import STACK
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

TIMEOUT_S = 60
START = "/usr/libexec/gpu-fleet/start-run"


def declare(name: str, stack: Stack, opts: pulumi.ResourceOptions) -> list[alicloud.ecs.Command]:
    """Declare the command; none where the stack names no users, since a run needs an account."""
    if not stack.access.accounts:
        return []
    command = alicloud.ecs.Command(
        f"{name}-run",
        name=naming.run_document(stack.name),
        description=f"Starts a submitted run of gpu-fleet stack {stack.name}",
        type="RunShellScript",
        command_content=base64.b64encode(document_content(stack).encode()).decode(),
        enable_parameter=True,
        timeout=TIMEOUT_S,
        opts=opts,
    )
    return [command]


def document_content(stack: Stack) -> str:
    """Return the script, with its two parameters in Cloud Assistant's notation."""
    return (
        "#!/bin/bash\n"
        f"# a run of gpu-fleet stack {stack.name}\n"
        "set -euo pipefail\n"
        f"exec sudo --non-interactive {START} '{{{{Run}}}}' '{{{{Sha256}}}}'\n"
    )


def people_statements(
    stack: Stack, records_arn: pulumi.Output[str], command_id: pulumi.Input[str], account: str
) -> list[policies.Statement]:
    """Return a user's rights beside ``people_policy``: the command as their account, their jobs and results.

    That policy lets them list the names in the records bucket already.
    """
    own = f"{stack.region}:{stack.account_id}"
    as_account = {"ecs:CommandRunAs": [account]}
    of_stack = as_account | {f"acs:ResourceTag/{STACK}": [stack.name]}
    jobs, words = (pulumi.Output.concat(records_arn, f"/{place}*") for place in naming.run_prefixes(account))
    command = pulumi.Output.concat(f"acs:ecs:{own}:command/", command_id)
    return [
        policies.allow(["ecs:InvokeCommand"], command, {"StringEquals": as_account}),
        policies.allow(["ecs:InvokeCommand"], f"acs:ecs:{own}:instance/*", {"StringEquals": of_stack}),
        policies.allow(["ecs:DescribeCommands"], f"acs:ecs:{own}:command/*"),
        policies.allow(["oss:PutObject"], jobs),
        policies.allow(["oss:GetObject"], [jobs, words]),
    ]


def people_policies(
    stack: Stack, records_arn: pulumi.Output[str], commands: list[alicloud.ecs.Command]
) -> dict[str, pulumi.Output[str]]:
    """Return account -> its policy, to attach to the RAM user or role of that account."""
    return {
        account: policies.document(*people_statements(stack, records_arn, command.id, account))
        for command in commands
        for account in sorted(stack.access.people)
    }
