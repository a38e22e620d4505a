"""Function that reads groups of IAM Identity Center each minute and makes accounts of their members.

It writes the roster that instances pull. It reads the stack's groups and their members and nothing else of
the directory; in the records bucket it uses the roster and its own records of numbers.
"""

from dataclasses import dataclass

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.aws.functions import ScheduledFunctionArgs, alarm_of_failures, declare_function
from gpu_fleet_stacks.aws.reaper import archive
from gpu_fleet_stacks.aws.reaper_role import use_key
from gpu_fleet_stacks.payload import sweep_archive
from gpu_fleet_stacks.settings import Stack, people, people_rules
from gpu_fleet_stacks.settings.schema import DirectorySettings

HANDLER = f"{sweep_archive.PEOPLE}.aws.handle"
TIMEOUT_S = 55
LATEST_START_S = 60


@dataclass(frozen=True)
class PeopleArgs:
    """Inputs of the function.

    Attributes:
        key_arn: encrypts log and roster.
        records_arn: the bucket of the roster.
        topic_arn: who is notified when it fails.
    """

    stack: Stack
    directory: DirectorySettings
    key_arn: pulumi.Output[str]
    records_arn: pulumi.Output[str]
    topic_arn: pulumi.Output[str]


class People(pulumi.ComponentResource):
    """The function that makes the roster of one stack."""

    function_name: pulumi.Output[str]

    def __init__(self, name: str, args: PeopleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:People", name, None, opts)
        stack = args.stack
        function = declare_function(
            f"{name}-people",
            ScheduledFunctionArgs(
                stack=stack,
                program="the reader of groups",
                purpose=f"Lists the accounts on instances of gpu-fleet stack {stack.name}",
                handler=HANDLER,
                code=bundle(stack, args.directory),
                every="rate(1 minute)",  # EventBridge refuses the plural for 1
                timeout_s=TIMEOUT_S,
                latest_start_s=LATEST_START_S,
                environment={"GPU_FLEET_LEDGER_URI": f"s3://{stack.bucket_name('records')}/reaper"},
                key_arn=args.key_arn,
                policy=lambda log_arn: role_policy(args, log_arn),
            ),
            self,
        )
        alarm_of_failures(
            f"{name}-people-errors",
            stack,
            function,
            says="Groups cannot be read: former members keep their accounts, new members get none",
            topic_arn=args.topic_arn,
            parent=self,
        )
        self.function_name = function.name
        self.register_outputs({"function_name": function.name})


def bundle(stack: Stack, directory: DirectorySettings) -> pulumi.AssetArchive:
    """Return the function's code; equal settings and equal modules give an equal hash."""
    said = people.directory_text(stack, directory, people_rules.TAKEN_NAMES)
    return archive(stack, f"{sweep_archive.PEOPLE}.aws", {keys.DIRECTORY_FILE: said})


def role_policy(args: PeopleArgs, log_group_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the role's only policy."""
    stack = args.stack
    written = (f"{keys.stored(keys.ACCOUNT_FOLDER)}/*", keys.stored(keys.ACCOUNTS))
    return policies.document(
        *_reads(stack, args.directory),
        policies.allow(
            "Roster",
            ["s3:GetObject", "s3:PutObject"],
            [pulumi.Output.concat(args.records_arn, f"/{key}") for key in written],
        ),
        # Without this action S3 answers "denied" instead of "no such key" (API GetObject, Permissions).
        policies.allow("Absence", ["s3:ListBucket"], args.records_arn),
        use_key(stack, args.key_arn, "s3"),
        policies.allow(
            "Log",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            pulumi.Output.concat(log_group_arn, ":*"),
        ),
    )


def _reads(stack: Stack, directory: DirectorySettings) -> list[policies.Statement]:
    """Allow to read the stack's groups and their members, or to assume a role of the directory's account.

    docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentitystore.html
    """
    if directory.role is not None:
        return [policies.allow("Directory", ["sts:AssumeRole"], directory.role)]
    arn = f"arn:{policies.partition(stack.region)}:identitystore:"
    store = f"{arn}:{stack.account_id}:identitystore/{directory.identity_store}"
    groups = [f"{arn}::group/{team.group}" for _, team in sorted(directory.teams.items())]
    return [
        policies.allow(
            "Groups", ["identitystore:ListGroupMemberships"], [store, *groups, f"{arn}::membership/*"]
        ),
        policies.allow("ThatAreThere", ["identitystore:DescribeGroup"], [store, *groups]),
        policies.allow("Members", ["identitystore:DescribeUser"], [store, f"{arn}::user/*"]),
    ]
