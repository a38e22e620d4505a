"""How users start runs on their instances: one command of Cloud Assistant, and a policy for each account.

Cloud Assistant runs it as the account that the caller names, and RAM lets a user name their own alone
(condition key ``ecs:CommandRunAs``); that account may call ``start-run`` by sudo, for itself and nobody else.
Custom parameters are put into the text as they are, so that what a caller writes there runs as their own
account, where they have a shell too. RAM knows no variable for the caller: the stack writes a policy for each
account that it names.
"""

import base64

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.reaper_role import STACK
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

TIMEOUT_S = 60
START = "/usr/libexec/gpu-fleet/start-run"


def declare(name: str, stack: Stack, opts: pulumi.ResourceOptions) -> list[alicloud.ecs.Command]:
    """The command; nothing where the stack names nobody, since a run needs an account."""
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
    """The script, with its two parameters as Cloud Assistant spells them."""
    return (
        "#!/bin/bash\n"
        f"# a run of gpu-fleet stack {stack.name}\n"
        "set -euo pipefail\n"
        f"exec sudo --non-interactive {START} '{{{{Run}}}}' '{{{{Sha256}}}}'\n"
    )


def people_statements(
    stack: Stack, records_arn: pulumi.Output[str], command_id: pulumi.Input[str], account: str
) -> list[policies.Statement]:
    """What one user needs beside ``people_policy``: the command as their account, their jobs and results.

    The names in the records bucket they may list by that.

    Args:
        account: a login name of ``access.people``.
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
    """Account -> its policy, to attach to the RAM user or role whose account it is."""
    return {
        account: policies.document(*people_statements(stack, records_arn, command.id, account))
        for command in commands
        for account in sorted(stack.access.people)
    }
