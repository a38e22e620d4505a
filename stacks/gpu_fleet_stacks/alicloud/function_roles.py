"""Rights of the scheduled functions, each the least that its program needs.

The sweep terminates managed instances of its stack, and can raise no group. The mover raises groups and tags
instances, and can terminate none. The reader of groups and the build controller touch no instance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import OnExceeded, Purpose, Stack
from gpu_fleet_stacks.settings.schema import DirectorySettings

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


# ModifyScalingGroup withdraws failed launches from a group with an expected number. RAM cannot exclude parts
# of the action.
RAISE_ACTIONS = ("ess:ScaleWithAdjustment", "ess:ModifyScalingGroup")
MOVER_LOOK_ACTIONS = (
    "ecs:DescribeInstances",
    "ecs:DescribeSpotPriceHistory",
    "ess:DescribeAlarms",
    "ess:DescribeScalingActivities",
    "ess:DescribeScalingGroups",
)
NEVER_ACTIONS = (
    "ecs:DeleteInstance",
    "ecs:DeleteInstances",
    "ecs:StopInstance",
    "ecs:StopInstances",
    "ess:DetachInstances",
    "ess:RemoveInstances",
    "ess:SetInstanceHealth",
)
BUILDS_LOOK_ACTIONS = ("ecs:DescribeImagePipelineExecutions", "ecs:DescribeImagePipelines")


@dataclass(frozen=True)
class FunctionInputs:
    """Resources that the scheduled functions use.

    Attributes:
        policy: the text of the stack's policy, which every function reads.
        key_id: encrypts logs, ledger, requests and roster.
        data_arn: the bucket whose ``shared/`` users read and write.
        contact_group: the group that alarms notify.
        pipeline_id: the pipeline that the build controller may start.
    """

    stack: Stack
    policy: str
    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    records_arn: pulumi.Output[str]
    data_arn: pulumi.Output[str]
    contact_group: pulumi.Output[str]
    pipeline_id: pulumi.Output[str]


def sweep(inputs: FunctionInputs) -> list[policies.Statement]:
    """Return the statements of the sweep's only policy, without its log."""
    return [
        policies.allow(LOOK_ACTIONS, "*"),
        *_ends(inputs.stack),
        *_denials(inputs.stack),
        *_records(inputs),
        *_notices(inputs.stack),
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


def _records(inputs: FunctionInputs) -> Sequence[policies.Statement]:
    """Return the rights to ledger, lease and metrics; CloudMonitor notifies users, by its alarms."""
    return [
        policies.allow(
            ["oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"],
            pulumi.Output.concat(inputs.records_arn, "/reaper/*"),
        ),
        policies.allow(["oss:ListObjects", "oss:ListObjectVersions"], inputs.records_arn),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], inputs.key_arn),
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


def mover(inputs: FunctionInputs) -> list[policies.Statement]:
    """Return the statements of the mover's only policy, without its log."""
    own = f"{inputs.stack.region}:{inputs.stack.account_id}"
    of_stack = {f"acs:ResourceTag/{STACK}": [inputs.stack.name]}
    managed = of_stack | {f"acs:ResourceTag/{MANAGED}": ["true"]}
    return [
        policies.allow(MOVER_LOOK_ACTIONS, "*"),
        policies.allow(RAISE_ACTIONS, f"acs:ess:{own}:scalinggroup/*", {"StringEquals": of_stack}),
        policies.allow(MARK_ACTIONS, f"acs:ecs:{own}:instance/*", {"StringEquals": managed}),
        policies.deny(NEVER_ACTIONS, "*"),
        policies.allow(
            ["oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"],
            pulumi.Output.concat(inputs.records_arn, "/reaper/capacity/*"),
        ),
        policies.allow(["oss:GetObject", "oss:GetObjectVersion"], money(inputs)),
        policies.allow(["oss:ListObjects", "oss:ListObjectVersions"], inputs.records_arn),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], inputs.key_arn),
    ]


def money(inputs: FunctionInputs) -> list[pulumi.Output[str]]:
    """Return the states of the meter and the freeze, which are numbered objects.

    See ``image/gpu_fleet_image/providers/alicloud/oss.py``.
    """
    names = ("meter", "freeze")
    return [pulumi.Output.concat(inputs.records_arn, f"/reaper/{name}.json*") for name in names]


def reader_of_groups(inputs: FunctionInputs, directory: DirectorySettings) -> list[policies.Statement]:
    """Return the statements of its only policy, without its log: the roster, and nothing else of RAM.

    IMS checks the permission under RAM's name, for the group alone
    (help.aliyun.com/en/ram/developer-reference/api-ims-2019-08-15-listusersforgroup).
    """
    groups = [
        f"acs:ram::{inputs.stack.account_id}:group/{team.group}"
        for _, team in sorted(directory.teams.items())
    ]
    written = (f"{keys.stored(keys.ACCOUNT_FOLDER)}/*", keys.stored(keys.ACCOUNTS))
    return [
        policies.allow(["ram:ListUsersForGroup"], groups),
        policies.allow(
            ["oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"],
            [pulumi.Output.concat(inputs.records_arn, f"/{key}") for key in written],
        ),
        policies.allow(["oss:ListObjects", "oss:ListObjectVersions"], inputs.records_arn),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], inputs.key_arn),
    ]


def build_controller(inputs: FunctionInputs) -> list[policies.Statement]:
    """Return the statements of its policy without its log: start this pipeline, touch no instance."""
    pipeline = f"acs:ecs:{inputs.stack.region}:{inputs.stack.account_id}:imagepipeline/"
    return [
        policies.allow(BUILDS_LOOK_ACTIONS, "*"),
        policies.allow(
            ["ecs:StartImagePipelineExecution"], pulumi.Output.concat(pipeline, inputs.pipeline_id)
        ),
        policies.allow(["cms:PutCustomMetric"], "*"),
    ]
