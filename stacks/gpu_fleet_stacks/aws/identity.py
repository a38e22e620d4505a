"""Rights of an instance and of its users: two roles of each pool.

Root uses the instance's role: it reads the stack's documents, reports on the instance, and leaves its group.
Users, jobs and containers get the user role. The instance's role alone may assume it, for the account that
asks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws import instance_logs, policies
from gpu_fleet_stacks.aws.submit import ACCOUNT, ACCOUNT_TAG
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import built
from gpu_fleet_stacks.settings import Pool, Stack
from gpu_fleet_stacks.settings.schema import ExistingBucket

# https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html
SESSION_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
LIST_ACTIONS = ("s3:ListBucket", "s3:GetBucketLocation")
WRITE_ACTIONS = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")
ADD_ACTIONS = ("s3:PutObject", "s3:AbortMultipartUpload")
# Read only, and without resource-level permissions in IAM: the pool's instances and their tags.
LOOK_ACTIONS = ("ec2:DescribeInstances", "ec2:DescribeTags", "autoscaling:DescribeAutoScalingInstances")
# Both only affect a drain under way. CompleteLifecycleAction is refused where no action waits, and
# the groups' one hook waits on instances that are being terminated already: its result, ABANDON too, can cut
# that wait short and end nothing that runs
# (docs.aws.amazon.com/autoscaling/ec2/userguide/completing-lifecycle-hooks.html).
OWN_GROUP_ACTIONS = ("autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat")
# `launch` finds the other instances of its group by these (training/gpu_fleet_jobs/launch/aws_peers.py).
PEER_ACTIONS = ("ec2:DescribeInstances", "autoscaling:DescribeAutoScalingInstances")

# the pools of a stack share data and checkpoints; a pool may change only its own objects
SHARED = ("data", "checkpoints")

# Tags that `gpu-fleet keep` sets on an instance, and tags of its agent: against a stop by the sweep, and with
# the instance's users. Every other tag is the stack's or the sweep's.
OWN_TAGS = tuple(
    f"{naming.PROJECT}:{name}" for name in ("keep-until", "keep-reason", "keep-by", "withdrawn", "users")
)


@dataclass(frozen=True)
class IdentityArgs:
    """Inputs of a pool's roles.

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
    """Role, instance profile and user role of one pool.

    Attributes:
        profile_arn: for the pool's launch template.
        user_role_arn: for its ``instance.toml``; known once the role may do its work.
    """

    profile_arn: pulumi.Output[str]
    user_role_arn: pulumi.Output[str]

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
        user_role, user_role_policy = _user_role(name, args, role.arn, self)
        policy = aws.iam.RolePolicy(
            f"{name}-instance", role=role.id, policy=instance_policy(args, user_role.arn), opts=child
        )
        profile = aws.iam.InstanceProfile(
            f"{name}-instance",
            role=role.name,
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )
        self.profile_arn = profile.arn
        self.user_role_arn = pulumi.Output.all(user_role.arn, user_role_policy.id).apply(
            lambda both: str(both[0])
        )
        self.register_outputs({"profile_arn": profile.arn, "user_role_arn": self.user_role_arn})


def _user_role(
    name: str, args: IdentityArgs, instance_role_arn: pulumi.Output[str], parent: pulumi.Resource
) -> tuple[aws.iam.Role, aws.iam.RolePolicy]:
    """Declare the user role and its policy."""
    child = pulumi.ResourceOptions(parent=parent)
    role = aws.iam.Role(
        f"{name}-user",
        assume_role_policy=user_trust(instance_role_arn),
        description=f"Users of pool {args.pool.name} in gpu-fleet stack {args.stack.name}",
        tags=naming.tags(args.stack.name, args.stack.owner, pool=args.pool.name),
        opts=child,
    )
    return role, aws.iam.RolePolicy(f"{name}-user", role=role.id, policy=user_policy(args), opts=child)


def instance_policy(args: IdentityArgs, user_role_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the instance role's only policy; a resource or a condition binds every write to this stack."""
    stack = args.stack
    arn = f"arn:{policies.partition(stack.region)}"
    instances = f"{arn}:ec2:{stack.region}:{stack.account_id}:instance/"
    groups = f"{arn}:autoscaling:{stack.region}:{stack.account_id}:autoScalingGroup:*:autoScalingGroupName/"
    namespace = naming.metric_namespace(stack.name)
    own = {f"{naming.PROJECT}:stack": stack.name, f"{naming.PROJECT}:pool": args.pool.name}
    return policies.document(
        policies.allow("SessionManager", SESSION_ACTIONS, "*"),
        policies.allow("Look", LOOK_ACTIONS, "*"),
        # for bucket@.service, which mounts buckets that every account may read
        *_reads(args),
        # an image without an agent gives users no role of their own
        *(_saves(args) if stack.image.managed else _writes(args)),
        policies.allow("Payload", ["s3:GetObject"], payload_objects(args)),
        # the policy says what counts as activity; it and the accounts are read again while the instance runs
        policies.allow("Policy", ["s3:GetObject"], stack_objects(args)),
        # The instance's answers to the sweep (image/gpu_fleet_image/core/handshake.py): EC2 names a role's
        # session after the instance, so that none speaks for another (IAM user guide,
        # reference_policies_variables).
        policies.allow(
            "Handshake",
            ["s3:GetObject", "s3:PutObject"],
            pulumi.Output.concat(args.bucket_arns["records"], "/reaper/handshake/${aws:userid}/*"),
        ),
        _object_keys(args),
        policies.allow(
            "Metrics",
            ["cloudwatch:PutMetricData"],
            "*",
            {"StringEquals": {"cloudwatch:namespace": namespace}},
        ),
        # by tag too: the name of pool "dev" is a prefix of "dev-large"
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
                # ForAllValues is true without any value
                "Null": {"aws:TagKeys": "false"},
            },
        ),
        policies.allow("UserRole", ["sts:AssumeRole", "sts:TagSession"], user_role_arn),
        *instance_logs.write_statements(stack, args.pool.name),
        *_queue_key(args),
    )


def user_policy(args: IdentityArgs) -> pulumi.Output[str]:
    """Return the user role's only policy: no rights over instances, or to write as the agent or the sweep."""
    pool = args.pool.name
    return policies.document(
        policies.allow("Peers", PEER_ACTIONS, "*"),
        *_reads(args),
        *_writes(args),
        # users may not change the files that an instance saved before termination
        policies.deny("KeptFiles", WRITE_ACTIONS, _below(args, "data", naming.kept_prefix(pool))),
        policies.allow("Said", ["s3:GetObject"], said_objects(args)),
        *_own_runs(args),
        _object_keys(args),
    )


def user_trust(instance_role_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the user role's trust policy: the pool's instances may assume it, for one account at a time.

    The session's name, ``ACCOUNT@INSTANCE``, is what CloudTrail shows. IAM has no variable with the calling
    instance's id alone, so root's service on the instance states it.
    """
    only = {"Effect": "Allow", "Principal": {"AWS": instance_role_arn}}
    named = f"${{aws:RequestTag/{ACCOUNT_TAG}}}@i-*"
    tags = {"ForAllValues:StringEquals": {"aws:TagKeys": [ACCOUNT_TAG]}, "Null": {"aws:TagKeys": "false"}}
    return policies.document(
        {
            "Sid": "Instances",
            **only,
            "Action": ["sts:AssumeRole"],
            "Condition": {"StringLike": {"sts:RoleSessionName": named}},
        },
        {"Sid": "NameTheAccount", **only, "Action": ["sts:TagSession"], "Condition": tags},
    )


def _own_runs(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield rights to the account's own runs, by the session's tag: read jobs and reports, write reports."""
    prefixes = naming.run_prefixes(ACCOUNT)
    words = naming.words_prefix(ACCOUNT, args.pool.name)
    yield policies.allow("RunWords", ["s3:PutObject"], _below(args, "records", words))
    yield policies.allow("OwnRuns", ["s3:GetObject"], [_below(args, "records", own) for own in prefixes])
    below = {"StringLike": {"s3:prefix": [f"{own}*" for own in prefixes]}}
    yield policies.allow("FindOwnRuns", ["s3:ListBucket"], args.bucket_arns["records"], below)


def _below(args: IdentityArgs, kind: str, prefix: str) -> pulumi.Output[str]:
    return pulumi.Output.concat(args.bucket_arns[kind], f"/{prefix}*")


def _object_keys(args: IdentityArgs) -> policies.Statement:
    """Allow the use of the stack's key through S3."""
    through = {"StringEquals": {"kms:ViaService": f"s3.{args.stack.region}.amazonaws.com"}}
    return policies.allow("ObjectKeys", ["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn, through)


def _reads(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield rights to read the stack's shared buckets, and existing ones, whose own policies decide too."""
    buckets = [args.bucket_arns[kind] for kind in SHARED]
    stack = args.stack
    yield policies.allow("ListBuckets", LIST_ACTIONS, buckets)
    yield policies.allow("Read", ["s3:GetObject"], [_below(args, kind, "") for kind in SHARED])
    existing = stack.storage.existing.buckets
    if existing:
        yield policies.allow("ListExisting", LIST_ACTIONS, _named(stack, existing))
        yield policies.allow(
            "ReadExisting", ["s3:GetObject"], [f"{arn}/*" for arn in _named(stack, existing)]
        )
    yield from _existing_keys(stack, "ExistingKeys", "kms:Decrypt", existing.values())


def _saves(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield rights to save files before termination, and to report why a run did not start."""
    pool = args.pool.name
    yield policies.allow("WriteOwn", WRITE_ACTIONS, _below(args, "data", naming.kept_prefix(pool)))
    refused = _below(args, "records", naming.words_prefix("*", pool))
    yield policies.allow("RefusedRuns", ["s3:PutObject"], refused)


def _writes(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield rights to write below the pool's prefix, and in existing buckets that the stack file opens."""
    stack, own = args.stack, naming.pool_prefix(args.pool.name)
    yield policies.allow("WriteOwn", WRITE_ACTIONS, [_below(args, kind, own) for kind in SHARED])
    # the bucket keeps the version before, and a user deletes nothing that others read
    yield policies.allow("WriteShared", ADD_ACTIONS, _below(args, "data", naming.SHARED_PREFIX))
    writable = {name: use for name, use in stack.storage.existing.buckets.items() if use.write}
    if writable:
        places = [f"{arn}/*" for arn in _named(stack, writable)]
        yield policies.allow("WriteExisting", WRITE_ACTIONS, places)
    yield from _existing_keys(stack, "ExistingDataKeys", "kms:GenerateDataKey", writable.values())


def _named(stack: Stack, buckets: Iterable[str]) -> list[str]:
    return [f"arn:{policies.partition(stack.region)}:s3:::{name}" for name in buckets]


def _existing_keys(
    stack: Stack, sid: str, action: str, uses: Iterable[ExistingBucket]
) -> Iterator[policies.Statement]:
    """Yield the use of the owners' keys of existing buckets, through S3 only."""
    through = {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}
    if keys := sorted({use.key for use in uses if use.key is not None}):
        yield policies.allow(sid, [action], keys, through)


def _queue_key(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield the right to read munge's key, by which nodes and controller authenticate each other."""
    if args.queue_secret_arn is not None:
        through = {"StringEquals": {"kms:ViaService": f"secretsmanager.{args.stack.region}.amazonaws.com"}}
        yield policies.allow("QueueKey", ["secretsmanager:GetSecretValue"], args.queue_secret_arn)
        yield policies.allow("QueueKeysKey", ["kms:Decrypt"], args.key_arn, through)


def stack_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """Return the objects by which the stack configures its running instances."""
    return _records(args, keys.stored(keys.POLICY), keys.stored(keys.ACCOUNTS))


def said_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """Return the objects that users' commands read: the stack's policy, reports of queue and mover."""
    queue = (
        keys.stored(keys.ACCOUNTS),
        *map(keys.stored, (keys.QUEUE_JOBS, keys.GROWTH)),
        keys.stored(keys.MOVER_STATE),
    )
    return _records(args, keys.stored(keys.POLICY), *(queue if args.stack.queued else ()))


def _records(args: IdentityArgs, *keys: str) -> list[pulumi.Output[str]]:
    return [pulumi.Output.concat(args.bucket_arns["records"], f"/{key}") for key in keys]


def payload_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """Return the objects of the records bucket that an instance fetches at its first boot."""
    prefixes = [built.PREFIX]
    if not args.stack.network.reaches_internet:
        prefixes.append(built.WHEELS_PREFIX)
    return _records(args, *(f"{prefix}/*" for prefix in prefixes))
