"""Rights of the sweep: read widely, terminate only managed instances of its stack, never widen its rights."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import OnExceeded, Purpose, Stack

MANAGED = f"{naming.PROJECT}:managed"
STACK = f"{naming.PROJECT}:stack"
POOL = f"{naming.PROJECT}:pool"
PROTECTED = f"{naming.PROJECT}:protected"
WITHDRAWN = f"{naming.PROJECT}:withdrawn"
# The sweep's own marks, the only tags it may write or remove.
MARKS = (f"{naming.PROJECT}:idle-since", f"{naming.PROJECT}:reap-after")
# Tags that allow or forbid a termination; the sweep may never change them.
LICENCES = tuple(
    f"{naming.PROJECT}:{name}"
    for name in (
        *("managed", "stack", "pool", "owner", "protected"),
        *("withdrawn", "keep-until", "keep-reason", "keep-by", "users"),
    )
)
END_ACTIONS = ("ec2:StopInstances", "ec2:TerminateInstances")
GROUP_ACTIONS = ("autoscaling:AttachInstances", "autoscaling:DetachInstances")
LIMIT_ACTIONS = ("autoscaling:UpdateAutoScalingGroup",)
CLOSE_ACTIONS = ("autoscaling:SuspendProcesses", "autoscaling:ResumeProcesses")
# Parts of UpdateAutoScalingGroup that a freeze leaves alone (IAM, keys of Amazon EC2 Auto Scaling).
KEPT_PARTS = ("MinSize", "LaunchTemplateVersionSpecified", "VPCZoneIdentifiers")
REMOVE_ACTIONS = ("ec2:DeleteVolume", "ec2:ReleaseAddress")
# None of these actions supports a resource or a condition narrower than the account.
LOOK_ACTIONS = (
    "autoscaling:DescribeAutoScalingGroups",
    "cloudwatch:DescribeAlarms",
    "cloudwatch:GetMetricData",
    "ec2:DescribeAddresses",
    "ec2:DescribeInstanceAttribute",
    "ec2:DescribeInstances",
    "ec2:DescribeSnapshots",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeVolumes",
)


@dataclass(frozen=True)
class RoleArgs:
    """Resources in the role's policy.

    Attributes:
        key_arn: encrypts ledger and topic.
        queue_arn: receives failed events.
    """

    stack: Stack
    key_arn: pulumi.Input[str]
    records_arn: pulumi.Input[str]
    topic_arn: pulumi.Input[str]
    queue_arn: pulumi.Input[str]
    log_group_arn: pulumi.Input[str]


def role_policy(args: RoleArgs) -> pulumi.Output[str]:
    """Return the role's only policy."""
    stack = args.stack
    return policies.document(
        *_looks(), *_ends(stack), *_denials(stack), *_records(args), *_notices(stack, args.topic_arn)
    )


def _looks() -> Sequence[policies.Statement]:
    return [policies.allow("Look", LOOK_ACTIONS, "*")]


def _ends(stack: Stack) -> Sequence[policies.Statement]:
    """Return terminations, marks and group changes, each bound by tags to this stack's managed instances."""
    ec2 = f"arn:{policies.partition(stack.region)}:ec2:{stack.region}:{stack.account_id}"
    scaling = f"arn:{policies.partition(stack.region)}:autoscaling:{stack.region}:{stack.account_id}"
    groups = f"{scaling}:autoScalingGroup:*:autoScalingGroupName/{naming.prefixed(stack.name)}-*"
    licensed = {f"aws:ResourceTag/{MANAGED}": "true", f"aws:ResourceTag/{STACK}": stack.name}
    # A volume has the tags of its instance; an address has the stack's tag.
    things = [f"{ec2}:{kind}/*" for kind in ("instance", "volume", "elastic-ip")]
    statements = [
        policies.allow("EndManaged", END_ACTIONS, f"{ec2}:instance/*", {"StringEquals": licensed}),
        policies.allow(
            "LeaveGroups",
            GROUP_ACTIONS,
            groups,
            {"StringEquals": {f"aws:ResourceTag/{STACK}": stack.name}},
        ),
        policies.allow(
            "Mark",
            ["ec2:CreateTags", "ec2:DeleteTags"],
            things,
            {
                "StringEquals": {f"aws:ResourceTag/{STACK}": stack.name},
                "ForAllValues:StringEquals": {"aws:TagKeys": list(MARKS)},
                "Null": {"aws:TagKeys": "false"},
            },
        ),
    ]
    if stack.budget.on_exceeded is OnExceeded.FREEZE:
        statements += _freezes(stack, groups)
    if stack.reaper.leftovers.remove:
        own = {"StringEquals": {f"aws:ResourceTag/{STACK}": stack.name}}
        statements.append(policies.allow("RemoveLeftovers", REMOVE_ACTIONS, things[1:], own))
    return statements


def _freezes(stack: Stack, groups: str) -> Sequence[policies.Statement]:
    """Allow to limit and close the groups of training pools, and to change nothing else about them."""
    training = [pool.name for pool in stack.pools if pool.purpose is Purpose.TRAINING]
    if not training:
        return []
    own = {f"aws:ResourceTag/{STACK}": stack.name, f"aws:ResourceTag/{POOL}": training}
    kept = {"Null": {f"autoscaling:{part}": "true" for part in KEPT_PARTS}}
    return [
        policies.allow("LimitGroups", LIMIT_ACTIONS, groups, {"StringEquals": own, **kept}),
        policies.allow("CloseGroups", CLOSE_ACTIONS, groups, {"StringEquals": own}),
    ]


def _denials(stack: Stack) -> Sequence[policies.Statement]:
    """Return denials that hold even if another policy is ever attached to the role."""
    foreign = {"StringNotEquals": {f"aws:ResourceTag/{STACK}": stack.name}}
    return [
        policies.deny(
            "NeverUnmanaged", END_ACTIONS, "*", {"StringNotEquals": {f"aws:ResourceTag/{MANAGED}": "true"}}
        ),
        policies.deny("NeverOtherStacks", END_ACTIONS, "*", foreign),
        policies.deny(
            "NeverProtected",
            (*END_ACTIONS, *REMOVE_ACTIONS),
            "*",
            {"Null": {f"aws:ResourceTag/{PROTECTED}": "false"}},
        ),
        # an instance sets this tag on itself when it is in use again, even while the sweep's call is on its
        # way
        policies.deny(
            "NeverWithdrawn", END_ACTIONS, "*", {"Null": {f"aws:ResourceTag/{WITHDRAWN}": "false"}}
        ),
        policies.deny(
            "NeverLicences",
            ["ec2:CreateTags", "ec2:DeleteTags"],
            "*",
            {"ForAnyValue:StringEquals": {"aws:TagKeys": list(LICENCES)}},
        ),
        policies.deny("NeverAttributes", ["ec2:ModifyInstanceAttribute"], "*"),
    ]


def _records(args: RoleArgs) -> Sequence[policies.Statement]:
    """Return the rights to ledger, lease, notices, metrics and logs."""
    return [
        policies.allow(
            "Ledger",
            ["s3:GetObject", "s3:PutObject"],
            pulumi.Output.concat(args.records_arn, "/reaper/*"),
        ),
        # Without this action S3 answers "denied" instead of "no such key" (API GetObject, Permissions).
        policies.allow("LedgerAbsence", ["s3:ListBucket"], args.records_arn),
        use_key(args.stack, args.key_arn, "s3", "sns", "sqs", *_secrets_service(args.stack)),
        policies.allow(
            "OwnMetrics",
            ["cloudwatch:PutMetricData"],
            "*",
            {"StringEquals": {"cloudwatch:namespace": naming.metric_namespace(args.stack.name)}},
        ),
        policies.allow("FailedEvents", ["sqs:SendMessage"], args.queue_arn),
        policies.allow(
            "Log",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            pulumi.Output.concat(args.log_group_arn, ":*"),
        ),
    ]


def _secrets_service(stack: Stack) -> Sequence[str]:
    return ["secretsmanager"] if stack.notify.webhooks else []


def _notices(stack: Stack, topic_arn: pulumi.Input[str]) -> Sequence[policies.Statement]:
    """Allow to notify operators and users, and to see which subscriptions are not confirmed."""
    notify, own = stack.notify, f"{stack.region}:{stack.account_id}"
    arn = f"arn:{policies.partition(stack.region)}"
    actions = ["sns:Publish", *(["sns:ListSubscriptionsByTopic"] if notify.anybody else [])]
    statements = [policies.allow("Tell", actions, topic_arn)]
    if notify.sender is not None:
        # SES checks the verified identity: the address, or its domain
        identities = [notify.sender, notify.sender.partition("@")[2]]
        statements.append(
            policies.allow(
                "Mail",
                ["ses:SendEmail"],
                [f"{arn}:ses:{own}:identity/{identity}" for identity in identities],
                {"StringEquals": {"ses:FromAddress": notify.sender}},
            )
        )
    if notify.webhooks:
        # Secrets Manager adds six characters to a name (IAM, resource types of AWS Secrets Manager)
        secrets = [
            f"{arn}:secretsmanager:{own}:secret:{webhook.secret}-??????" for webhook in notify.webhooks
        ]
        statements.append(policies.allow("Webhooks", ["secretsmanager:GetSecretValue"], secrets))
    return statements


def use_key(stack: Stack, key_arn: pulumi.Input[str], *services: str) -> policies.Statement:
    """Allow the use of the stack's key, but only through these services."""
    via = [f"{service}.{stack.region}.amazonaws.com" for service in services]
    actions = ["kms:Decrypt", "kms:GenerateDataKey"]
    return policies.allow("Key", actions, key_arn, {"StringEquals": {"kms:ViaService": via}})
