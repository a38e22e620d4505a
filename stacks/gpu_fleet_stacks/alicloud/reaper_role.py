"""Rights of the sweep: read widely, terminate only managed instances of its stack, never widen its rights."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import OnExceeded, Purpose, Stack

MANAGED = f"{naming.PROJECT}:managed"
STACK = f"{naming.PROJECT}:stack"
POOL = f"{naming.PROJECT}:pool"
PROTECTED = f"{naming.PROJECT}:protected"
END_ACTIONS = ("ecs:StopInstances", "ecs:DeleteInstances")
GROUP_ACTIONS = ("ess:AttachInstances", "ess:DetachInstances")
LIMIT_ACTIONS = ("ess:ModifyScalingGroup", "ess:SuspendProcesses", "ess:ResumeProcesses")
MARK_ACTIONS = ("ecs:TagResources", "ecs:UntagResources")
MARK_ADDRESS_ACTIONS = ("vpc:TagResources", "vpc:UnTagResources")
REMOVE_ACTIONS = ("ecs:DeleteDisk", "vpc:ReleaseEipAddress")
# None of these actions supports a resource or a condition narrower than the account. CloudMonitor checks
# reads of heartbeats, by DescribeMetricList and DescribeMetricLast, under names of its own
# (www.alibabacloud.com/help/en/cms/developer-reference/api-cms-2019-01-01-ram).
LOOK_ACTIONS = (
    "cms:DescribeMetricLast",
    "cms:DescribeMetricList",
    "cms:QueryMetricLast",
    "cms:QueryMetricList",
    "ecs:DescribeDisks",
    "ecs:DescribeInstances",
    "ecs:DescribeSnapshots",
    "ecs:DescribeSpotPriceHistory",
    "ess:DescribeAlarms",
    "ess:DescribeScalingGroups",
    "ess:DescribeScalingInstances",
    "vpc:DescribeEipAddresses",
)


@dataclass(frozen=True)
class RoleArgs:
    """Resources in the role's policy."""

    stack: Stack
    key_arn: pulumi.Input[str]
    records_arn: pulumi.Input[str]


def role_policy(args: RoleArgs) -> list[policies.Statement]:
    """Return the statements of the role's only policy, without its log."""
    return [
        policies.allow(LOOK_ACTIONS, "*"),
        *_ends(args.stack),
        *_denials(args.stack),
        *_records(args),
        *_notices(args.stack),
    ]


def _ends(stack: Stack) -> Sequence[policies.Statement]:
    """Return terminations, marks and group changes, each bound by tags to this stack's managed instances."""
    own = f"{stack.region}:{stack.account_id}"
    licensed = {f"acs:ResourceTag/{MANAGED}": ["true"], f"acs:ResourceTag/{STACK}": [stack.name]}
    of_stack = {"StringEquals": {f"acs:ResourceTag/{STACK}": [stack.name]}}
    statements = [
        policies.allow(END_ACTIONS, f"acs:ecs:{own}:instance/*", {"StringEquals": licensed}),
        policies.allow(GROUP_ACTIONS, f"acs:ess:{own}:scalinggroup/*", of_stack),
        policies.allow(MARK_ACTIONS, [f"acs:ecs:{own}:instance/*", f"acs:ecs:{own}:disk/*"], of_stack),
    ]
    statements.append(policies.allow(MARK_ADDRESS_ACTIONS, f"acs:vpc:{own}:eip/*", of_stack))
    if stack.budget.on_exceeded is OnExceeded.FREEZE:
        statements += _freezes(stack, f"acs:ess:{own}:scalinggroup/*")
    if stack.reaper.leftovers.remove:
        things = [f"acs:ecs:{own}:disk/*", f"acs:vpc:{own}:eip/*"]
        statements.append(policies.allow(REMOVE_ACTIONS, things, of_stack))
    return statements


def _freezes(stack: Stack, groups: str) -> Sequence[policies.Statement]:
    """Allow to limit and close groups of training pools; RAM cannot exclude parts of ModifyScalingGroup."""
    training = [pool.name for pool in stack.pools if pool.purpose is Purpose.TRAINING]
    if not training:
        return []
    own = {f"acs:ResourceTag/{STACK}": [stack.name], f"acs:ResourceTag/{POOL}": training}
    return [policies.allow(LIMIT_ACTIONS, groups, {"StringEquals": own})]


def _denials(stack: Stack) -> Sequence[policies.Statement]:
    """Return denials that hold even if another policy is ever attached to the role."""
    unmanaged = {"StringNotEquals": {f"acs:ResourceTag/{MANAGED}": ["true"]}}
    foreign = {"StringNotEquals": {f"acs:ResourceTag/{STACK}": [stack.name]}}
    # any value protects, even an empty one, as the sweep itself reads the tag: `*` matches an empty
    # text (www.alibabacloud.com/help/en/ram/conditional-operator); without the tag it matches nothing
    protected = {"StringLike": {f"acs:ResourceTag/{PROTECTED}": ["*"]}}
    return [
        policies.deny(END_ACTIONS, "*", unmanaged),
        policies.deny(END_ACTIONS, "*", foreign),
        policies.deny([*END_ACTIONS, *REMOVE_ACTIONS], "*", protected),
        policies.deny(["ecs:ModifyInstanceAttribute"], "*"),
    ]


def _records(args: RoleArgs) -> Sequence[policies.Statement]:
    """Return the rights to ledger, lease and metrics; CloudMonitor notifies users, by its alarms."""
    return [
        policies.allow(
            ["oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"],
            pulumi.Output.concat(args.records_arn, "/reaper/*"),
        ),
        policies.allow(["oss:ListObjects", "oss:ListObjectVersions"], args.records_arn),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
        policies.allow(["cms:PutCustomMetric"], "*"),
    ]


def _notices(stack: Stack) -> Sequence[policies.Statement]:
    """Allow mail to users and reading webhooks' secrets; CloudMonitor notifies operators by a metric."""
    notify, statements = stack.notify, list[policies.Statement]()
    if notify.sender is not None:
        # supports neither resource nor condition (Direct Mail, API SingleSendMail, RAM authorization)
        statements.append(policies.allow(["dm:SingleSendMail"], "*"))
    if notify.webhooks:
        own = f"acs:kms:{stack.region}:{stack.account_id}"
        secrets = [f"{own}:secret/{webhook.secret}" for webhook in notify.webhooks]
        statements.append(policies.allow(["kms:GetSecretValue"], secrets))
    return statements
