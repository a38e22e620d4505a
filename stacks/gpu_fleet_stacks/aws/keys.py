"""The stack's own KMS key, and the scaling role that only this key trusts."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import image_roles, policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

DELETION_WINDOW_DAYS_PROTECTED = 30
DELETION_WINDOW_DAYS = 7

# Permissions on a key that EBS needs for an encrypted volume of an Auto Scaling group:
# https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html
VOLUME_ACTIONS = ("kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey")
MESSAGE_ACTIONS = ("kms:GenerateDataKey*", "kms:Decrypt")
PUBLISHERS = ("budgets.amazonaws.com", "cloudwatch.amazonaws.com")


@dataclass(frozen=True)
class KeysArgs:
    """Inputs of the key: only the stack's settings."""

    stack: Stack


class Keys(pulumi.ComponentResource):
    """One customer-managed key for everything the stack stores.

    Pulumi never deletes it (``retain_on_delete``): snapshots, images and detached volumes that it encrypts
    are in no state file, so no order of deletions covers them. ``gpu-fleet destroy`` schedules the key's
    deletion once it has looked and found nothing left under it (``stacks/gpu_fleet_stacks/teardown``).

    Attributes:
        key_arn: the key, for every ``kms_key_id`` of the stack.
        autoscaling_role_arn: a service-linked role of this stack alone, so that the key need not trust the
            role all scaling groups of the account share.
    """

    key_arn: pulumi.Output[str]
    autoscaling_role_arn: pulumi.Output[str]

    def __init__(self, name: str, args: KeysArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Keys", name, None, opts)
        stack = args.stack
        child = pulumi.ResourceOptions(parent=self)
        tags = naming.tags(stack.name, stack.owner)

        role = aws.iam.ServiceLinkedRole(
            f"{name}-autoscaling",
            aws_service_name="autoscaling.amazonaws.com",
            custom_suffix=naming.prefixed(stack.name),
            description=f"Scaling groups of gpu-fleet stack {stack.name}",
            tags=tags,
            opts=child,
        )
        key = aws.kms.Key(
            f"{name}-key",
            description=f"gpu-fleet stack {stack.name}: volumes, buckets, file systems, logs, topics",
            enable_key_rotation=True,
            rotation_period_in_days=stack.storage.key_rotation_days,
            deletion_window_in_days=DELETION_WINDOW_DAYS_PROTECTED
            if stack.protected
            else DELETION_WINDOW_DAYS,
            policy=key_policy(stack, role.arn),
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self, protect=stack.protected, retain_on_delete=True),
        )
        aws.kms.Alias(
            f"{name}-alias",
            name=f"alias/{naming.prefixed(stack.name)}",
            target_key_id=key.key_id,
            opts=pulumi.ResourceOptions(parent=self, protect=stack.protected),
        )
        self.key_arn = key.arn
        self.autoscaling_role_arn = role.arn
        self.register_outputs({"key_arn": key.arn, "autoscaling_role_arn": role.arn})


def key_policy(stack: Stack, autoscaling_role_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the key's policy: the account by its own IAM, and exactly the services that encrypt for it."""
    root = f"arn:{policies.partition(stack.region)}:iam::{stack.account_id}:root"
    builds = [_builds(stack)] if stack.image.built else []
    caches = [_caches(stack)] if "data" in stack.storage.cached_buckets else []
    from_account = {"StringEquals": {"aws:SourceAccount": stack.account_id}}
    return policies.document(
        policies.allow("AccountAdministers", ["kms:*"], "*", principal={"AWS": root}),
        policies.allow("VolumesOfGroups", VOLUME_ACTIONS, "*", principal={"AWS": autoscaling_role_arn}),
        policies.allow(
            "GrantsForVolumesOfGroups",
            ["kms:CreateGrant"],
            "*",
            {"Bool": {"kms:GrantIsForAWSResource": "true"}},
            {"AWS": autoscaling_role_arn},
        ),
        _logs(stack),
        policies.allow("AlarmsToTopic", MESSAGE_ACTIONS, "*", from_account, {"Service": list(PUBLISHERS)}),
        *builds,
        *caches,
    )


def _logs(stack: Stack) -> policies.Statement:
    """Allow CloudWatch Logs the key for this stack's log groups only.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html
    """
    prefix = f"arn:{policies.partition(stack.region)}:logs:{stack.region}:{stack.account_id}:log-group:"
    groups = [f"{prefix}/gpu-fleet/{stack.name}/*", f"{prefix}/aws/lambda/{naming.prefixed(stack.name)}-*"]
    return policies.allow(
        "LogGroups",
        ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:Describe*"],
        "*",
        {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
        {"Service": f"logs.{stack.region}.amazonaws.com"},
    )


def _caches(stack: Stack) -> policies.Statement:
    """Allow FSx to read the data bucket for a linked Lustre; each Lustre has a role of its own.

    The role is created with the link, so a condition names it (docs.aws.amazon.com/fsx/latest/LustreGuide/
    create-dra-linked-data-repo.html, "Working with server-side encrypted Amazon S3 buckets").
    """
    arn = f"arn:{policies.partition(stack.region)}:iam::{stack.account_id}:role/aws-service-role"
    only = {"kms:CallerAccount": stack.account_id, "kms:ViaService": f"s3.{stack.region}.amazonaws.com"}
    role = f"{arn}/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_*"
    return policies.allow(
        "CacheReadsData",
        ["kms:Decrypt", "kms:DescribeKey"],
        "*",
        {"StringEquals": only, "ArnLike": {"aws:PrincipalArn": role}},
        {"AWS": "*"},
    )


def _builds(stack: Stack) -> policies.Statement:
    """Allow Image Builder's own role to publish a build's result to the topic.

    A condition names it, since a policy is refused if it names a role that does not exist, and the account's
    first build creates this one (docs.aws.amazon.com/imagebuilder/latest/userguide/integ-sns.html).
    """
    only = {
        "kms:CallerAccount": stack.account_id,
        "kms:ViaService": f"sns.{stack.region}.amazonaws.com",
        "aws:PrincipalArn": image_roles.execution_role(stack),
    }
    return policies.allow("BuildsToTopic", MESSAGE_ACTIONS, "*", {"StringEquals": only}, {"AWS": "*"})
