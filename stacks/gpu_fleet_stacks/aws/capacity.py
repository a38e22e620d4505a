"""The mover: a function that decides where a pool's next instance starts, and the rights of its users.

It runs each minute, and at once when an Auto Scaling group could not launch. Its role raises groups and tags
instances, and can terminate none. The sweep's role terminates instances, and can raise no group.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws import policies, sessions, submit
from gpu_fleet_stacks.aws.functions import ScheduledFunctionArgs, alarm_of_failures, declare_function
from gpu_fleet_stacks.aws.reaper import archive
from gpu_fleet_stacks.aws.reaper_role import MANAGED, STACK, use_key
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import sweep_archive
from gpu_fleet_stacks.settings import Stack

Conditions = dict[str, Mapping[str, Any]]
HANDLER = f"{sweep_archive.MOVER}.aws.handle"
TIMEOUT_S = 120
LATEST_START_S = 60
TAKEN = f"{naming.PROJECT}:taken"
# Tags that the mover sets on an instance: who took it and when, and how long it is kept.
TAGS = tuple(
    f"{naming.PROJECT}:{name}" for name in ("owner", "taken", "taken-at", "keep-until", "keep-reason")
)
# Tags that users set on their instances: kept, and given back.
PERSONAL_TAGS = tuple(
    f"{naming.PROJECT}:{name}" for name in ("keep-until", "keep-reason", "keep-by", "give-back")
)
# None of these actions supports a resource or a condition narrower than the account.
LOOK_ACTIONS = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "cloudwatch:DescribeAlarms",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotPriceHistory",
)
NEVER_ACTIONS = (
    "autoscaling:DetachInstances",
    "autoscaling:SetInstanceHealth",
    "autoscaling:SetInstanceProtection",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "autoscaling:UpdateAutoScalingGroup",
    "ec2:StopInstances",
    "ec2:TerminateInstances",
)
# docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-restrict-access-quickstart.html
SESSION_ACTIONS = ("ssm:ResumeSession", "ssm:TerminateSession", "ssmmessages:OpenDataChannel")
DEFAULT_DOCUMENT = "SSM-SessionManagerRunShell"
# Documents of AWS that run the caller's commands (systems-manager/latest/userguide/
# getting-started-restrict-access-examples.html), or reach any port as root.
OTHER_DOCUMENTS = (
    *("AWS-StartInteractiveCommand", "AWS-StartNonInteractiveCommand", "AWS-StartSSHSession"),
    *("AWS-StartPortForwardingSession", "AWS-StartPortForwardingSessionToRemoteHost"),
)
PEOPLE_LOOK_ACTIONS = (
    "autoscaling:DescribeAutoScalingGroups",
    "cloudwatch:DescribeAlarms",
    "cloudwatch:GetMetricData",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeTags",
)


@dataclass(frozen=True)
class CapacityArgs:
    """Inputs of the mover.

    Attributes:
        key_arn: encrypts log and ledger.
        records_arn: the bucket of requests, ledger and submitted runs.
        topic_arn: the topic of its alarm.
    """

    stack: Stack
    key_arn: pulumi.Output[str]
    records_arn: pulumi.Output[str]
    topic_arn: pulumi.Output[str]


class Capacity(pulumi.ComponentResource):
    """The mover of one stack."""

    function_name: pulumi.Output[str]

    def __init__(self, name: str, args: CapacityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Capacity", name, None, opts)
        self._name, self._args = f"{name}-capacity", args
        self._child = pulumi.ResourceOptions(parent=self)
        self._tags = naming.tags(args.stack.name, args.stack.owner)
        function = self._function()
        self._on_failed_launches(function)
        alarm_of_failures(
            f"{self._name}-errors",
            args.stack,
            function,
            says="The mover fails again and again: no user gets an instance",
            topic_arn=args.topic_arn,
            parent=self,
        )
        self.function_name = function.name
        self.register_outputs({"function_name": function.name})

    def _function(self) -> aws.lambda_.Function:
        args, stack = self._args, self._args.stack
        return declare_function(
            self._name,
            ScheduledFunctionArgs(
                stack=stack,
                program="the mover",
                purpose=f"Decides where instances of gpu-fleet stack {stack.name} start",
                handler=HANDLER,
                code=bundle(stack),
                every="rate(1 minute)",  # EventBridge refuses the plural for 1
                timeout_s=TIMEOUT_S,
                latest_start_s=LATEST_START_S,
                environment={"GPU_FLEET_LEDGER_URI": f"s3://{stack.bucket_name('records')}/reaper"},
                key_arn=args.key_arn,
                policy=lambda log_arn: role_policy(args, log_arn),
            ),
            self,
        )

    def _on_failed_launches(self, function: aws.lambda_.Function) -> None:
        """Run the mover at once when a launch failed, so that the next group is tried."""
        prefix = f"{naming.prefixed(self._args.stack.name)}-"
        rule = aws.cloudwatch.EventRule(
            f"{self._name}-failed",
            name=f"{self._name}-failed",
            description="An Auto Scaling group of the stack could not launch an instance",
            event_pattern=json.dumps(
                {
                    "source": ["aws.autoscaling"],
                    "detail-type": ["EC2 Instance Launch Unsuccessful"],
                    "detail": {"AutoScalingGroupName": [{"prefix": prefix}]},
                }
            ),
            tags=self._tags,
            opts=self._child,
        )
        aws.cloudwatch.EventTarget(
            f"{self._name}-failed", rule=rule.name, arn=function.arn, input="{}", opts=self._child
        )
        aws.lambda_.Permission(
            f"{self._name}-failed",
            action="lambda:InvokeFunction",
            function=function.name,
            principal="events.amazonaws.com",
            source_arn=rule.arn,
            opts=self._child,
        )


def bundle(stack: Stack) -> pulumi.AssetArchive:
    """Return the function's code; equal settings and equal modules give an equal hash."""
    return archive(stack, f"{sweep_archive.MOVER}.aws")


def role_policy(args: CapacityArgs, log_group_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the role's only policy: raise the stack's groups, tag its instances, terminate none."""
    stack = args.stack
    arn = f"arn:{policies.partition(stack.region)}"
    own = f"{stack.region}:{stack.account_id}"
    group = f"autoScalingGroup:*:autoScalingGroupName/{naming.prefixed(stack.name)}-*"
    of_stack = {f"aws:ResourceTag/{STACK}": stack.name}
    keys = _only_keys(TAGS)
    return policies.document(
        policies.allow("Look", LOOK_ACTIONS, "*"),
        policies.allow(
            "Raise",
            ["autoscaling:SetDesiredCapacity"],
            f"{arn}:autoscaling:{own}:{group}",
            {"StringEquals": of_stack},
        ),
        policies.allow(
            "Give",
            ["ec2:CreateTags", "ec2:DeleteTags"],
            f"{arn}:ec2:{own}:instance/*",
            {"StringEquals": of_stack | {f"aws:ResourceTag/{MANAGED}": "true"}, **keys},
        ),
        policies.deny("NeverEnds", NEVER_ACTIONS, "*"),
        policies.allow(
            "Ledger",
            ["s3:GetObject", "s3:PutObject"],
            pulumi.Output.concat(args.records_arn, "/reaper/capacity/*"),
        ),
        policies.allow("Money", ["s3:GetObject"], _money(args)),
        # Without this action S3 answers "denied" instead of "no such key" (API GetObject, Permissions).
        policies.allow("Requests", ["s3:ListBucket"], args.records_arn),
        use_key(stack, args.key_arn, "s3"),
        policies.allow(
            "Log",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            pulumi.Output.concat(log_group_arn, ":*"),
        ),
    )


def _money(args: CapacityArgs) -> list[pulumi.Output[str]]:
    return [pulumi.Output.concat(args.records_arn, f"/reaper/{name}.json") for name in ("meter", "freeze")]


def _only_keys(keys: Sequence[str]) -> Conditions:
    """Return the condition that a call sets or deletes only these tags.

    An empty set of keys would satisfy ForAllValues, so the keys must be present.
    """
    return {"ForAllValues:StringEquals": {"aws:TagKeys": list(keys)}, "Null": {"aws:TagKeys": "false"}}


def people_policy(args: CapacityArgs) -> pulumi.Output[str]:
    """Return the policy for users who take, keep, reach and give back instances; for users or a role.

    A request lies below the name that AWS gives its writer, a user's or a session's, so that no caller can
    ask in another's name. Sessions open on instances that were launched for such a request. The mover alone
    writes the tag that says so.
    """
    stack = args.stack
    arn = f"arn:{policies.partition(stack.region)}"
    state = pulumi.Output.concat(args.records_arn, f"/{keys.stored(keys.MOVER_STATE)}")
    queue = [keys.stored(keys.QUEUE_JOBS)] if stack.queued else []
    said = [pulumi.Output.concat(args.records_arn, f"/{key}") for key in (keys.stored(keys.POLICY), *queue)]
    shell = sessions.document_name(stack) or DEFAULT_DOCUMENT
    forward = naming.forward_document(stack.name)
    documents = [f"{arn}:ssm:{stack.region}:{stack.account_id}:document/{name}" for name in (shell, forward)]
    return policies.document(
        policies.allow("Look", PEOPLE_LOOK_ACTIONS, "*"),
        policies.allow("Read", ["s3:GetObject"], [state, *said, *_money(args)]),
        policies.allow("Absence", ["s3:ListBucket"], args.records_arn),
        use_key(stack, args.key_arn, "s3"),
        policies.allow("SessionDocuments", ["ssm:StartSession"], documents),
        *_never_as_another(stack),
        *_of_caller(args, "User", "users/${aws:username}", "${aws:username}", {}),
        *_of_caller(
            args,
            "Session",
            "sessions/${aws:userid}",
            "${aws:userid}",
            {"StringLike": {"aws:userid": "AROA*:*"}},
        ),
        *submit.people_statements(stack, args.records_arn),
    )


def _never_as_another(stack: Stack) -> list[policies.Statement]:
    """Deny session documents that open as another account, where the stack names accounts.

    These open sessions as the agent's account, which can become root, or reach any port by it. They are named
    one by one, in the account and in AWS's. It is a denial, so that no other policy of the caller allows
    them.
    """
    if not stack.access.accounts:
        return []
    arn = f"arn:{policies.partition(stack.region)}:ssm:{stack.region}:"
    names = [f"{arn}{stack.account_id}:document/{DEFAULT_DOCUMENT}"]
    names += [f"{arn}{owner}:document/{name}" for name in OTHER_DOCUMENTS for owner in ("", stack.account_id)]
    return [policies.deny("NeverAsAnother", ["ssm:StartSession"], names)]


def _by_document(stack: Stack) -> Conditions:
    """Require a permitted session document, also for a caller who names none, where the stack names accounts.

    Otherwise Session Manager opens its default document, whose account may become root
    (docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-sessiondocumentaccesscheck.html).
    """
    if not stack.access.accounts:
        return {}
    return {"BoolIfExists": {"ssm:SessionDocumentAccessCheck": "true"}}


def _of_caller(
    args: CapacityArgs, kind: str, whose: str, session: str, only: Conditions
) -> Sequence[policies.Statement]:
    """Return the rights of users, or of sessions of roles, over their own requests and instances.

    Each kind of caller has its own statements: a policy variable that one kind lacks must not disable those
    of the other.

    Args:
        args: the stack's inputs.
        kind: prefix of the statements' names.
        whose: the folder of their requests, with a policy variable.
        session: prefix of the ids of their sessions in Session Manager.
        only: the condition that the caller is of this kind.
    """
    stack = args.stack
    arn = f"arn:{policies.partition(stack.region)}"
    instances = f"{arn}:ec2:{stack.region}:{stack.account_id}:instance/*"
    likes = {f"aws:ResourceTag/{TAKEN}": f"*/{whose}/*"} | dict(only.get("StringLike", {}))
    theirs: Conditions = {
        "StringEquals": {f"aws:ResourceTag/{STACK}": stack.name},
        "StringLike": likes,
    }
    request = pulumi.Output.concat(args.records_arn, f"/reaper/capacity/requests/*/{whose}/*")
    own = f"{arn}:ssm:{stack.region}:{stack.account_id}:session/{session}-*"
    return [
        policies.allow(f"{kind}Asks", ["s3:PutObject"], request, only or None),
        policies.allow(
            f"{kind}KeepsAndGivesBack",
            ["ec2:CreateTags", "ec2:DeleteTags"],
            instances,
            {**theirs, **_only_keys(PERSONAL_TAGS)},
        ),
        policies.allow(f"{kind}Connects", ["ssm:StartSession"], instances, {**theirs, **_by_document(stack)}),
        policies.allow(f"{kind}Sessions", SESSION_ACTIONS, own, only or None),
        *(
            [policies.allow(f"{kind}Starts", ["ssm:SendCommand"], instances, theirs)]
            if stack.access.accounts
            else []
        ),
    ]
