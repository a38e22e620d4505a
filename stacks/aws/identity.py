"""What an instance may do: read and write its own stack's buckets, report on itself, leave its own group."""

from collections.abc import Iterator
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from stacks import naming
from stacks.aws import instance_logs, policies
from stacks.payload import built, sweep_archive
from stacks.settings import Pool, Stack

# https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html
SESSION_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
WRITE_ACTIONS = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")
# Read only, and without resource-level permissions in IAM: who is in my pool, and what is asked of me?
LOOK_ACTIONS = ("ec2:DescribeInstances", "ec2:DescribeTags", "autoscaling:DescribeAutoScalingInstances")
# Both say something of a drain under way only. CompleteLifecycleAction is refused where no action waits, and
# the groups' one hook waits on instances that are being terminated already: its result, ABANDON too, can cut
# that wait short and end nothing that runs
# (docs.aws.amazon.com/autoscaling/ec2/userguide/completing-lifecycle-hooks.html).
OWN_GROUP_ACTIONS = ("autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat")

# What users set on an instance by `gpu-fleet keep`; what its agent sets so that the sweep may not stop it,
# and to say who is on it. Every other tag is the stack's or the sweep's.
OWN_TAGS = tuple(f"{naming.PROJECT}:{name}" for name in ("keep-until", "keep-reason", "withdrawn", "users"))


@dataclass(frozen=True)
class IdentityArgs:
    """What a pool's instances are allowed to touch.

    Attributes:
        bucket_arns: kind -> bucket.
        queue_secret_arn: the secret with the key of the queue; None without a queue.
    """

    stack: Stack
    pool: Pool
    key_arn: pulumi.Output[str]
    bucket_arns: dict[str, pulumi.Output[str]]
    queue_secret_arn: pulumi.Output[str] | None = None


class Identity(pulumi.ComponentResource):
    """Role and instance profile of one pool.

    Attributes:
        profile_arn: for the pool's launch template.
    """

    profile_arn: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Identity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        tags = naming.tags(args.stack.name, args.stack.owner, pool=args.pool.name)
        role = aws.iam.Role(
            f"{name}-instance",
            assume_role_policy=policies.trust("ec2.amazonaws.com", args.stack.account_id, check_source=False),
            description=f"Instances of pool {args.pool.name} in gpu-fleet stack {args.stack.name}",
            tags=tags,
            opts=child,
        )
        policy = aws.iam.RolePolicy(
            f"{name}-instance", role=role.id, policy=instance_policy(args), opts=child
        )
        profile = aws.iam.InstanceProfile(
            f"{name}-instance",
            role=role.name,
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )
        self.profile_arn = profile.arn
        self.register_outputs({"profile_arn": profile.arn})


def instance_policy(args: IdentityArgs) -> pulumi.Output[str]:
    """The role's only policy; every write is bound to this stack by a resource or a condition."""
    stack = args.stack
    arn = f"arn:{policies.partition(stack.region)}"
    instances = f"{arn}:ec2:{stack.region}:{stack.account_id}:instance/"
    groups = f"{arn}:autoscaling:{stack.region}:{stack.account_id}:autoScalingGroup:*:autoScalingGroupName/"
    namespace = naming.metric_namespace(stack.name)
    own = {f"{naming.PROJECT}:stack": stack.name, f"{naming.PROJECT}:pool": args.pool.name}
    buckets = [args.bucket_arns["data"], args.bucket_arns["checkpoints"]]
    below = naming.pool_prefix(args.pool.name)
    return policies.document(
        policies.allow("SessionManager", SESSION_ACTIONS, "*"),
        policies.allow("Look", LOOK_ACTIONS, "*"),
        policies.allow("ListBuckets", ["s3:ListBucket", "s3:GetBucketLocation"], buckets),
        # data and checkpoints are shared by the pools of a stack; what one wrote, no other may change
        policies.allow("Read", ["s3:GetObject"], [pulumi.Output.concat(bucket, "/*") for bucket in buckets]),
        policies.allow(
            "WriteOwn", WRITE_ACTIONS, [pulumi.Output.concat(bucket, f"/{below}*") for bucket in buckets]
        ),
        policies.allow("Payload", ["s3:GetObject"], payload_objects(args)),
        # what counts as activity on its pool, and who has an account; both are read anew while it runs
        policies.allow("Policy", ["s3:GetObject"], stack_objects(args)),
        # What it says to the sweep (image/reaper/handshake.py): EC2 names a role's session after the
        # instance, so that none speaks for another (IAM user guide, reference_policies_variables).
        policies.allow(
            "Handshake",
            ["s3:GetObject", "s3:PutObject"],
            pulumi.Output.concat(args.bucket_arns["records"], "/reaper/handshake/${aws:userid}/*"),
        ),
        policies.allow(
            "ObjectKeys",
            ["kms:Decrypt", "kms:GenerateDataKey"],
            args.key_arn,
            {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}},
        ),
        policies.allow(
            "Metrics",
            ["cloudwatch:PutMetricData"],
            "*",
            {"StringEquals": {"cloudwatch:namespace": namespace}},
        ),
        # by tag too: the name of pool "dev" is how that of "dev-large" begins
        policies.allow(
            "OwnGroups",
            OWN_GROUP_ACTIONS,
            f"{groups}{naming.prefixed(stack.name, args.pool.name)}*",
            {"StringEquals": {f"aws:ResourceTag/{tag}": value for tag, value in own.items()}},
        ),
        policies.allow(
            "OwnTags",
            ["ec2:CreateTags", "ec2:DeleteTags"],
            f"{instances}*",
            {
                # itself alone: a neighbour's hold is not its to lift
                "ArnEquals": {"ec2:SourceInstanceARN": f"{instances}${{ec2:InstanceID}}"},
                "StringEquals": {f"ec2:ResourceTag/{tag}": value for tag, value in own.items()},
                "ForAllValues:StringEquals": {"aws:TagKeys": list(OWN_TAGS)},
                # a condition over all values holds where there are none
                "Null": {"aws:TagKeys": "false"},
            },
        ),
        *instance_logs.write_statements(stack, args.pool.name),
        *_existing_buckets(stack, f"{arn}:s3:::"),
        *_queue_key(args),
    )


def _queue_key(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Munge's key, by which nodes and controller know each other."""
    if args.queue_secret_arn is not None:
        through = {"StringEquals": {"kms:ViaService": f"secretsmanager.{args.stack.region}.amazonaws.com"}}
        yield policies.allow("QueueKey", ["secretsmanager:GetSecretValue"], args.queue_secret_arn)
        yield policies.allow("QueueKeysKey", ["kms:Decrypt"], args.key_arn, through)


def _existing_buckets(stack: Stack, arn: str) -> Iterator[policies.Statement]:
    """Buckets of somebody else's, by their names alone; their own policies decide too."""
    buckets = stack.storage.existing.buckets
    writable = [name for name, use in buckets.items() if use.write]
    keys = sorted({use.key for use in buckets.values() if use.key is not None})
    through_s3 = {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}
    if buckets:
        yield policies.allow(
            "ListExisting", ["s3:ListBucket", "s3:GetBucketLocation"], [arn + name for name in buckets]
        )
        yield policies.allow("ReadExisting", ["s3:GetObject"], [f"{arn}{name}/*" for name in buckets])
    if writable:
        yield policies.allow("WriteExisting", WRITE_ACTIONS, [f"{arn}{name}/*" for name in writable])
    if keys:
        yield policies.allow("ExistingKeys", ["kms:Decrypt", "kms:GenerateDataKey"], keys, through_s3)


def stack_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """What the stack says to its instances as long as they run."""
    queue = [*sweep_archive.QUEUE_SAYS, sweep_archive.MOVER_STATE_KEY] if args.stack.queued else []
    keys = (sweep_archive.POLICY_KEY, sweep_archive.ACCOUNTS_KEY, *queue)
    return [pulumi.Output.concat(args.bucket_arns["records"], f"/{key}") for key in keys]


def payload_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """What an instance fetches at its first boot; all that a pool's role reads of the records bucket."""
    prefixes = [built.PREFIX]
    if not args.stack.network.reaches_internet:
        prefixes.append(built.WHEELS_PREFIX)
    return [pulumi.Output.concat(args.bucket_arns["records"], f"/{prefix}/*") for prefix in prefixes]
