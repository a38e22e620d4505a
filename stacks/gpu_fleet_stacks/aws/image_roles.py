"""Roles of the image's builder and of the deletion of old images, each with one policy of its own."""

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.aws.identity import SESSION_ACTIONS
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

LOG_PREFIX = "image-logs"
# Actions of Run Command beside those of a session; Image Builder drives its builder by it (from AWS's own
# policies AmazonSSMManagedInstanceCore and EC2InstanceProfileForImageBuilder, without reading parameters).
COMMAND_ACTIONS = (
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
    "ssm:DescribeDocument",
    "ssm:GetDocument",
    "ssm:ListAssociations",
    "ssm:ListInstanceAssociations",
    "ssm:PutInventory",
    "ssm:UpdateInstanceAssociationStatus",
)
# The part that deletes images and their snapshots of AWS's own policy EC2ImageBuilderLifecycleExecutionPolicy
# (docs.aws.amazon.com/aws-managed-policy).
MADE_HERE = {"StringEquals": {"aws:ResourceTag/CreatedBy": "EC2 Image Builder"}}


def execution_role(stack: Stack) -> str:
    """Return the role that runs a pipeline's workflows: Image Builder's own, made at its first use."""
    path = "role/aws-service-role/imagebuilder.amazonaws.com/AWSServiceRoleForImageBuilder"
    return f"arn:{policies.partition(stack.region)}:iam::{stack.account_id}:{path}"


def builder_profile(
    name: str,
    stack: Stack,
    key_arn: pulumi.Output[str],
    records_bucket_arn: pulumi.Output[str],
    parent: pulumi.Resource,
) -> pulumi.Output[str]:
    """Declare the builder's instance profile; return its name."""
    opts = pulumi.ResourceOptions(parent=parent)
    tags = naming.tags(stack.name, stack.owner)
    role = aws.iam.Role(
        name,
        assume_role_policy=policies.trust("ec2.amazonaws.com", stack.account_id, check_source=False),
        description=f"Builds images of gpu-fleet stack {stack.name}",
        tags=tags,
        opts=opts,
    )
    policy = aws.iam.RolePolicy(
        name, role=role.id, policy=builder_policy(stack, key_arn, records_bucket_arn), opts=opts
    )
    profile = aws.iam.InstanceProfile(
        name,
        role=role.name,
        tags=tags,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[policy]),
    )
    return profile.name


def builder_policy(
    stack: Stack, key_arn: pulumi.Output[str], records_bucket_arn: pulumi.Output[str]
) -> pulumi.Output[str]:
    """Allow to read this stack's payload and components and to write the log: no other data, no instances."""
    arn = f"arn:{policies.partition(stack.region)}:imagebuilder:{stack.region}:{stack.account_id}"
    via_s3 = {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}
    component = {
        "ForAnyValue:StringEquals": {
            "kms:EncryptionContextKeys": "aws:imagebuilder:arn",
            "aws:CalledVia": ["imagebuilder.amazonaws.com"],
        }
    }
    return policies.document(
        policies.allow("Commands", [*SESSION_ACTIONS, *COMMAND_ACTIONS], "*"),
        policies.allow(
            "Components",
            ["imagebuilder:GetComponent"],
            f"{arn}:component/{naming.prefixed(stack.name)}-*/*/*",
        ),
        policies.allow("ComponentKey", ["kms:Decrypt"], key_arn, component),
        policies.allow("Recipe", ["s3:GetObject"], pulumi.Output.concat(records_bucket_arn, "/image/*")),
        policies.allow("Log", ["s3:PutObject"], pulumi.Output.concat(records_bucket_arn, f"/{LOG_PREFIX}/*")),
        policies.allow("ObjectKeys", ["kms:Decrypt", "kms:GenerateDataKey"], key_arn, via_s3),
    )


def lifecycle_role(name: str, stack: Stack, parent: pulumi.Resource) -> pulumi.Output[str]:
    """Declare the role with which Image Builder deletes old images; return its ARN once its policy exists."""
    opts = pulumi.ResourceOptions(parent=parent)
    role = aws.iam.Role(
        name,
        assume_role_policy=policies.trust("imagebuilder.amazonaws.com", stack.account_id),
        description=f"Removes old images of gpu-fleet stack {stack.name}",
        tags=naming.tags(stack.name, stack.owner),
        opts=opts,
    )
    policy = aws.iam.RolePolicy(name, role=role.id, policy=lifecycle_policy(stack), opts=opts)
    return pulumi.Output.all(role.arn, policy.id).apply(lambda known: str(known[0]))


def lifecycle_policy(stack: Stack) -> pulumi.Output[str]:
    """Allow to deregister images and delete snapshots that Image Builder made, in this region."""
    partition = policies.partition(stack.region)
    ec2 = f"arn:{partition}:ec2:{stack.region}"
    builder = f"arn:{partition}:imagebuilder:{stack.region}:{stack.account_id}"
    return policies.document(
        policies.allow(
            "Images", ["ec2:DeregisterImage", "ec2:DescribeImageAttribute"], f"{ec2}::image/*", MADE_HERE
        ),
        policies.allow("Snapshots", ["ec2:DeleteSnapshot"], f"{ec2}::snapshot/*", MADE_HERE),
        policies.allow(
            "Builds", ["imagebuilder:DeleteImage"], f"{builder}:image/{naming.prefixed(stack.name)}-*"
        ),
        policies.allow("Look", ["ec2:DescribeImages", "tag:GetResources"], "*"),
    )
