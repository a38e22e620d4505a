"""Rights of the scheduled functions, each the least that its program needs.

The sweep terminates managed instances of its stack, and can raise no group. The mover raises groups and tags
instances, and can terminate none. The reader of groups and the build controller touch no instance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import OnExceeded, Purpose, Stack
from gpu_fleet_stacks.settings.schema import DirectorySettings

Conditions = dict[str, Mapping[str, Any]]
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
# Tags that the mover sets on an instance: who took it and when, and how long it is kept.
MOVER_TAGS = tuple(
    f"{naming.PROJECT}:{name}" for name in ("owner", "taken", "taken-at", "keep-until", "keep-reason")
)
MOVER_LOOK_ACTIONS = (
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
BUILDS_LOOK_ACTIONS = (
    # Systems Manager asks it of who writes an image's id (its guide, "Native parameter support for AMIs")
    "ec2:DescribeImages",
    "imagebuilder:ListImagePipelines",
    "imagebuilder:ListImageScanFindingAggregations",
    "imagebuilder:ListWorkflowStepExecutions",
)


@dataclass(frozen=True)
class FunctionInputs:
    """Resources that the scheduled functions use.

    Attributes:
        policy: the text of the stack's policy, which every function reads.
        data_arn: the bucket whose ``shared/`` users read and write.
        pipeline_arns: the image pipelines of every zone; a destroy removes the build controller before them,
            so that it starts no build that nothing deletes.
        failed_events_arn: receives events that a function did not handle; None to keep none.
    """

    stack: Stack
    policy: str
    key_arn: pulumi.Output[str]
    records_arn: pulumi.Output[str]
    data_arn: pulumi.Output[str]
    topic_arn: pulumi.Output[str]
    pipeline_arns: list[pulumi.Output[str]]
    failed_events_arn: pulumi.Output[str] | None = None


def sweep(inputs: FunctionInputs, log_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the sweep's only policy."""
    stack = inputs.stack
    return policies.document(
        policies.allow("Look", LOOK_ACTIONS, "*"),
        *_ends(stack),
        *_denials(stack),
        *_records(inputs),
        _log(log_arn),
        *_notices(stack, inputs.topic_arn),
    )


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


def _records(inputs: FunctionInputs) -> Sequence[policies.Statement]:
    """Return the rights to ledger, lease, notices, metrics and failed events."""
    return [
        policies.allow(
            "Ledger",
            ["s3:GetObject", "s3:PutObject"],
            pulumi.Output.concat(inputs.records_arn, "/reaper/*"),
        ),
        # Without this action S3 answers "denied" instead of "no such key" (API GetObject, Permissions).
        policies.allow("LedgerAbsence", ["s3:ListBucket"], inputs.records_arn),
        use_key(inputs.stack, inputs.key_arn, "s3", "sns", "sqs", *_secrets_service(inputs.stack)),
        _own_metrics(inputs.stack),
        *_failed_events(inputs),
    ]


def _failed_events(inputs: FunctionInputs) -> Sequence[policies.Statement]:
    queue = inputs.failed_events_arn
    return [] if queue is None else [policies.allow("FailedEvents", ["sqs:SendMessage"], queue)]


def _own_metrics(stack: Stack) -> policies.Statement:
    own = {"StringEquals": {"cloudwatch:namespace": naming.metric_namespace(stack.name)}}
    return policies.allow("OwnMetrics", ["cloudwatch:PutMetricData"], "*", own)


def _log(log_arn: pulumi.Input[str]) -> policies.Statement:
    actions = ["logs:CreateLogStream", "logs:PutLogEvents"]
    return policies.allow("Log", actions, pulumi.Output.concat(log_arn, ":*"))


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


def mover(inputs: FunctionInputs, log_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the mover's only policy: raise the stack's groups, tag its instances, terminate none."""
    stack = inputs.stack
    arn = f"arn:{policies.partition(stack.region)}"
    own = f"{stack.region}:{stack.account_id}"
    group = f"autoScalingGroup:*:autoScalingGroupName/{naming.prefixed(stack.name)}-*"
    of_stack = {f"aws:ResourceTag/{STACK}": stack.name}
    tags = only_keys(MOVER_TAGS)
    return policies.document(
        policies.allow("Look", MOVER_LOOK_ACTIONS, "*"),
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
            {"StringEquals": of_stack | {f"aws:ResourceTag/{MANAGED}": "true"}, **tags},
        ),
        policies.deny("NeverEnds", NEVER_ACTIONS, "*"),
        policies.allow(
            "Ledger",
            ["s3:GetObject", "s3:PutObject"],
            pulumi.Output.concat(inputs.records_arn, "/reaper/capacity/*"),
        ),
        policies.allow("Money", ["s3:GetObject"], money(inputs)),
        # Without this action S3 answers "denied" instead of "no such key" (API GetObject, Permissions).
        policies.allow("Requests", ["s3:ListBucket"], inputs.records_arn),
        use_key(stack, inputs.key_arn, "s3"),
        _log(log_arn),
    )


def money(inputs: FunctionInputs) -> list[pulumi.Output[str]]:
    """Return the states of the meter and the freeze."""
    return [pulumi.Output.concat(inputs.records_arn, f"/reaper/{name}.json") for name in ("meter", "freeze")]


def only_keys(tags: Sequence[str]) -> Conditions:
    """Return the condition that a call sets or deletes only these tags.

    An empty set of keys would satisfy ForAllValues, so the keys must be present.
    """
    return {"ForAllValues:StringEquals": {"aws:TagKeys": list(tags)}, "Null": {"aws:TagKeys": "false"}}


def reader_of_groups(
    inputs: FunctionInputs, log_arn: pulumi.Input[str], directory: DirectorySettings
) -> pulumi.Output[str]:
    """Return its only policy: the stack's groups and their members, and the roster."""
    stack = inputs.stack
    written = (f"{keys.stored(keys.ACCOUNT_FOLDER)}/*", keys.stored(keys.ACCOUNTS))
    return policies.document(
        *_groups(stack, directory),
        policies.allow(
            "Roster",
            ["s3:GetObject", "s3:PutObject"],
            [pulumi.Output.concat(inputs.records_arn, f"/{key}") for key in written],
        ),
        # Without this action S3 answers "denied" instead of "no such key" (API GetObject, Permissions).
        policies.allow("Absence", ["s3:ListBucket"], inputs.records_arn),
        use_key(stack, inputs.key_arn, "s3"),
        _log(log_arn),
    )


def _groups(stack: Stack, directory: DirectorySettings) -> list[policies.Statement]:
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


def build_controller(inputs: FunctionInputs, log_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return its only policy: start the stack's pipelines, write its parameter, touch no instance."""
    stack = inputs.stack
    arn, own = f"arn:{policies.partition(stack.region)}", f"{stack.region}:{stack.account_id}"
    named = naming.prefixed(stack.name)
    builder = f"{arn}:imagebuilder:{own}"
    parameter = f"{arn}:ssm:{own}:parameter{stack.image.built_parameter(stack.name)}"
    promotes = ["ssm:PutParameter"] if stack.image.scan else []
    return policies.document(
        policies.allow("Look", BUILDS_LOOK_ACTIONS, "*"),
        policies.allow(
            "Pipelines",
            [
                "imagebuilder:GetImagePipeline",
                "imagebuilder:ListImagePipelineImages",
                "imagebuilder:StartImagePipelineExecution",
            ],
            inputs.pipeline_arns,
        ),
        policies.allow(
            "Builds",
            ["imagebuilder:GetImage", "imagebuilder:ListWorkflowExecutions"],
            f"{builder}:image/{named}-*",
        ),
        policies.allow("Promoted", ["ssm:GetParameters", *promotes], parameter),
        _own_metrics(stack),
        _log(log_arn),
    )
