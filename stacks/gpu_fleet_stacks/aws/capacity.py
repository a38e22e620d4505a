"""The mover: a function that decides where a pool's next instance starts, and what users need to ask it.

It runs each minute, and at once when an Auto Scaling group could not launch. Its role raises groups and tags
instances, and can end none; the sweep's role ends instances, and can raise no group.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

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
# What it writes on an instance: who took it and when, and how long it is kept.
TAGS = tuple(
    f"{naming.PROJECT}:{name}" for name in ("owner", "taken", "taken-at", "keep-until", "keep-reason")
)
# What a user writes on an instance of theirs: kept, and given back.
PERSONAL_TAGS = tuple(
    f"{naming.PROJECT}:{name}" for name in ("keep-until", "keep-reason", "keep-by", "give-back")
)
# None of these knows a resource or a condition narrower than the account.
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
# Documents of AWS that run what their caller says (systems-manager/latest/userguide/
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
    """What the mover depends on.

    Attributes:
        key_arn: encrypts log and ledger.
        records_arn: the bucket of requests, ledger and submitted runs.
        topic_arn: who is notified when it fails.
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
            says="The mover fails again and again: nobody gets an instance",
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
                every="rate(1 minute)",  # of one: EventBridge refuses the plural
                timeout_s=TIMEOUT_S,
                latest_start_s=LATEST_START_S,
                environment={"GPU_FLEET_LEDGER_URI": f"s3://{stack.bucket_name('records')}/reaper"},
                key_arn=args.key_arn,
                policy=lambda log_arn: role_policy(args, log_arn),
            ),
            self,
        )

    def _on_failed_launches(self, function: aws.lambda_.Function) -> None:
        """EventBridge hears of each launch that failed: the next group is tried at once."""
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
    """The function's code: equal settings and equal modules give an equal hash."""
    return archive(stack, f"{sweep_archive.MOVER}.aws")


def role_policy(args: CapacityArgs, log_group_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """The role's only policy: raise the stack's groups, tag its instances, and end none."""
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
        # Without it S3 answers "denied" instead of "no such key" (API GetObject, Permissions).
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
    """Of tags these keys only; an empty set of keys would satisfy ForAllValues."""
    return {"ForAllValues:StringEquals": {"aws:TagKeys": list(keys)}, "Null": {"aws:TagKeys": "false"}}


def people_policy(args: CapacityArgs) -> pulumi.Output[str]:
    """What a user needs to take, keep, reach and give back instances: to attach to users or a role.

    A request lies below the name that AWS gives its writer, a user's or a session's: nobody asks for another.
    Sessions open on instances that came for such a request, which is on them as a tag that the mover alone
    writes.
    """
    stack = args.stack
    arn = f"arn:{policies.partition(stack.region)}"
    state = pulumi.Output.concat(args.records_arn, "/reaper/capacity/state.json")
    queue = [sweep_archive.QUEUE_JOBS_KEY] if stack.queued else []
    said = [pulumi.Output.concat(args.records_arn, f"/{key}") for key in (sweep_archive.POLICY_KEY, *queue)]
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
    """Where accounts are named: no document whose sessions open as the agent's account, which becomes root,
    and none by which that account reaches any port.

    A denial, whatever else the caller's policies allow. By their names, of the account and of AWS.
    """
    if not stack.access.accounts:
        return []
    arn = f"arn:{policies.partition(stack.region)}:ssm:{stack.region}:"
    names = [f"{arn}{stack.account_id}:document/{DEFAULT_DOCUMENT}"]
    names += [f"{arn}{owner}:document/{name}" for name in OTHER_DOCUMENTS for owner in ("", stack.account_id)]
    return [policies.deny("NeverAsAnother", ["ssm:StartSession"], names)]


def _by_document(stack: Stack) -> Conditions:
    """Where accounts are named: by a document that they may use, also where they name none.

    Else Session Manager opens its default one, whose account may become root
    (docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-sessiondocumentaccesscheck.html).
    """
    if not stack.access.accounts:
        return {}
    return {"BoolIfExists": {"ssm:SessionDocumentAccessCheck": "true"}}


def _of_caller(
    args: CapacityArgs, kind: str, whose: str, session: str, only: Conditions
) -> Sequence[policies.Statement]:
    """What users or sessions of roles may do to what is theirs.

    Statements of their own: a variable that one kind of caller lacks must spoil none of the other's.

    Args:
        args: the stack's.
        kind: begins the statements' names.
        whose: the folder of their requests, with a policy variable.
        session: how Session Manager begins the ids of their sessions.
        only: that the caller is of this kind.
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
