"""What an instance may do: read and write its own stack's buckets, report on itself, leave its own group."""

from collections.abc import Iterator
from dataclasses import dataclass

import pulumi

from stacks import naming
from stacks.alicloud import instance_logs, policies
from stacks.alicloud.roles import role_with_policy
from stacks.payload import built, sweep_archive
from stacks.settings import Pool, Stack

WRITE_ACTIONS = ("oss:PutObject", "oss:DeleteObject", "oss:AbortMultipartUpload")
LIST_ACTIONS = ("oss:ListObjects", "oss:GetBucketInfo", "oss:GetBucketLocation")
# Read only: who is in my pool, and what is asked of me?
LOOK_ACTIONS = (
    "ecs:DescribeInstances",
    "ecs:DescribeTags",
    "ess:DescribeLifecycleActions",
    "ess:DescribeScalingActivities",
    "ess:DescribeScalingInstances",
)
# The first two say something of a drain under way only, as on AWS. The third can lift the protection of its
# pool's instances too; nothing scales in by itself, so that alone ends none (README, "What is left open").
OWN_GROUP_ACTIONS = (
    "ess:CompleteLifecycleAction",
    "ess:RecordLifecycleActionHeartbeat",
    "ess:SetInstancesProtection",
)
# A scaling configuration cannot ask for metadata tokens, so an eRDMA instance does so itself at first boot.
HARDEN_ACTIONS = ("ecs:ModifyInstanceMetadataOptions",)


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
    """RAM role of one pool. Cloud Assistant sessions need no permission of the instance's own.

    Attributes:
        role_name: for the pool's launch template; known once the role may do its work.
    """

    role_name: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Identity", name, None, opts)
        role, attachment = role_with_policy(
            f"{name}-instance",
            args.stack,
            service="ecs.aliyuncs.com",
            policy_document=instance_policy(args),
            purpose=f"Instances of pool {args.pool.name} in gpu-fleet stack {args.stack.name}",
            parent=self,
        )
        self.role_name = pulumi.Output.all(role.role_name, attachment.id).apply(lambda both: str(both[0]))
        self.register_outputs({"role_name": self.role_name})


def instance_policy(args: IdentityArgs) -> pulumi.Output[str]:
    """The role's only policy; every write is bound to this stack by a resource or a condition."""
    stack, pool = args.stack, args.pool
    buckets = [args.bucket_arns["data"], args.bucket_arns["checkpoints"]]
    own = f"{stack.region}:{stack.account_id}"
    below = naming.pool_prefix(pool.name)
    tags = naming.tags(stack.name, pool.owner or stack.owner, pool=pool.name, managed="true")
    licensed = {f"acs:ResourceTag/{key}": [tags[key]] for key in _LICENCE}
    # What is sent to CloudMonitor carries no resource in RAM, so this action cannot be bound to a namespace.
    statements = [
        policies.allow(LOOK_ACTIONS, "*"),
        policies.allow(LIST_ACTIONS, buckets),
        # data and checkpoints are shared by the pools of a stack; what one wrote, no other may change
        policies.allow(["oss:GetObject"], [pulumi.Output.concat(bucket, "/*") for bucket in buckets]),
        policies.allow(WRITE_ACTIONS, [pulumi.Output.concat(bucket, f"/{below}*") for bucket in buckets]),
        policies.allow(["oss:GetObject"], payload_objects(args)),
        # what counts as activity on its pool, and who has an account; both are read anew while it runs
        policies.allow(["oss:GetObject"], stack_objects(args)),
        *_handshake(args),
        # who is on it, for the sweep to notify: on AWS an instance says so by a tag on itself
        policies.allow(
            ["oss:PutObject"],
            pulumi.Output.concat(args.bucket_arns["records"], f"/reaper/users/{pool.name}/*"),
        ),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
        policies.allow(["cms:PutCustomMetric"], "*"),
        policies.allow(OWN_GROUP_ACTIONS, f"acs:ess:{own}:scalinggroup/*", {"StringEquals": licensed}),
        *instance_logs.write_statements(stack, pool.name),
    ]
    if pool.erdma or pool.reservation_id is not None:
        statements.append(
            policies.allow(HARDEN_ACTIONS, f"acs:ecs:{own}:instance/*", {"StringEquals": licensed})
        )
    if args.queue_secret_arn is not None:
        # munge's key, by which nodes and controller know each other; the stack's key decrypts it, see above
        statements.append(policies.allow(["kms:GetSecretValue"], args.queue_secret_arn))
    return policies.document(*statements, *_existing_buckets(stack))


def _existing_buckets(stack: Stack) -> Iterator[policies.Statement]:
    """Buckets of somebody else's, by their names alone; their own policies decide too."""
    buckets = stack.storage.existing.buckets
    arns = {name: f"acs:oss:*:{stack.account_id}:{name}" for name in buckets}
    writable = [f"{arns[name]}/*" for name, use in buckets.items() if use.write]
    keys = sorted({use.key for use in buckets.values() if use.key is not None})
    if buckets:
        yield policies.allow(LIST_ACTIONS, list(arns.values()))
        yield policies.allow(["oss:GetObject"], [f"{arn}/*" for arn in arns.values()])
    if writable:
        yield policies.allow(WRITE_ACTIONS, writable)
    if keys:
        yield policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], keys)


def _handshake(args: IdentityArgs) -> list[policies.Statement]:
    """What its instances say to the sweep (image/reaper/handshake.py). RAM knows no variable for the caller.

    So one instance can speak for another of its pool, as it can publish heartbeats for it. Who was first
    shows in the order of versions alone, since OSS forbids no overwriting in a bucket that keeps them.
    """
    prefix = f"reaper/handshake/{args.pool.name}.*"
    records = args.bucket_arns["records"]
    return [
        policies.allow(
            ["oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"],
            pulumi.Output.concat(records, f"/{prefix}"),
        ),
        policies.allow(["oss:ListObjectVersions"], records, {"StringLike": {"oss:Prefix": [prefix]}}),
    ]


def stack_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """What the stack says to its instances as long as they run."""
    queue = [*sweep_archive.QUEUE_SAYS] if args.stack.queued else []
    keys = (sweep_archive.POLICY_KEY, sweep_archive.ACCOUNTS_KEY, *queue)
    return [pulumi.Output.concat(args.bucket_arns["records"], f"/{key}") for key in keys]


def payload_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """What an instance fetches at its first boot; all that a pool's role reads of the records bucket."""
    prefixes = [built.PREFIX]
    if not args.stack.network.reaches_internet:
        prefixes.append(built.WHEELS_PREFIX)
    return [pulumi.Output.concat(args.bucket_arns["records"], f"/{prefix}/*") for prefix in prefixes]


_LICENCE = tuple(f"{naming.PROJECT}:{name}" for name in ("stack", "pool", "managed"))
