"""Function that reads RAM user groups each minute and makes accounts of their members.

It writes the roster that instances pull. It reads the stack's groups and nothing else of RAM; in the records
bucket it uses the roster and its own records of numbers.
"""

from dataclasses import dataclass

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.functions import ScheduledFunction, ScheduledFunctionArgs, alarm_of_failures
from gpu_fleet_stacks.alicloud.reaper import HANDLER, archive
from gpu_fleet_stacks.payload import sweep_archive
from gpu_fleet_stacks.settings import Stack, people, people_rules
from gpu_fleet_stacks.settings.schema import DirectorySettings

TIMEOUT_S = 55
EVERY_MINUTES = 1
FAILED_PASSES = 3


@dataclass(frozen=True)
class PeopleArgs:
    """Inputs of the function.

    Attributes:
        key_id: encrypts log and roster.
        records_arn: the bucket of the roster.
        contact_group: the group that is notified when it fails.
    """

    stack: Stack
    directory: DirectorySettings
    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    records_arn: pulumi.Output[str]
    contact_group: pulumi.Input[str]


class People(pulumi.ComponentResource):
    """The function that makes the roster of one stack."""

    function_name: pulumi.Output[str]

    def __init__(self, name: str, args: PeopleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:People", name, None, opts)
        stack = args.stack
        reader = ScheduledFunction(
            f"{name}-people",
            ScheduledFunctionArgs(
                stack=stack,
                label="people",
                purpose=f"Lists the accounts on instances of gpu-fleet stack {stack.name}",
                handler=HANDLER,
                files=bundle(stack, args.directory),
                every_minutes=EVERY_MINUTES,
                timeout_s=TIMEOUT_S,
                statements=role_policy(args),
                key_id=args.key_id,
                key_arn=args.key_arn,
            ),
            pulumi.ResourceOptions(parent=self),
        )
        alarm_of_failures(
            f"{name}-people-errors",
            stack,
            reader.function_name,
            times=FAILED_PASSES,
            contact_group=args.contact_group,
            parent=self,
        )
        self.function_name = reader.function_name
        self.register_outputs({"function_name": reader.function_name})


def bundle(stack: Stack, directory: DirectorySettings) -> dict[str, bytes]:
    """Return the function's code with its packages; equal settings and equal modules give equal bytes."""
    said = people.directory_text(stack, directory, people_rules.TAKEN_NAMES)
    return archive(stack, f"{sweep_archive.PEOPLE}.alicloud", {keys.DIRECTORY_FILE: said})


def role_policy(args: PeopleArgs) -> list[policies.Statement]:
    """Return the statements of the role's only policy, without its log.

    IMS checks the permission under RAM's name, for the group alone
    (help.aliyun.com/en/ram/developer-reference/api-ims-2019-08-15-listusersforgroup).
    """
    groups = [
        f"acs:ram::{args.stack.account_id}:group/{team.group}"
        for _, team in sorted(args.directory.teams.items())
    ]
    written = (f"{keys.stored(keys.ACCOUNT_FOLDER)}/*", keys.stored(keys.ACCOUNTS))
    return [
        policies.allow(["ram:ListUsersForGroup"], groups),
        policies.allow(
            ["oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"],
            [pulumi.Output.concat(args.records_arn, f"/{key}") for key in written],
        ),
        policies.allow(["oss:ListObjects", "oss:ListObjectVersions"], args.records_arn),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
    ]
