"""Rights of an instance and of its users: two roles of each pool.

Root uses the instance's role: it reads the stack's documents, reports on the instance, and leaves its group.
Users, jobs and containers get the user role. The instance's role alone may assume it, for the account that
asks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud import instance_logs, policies
from gpu_fleet_stacks.alicloud.roles import role_with_policy
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import built
from gpu_fleet_stacks.settings import Pool, Stack
from gpu_fleet_stacks.settings.schema import ExistingBucket

WRITE_ACTIONS = ("oss:PutObject", "oss:DeleteObject", "oss:AbortMultipartUpload")
ADD_ACTIONS = ("oss:PutObject", "oss:AbortMultipartUpload")
LIST_ACTIONS = ("oss:ListObjects", "oss:GetBucketInfo", "oss:GetBucketLocation")
# the pools of a stack share data and checkpoints; a pool may change only its own objects
SHARED = ("data", "checkpoints")
# `launch` finds the other instances of its group by these (training/gpu_fleet_jobs/launch/alicloud_peers.py).
PEER_ACTIONS = ("ess:DescribeScalingInstances",)
# Read only: the pool's instances and their tags.
LOOK_ACTIONS = (
    "ecs:DescribeInstances",
    "ecs:DescribeTags",
    "ess:DescribeLifecycleActions",
    "ess:DescribeScalingActivities",
    "ess:DescribeScalingInstances",
)
# The first two say something of a drain under way only, as on AWS. The third can lift the protection of its
# pool's instances too; nothing scales in by itself, so that alone ends none (docs/explanation/access.md).
OWN_GROUP_ACTIONS = (
    "ess:CompleteLifecycleAction",
    "ess:RecordLifecycleActionHeartbeat",
    "ess:SetInstancesProtection",
)
# A scaling configuration cannot ask for metadata tokens, so an eRDMA instance does so itself at first boot.
HARDEN_ACTIONS = ("ecs:ModifyInstanceMetadataOptions",)


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
    """RAM roles of one pool. Cloud Assistant sessions need no permission of the instance's own.

    Attributes:
        role_name: for the pool's launch template; known once the role has its policy.
        user_role_arn: for its ``instance.toml``, likewise.
    """

    role_name: pulumi.Output[str]
    user_role_arn: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Identity", name, None, opts)
        instance, user = f"{name}-instance", f"{name}-user"
        of = f"of pool {args.pool.name} in gpu-fleet stack {args.stack.name}"
        role, attachment = role_with_policy(
            instance,
            args.stack,
            trust=policies.trust("ecs.aliyuncs.com"),
            policy_document=instance_policy(args, user),
            purpose=f"Instances {of}",
            parent=self,
        )
        user_role, user_attachment = role_with_policy(
            user,
            args.stack,
            trust=user_trust(role.arn),
            policy_document=user_policy(args),
            purpose=f"Users {of}",
            parent=self,
        )
        self.role_name = pulumi.Output.all(role.role_name, attachment.id).apply(lambda both: str(both[0]))
        arn = _role_arn(args.stack, user)
        self.user_role_arn = pulumi.Output.all(user_role.id, user_attachment.id).apply(lambda _: arn)
        self.register_outputs({"role_name": self.role_name, "user_role_arn": self.user_role_arn})


def _role_arn(stack: Stack, name: str) -> str:
    """Return the ARN of a role of the stack's account, known in advance: we choose RAM's names."""
    return f"acs:ram::{stack.account_id}:role/{name}"


def instance_policy(args: IdentityArgs, user_role: str) -> pulumi.Output[str]:
    """Return the instance role's only policy; a resource or a condition binds every write to this stack.

    Args:
        user_role: the name of the user role.
    """
    stack, pool = args.stack, args.pool
    own = f"{stack.region}:{stack.account_id}"
    tags = naming.tags(stack.name, pool.owner or stack.owner, pool=pool.name, managed="true")
    licensed = {f"acs:ResourceTag/{key}": [tags[key]] for key in _LICENCE}
    # PutCustomMetric has no resource in RAM, so it cannot be bound to a namespace.
    statements = [
        policies.allow(LOOK_ACTIONS, "*"),
        # for bucket@.service, which mounts buckets that every account may read
        *_reads(args),
        # an image without an agent gives users no role of their own
        *(_saves(args) if stack.image.managed else _writes(args)),
        policies.allow(["oss:GetObject"], payload_objects(args)),
        # the policy says what counts as activity; it and the accounts are read again while the instance runs
        policies.allow(["oss:GetObject"], stack_objects(args)),
        *_handshake(args),
        # its users, for the sweep to notify; on AWS an instance sets a tag on itself instead
        policies.allow(
            ["oss:PutObject"],
            pulumi.Output.concat(args.bucket_arns["records"], f"/reaper/users/{pool.name}/*"),
        ),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
        policies.allow(["cms:PutCustomMetric"], "*"),
        policies.allow(OWN_GROUP_ACTIONS, f"acs:ess:{own}:scalinggroup/*", {"StringEquals": licensed}),
        policies.allow(["sts:AssumeRole"], f"acs:ram:*:{stack.account_id}:role/{user_role}"),
        *instance_logs.write_statements(stack, pool.name),
    ]
    if pool.erdma or pool.reserves:
        statements.append(
            policies.allow(HARDEN_ACTIONS, f"acs:ecs:{own}:instance/*", {"StringEquals": licensed})
        )
    if args.queue_secret_arn is not None:
        # munge's key, by which nodes and controller know each other; the stack's key decrypts it, see above
        statements.append(policies.allow(["kms:GetSecretValue"], args.queue_secret_arn))
    return policies.document(*statements)


def user_policy(args: IdentityArgs) -> pulumi.Output[str]:
    """Return the user role's only policy: no rights over instances, or to write as the agent or the sweep.

    RAM has no variable for the caller. This opens the runs of all accounts, and the policy of each session
    restricts them to the account's own (image/gpu_fleet_image/instance/credentials/alicloud.py). RAM has no
    condition on the service that calls KMS either; users may read nothing that the key encrypts outside of
    buckets.
    """
    pool = args.pool.name
    return policies.document(
        policies.allow(PEER_ACTIONS, "*"),
        *_reads(args),
        *_writes(args),
        # users may not change the files that an instance saved before termination
        policies.deny(WRITE_ACTIONS, _below(args, "data", naming.kept_prefix(pool))),
        policies.allow(["oss:GetObject"], said_objects(args)),
        *_runs(args),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
    )


def user_trust(instance_role_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the trust policy of the user role: only the pool's instances may assume it.

    RAM's reference has no condition on a session's name. Root's service on the instance sets it to
    ``ACCOUNT@INSTANCE``, and ActionTrail shows it.
    """
    principal = {"RAM": [instance_role_arn]}
    return policies.document({"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal})


def _runs(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield rights to submitted runs: read jobs and reports, write reports."""
    prefixes = naming.run_prefixes("*")
    words = naming.words_prefix("*", args.pool.name)
    yield policies.allow(["oss:PutObject"], _below(args, "records", words))
    yield policies.allow(["oss:GetObject"], [_below(args, "records", each) for each in prefixes])
    below = {"StringLike": {"oss:Prefix": [f"{each}*" for each in prefixes]}}
    yield policies.allow(["oss:ListObjects"], args.bucket_arns["records"], below)


def _below(args: IdentityArgs, kind: str, prefix: str) -> pulumi.Output[str]:
    return pulumi.Output.concat(args.bucket_arns[kind], f"/{prefix}*")


def _reads(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield rights to read the stack's shared buckets, and existing ones, whose own policies decide too."""
    existing = args.stack.storage.existing.buckets
    yield policies.allow(LIST_ACTIONS, [args.bucket_arns[kind] for kind in SHARED])
    yield policies.allow(["oss:GetObject"], [_below(args, kind, "") for kind in SHARED])
    if existing:
        arns = _named(args.stack, existing)
        yield policies.allow(LIST_ACTIONS, arns)
        yield policies.allow(["oss:GetObject"], [f"{arn}/*" for arn in arns])
    yield from _existing_keys("kms:Decrypt", existing.values())


def _saves(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield rights to save files before termination, and to report why a run did not start."""
    pool = args.pool.name
    yield policies.allow(WRITE_ACTIONS, _below(args, "data", naming.kept_prefix(pool)))
    yield policies.allow(["oss:PutObject"], _below(args, "records", naming.words_prefix("*", pool)))


def _writes(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Yield rights to write below the pool's prefix, and in existing buckets that the stack file opens."""
    stack, own = args.stack, naming.pool_prefix(args.pool.name)
    yield policies.allow(WRITE_ACTIONS, [_below(args, kind, own) for kind in SHARED])
    # the bucket keeps the version before, and a user deletes nothing that others read
    yield policies.allow(ADD_ACTIONS, _below(args, "data", naming.SHARED_PREFIX))
    writable = {name: use for name, use in stack.storage.existing.buckets.items() if use.write}
    if writable:
        yield policies.allow(WRITE_ACTIONS, [f"{arn}/*" for arn in _named(stack, writable)])
    yield from _existing_keys("kms:GenerateDataKey", writable.values())


def _named(stack: Stack, buckets: Iterable[str]) -> list[str]:
    return [f"acs:oss:*:{stack.account_id}:{name}" for name in buckets]


def _existing_keys(action: str, uses: Iterable[ExistingBucket]) -> Iterator[policies.Statement]:
    """Yield the use of the owners' keys of existing buckets."""
    if keys := sorted({use.key for use in uses if use.key is not None}):
        yield policies.allow([action], keys)


def _handshake(args: IdentityArgs) -> list[policies.Statement]:
    """Allow the instances' answers to the sweep (image/gpu_fleet_image/core/handshake.py).

    RAM has no variable for the caller. So one instance can answer for another of its pool, as it can publish
    heartbeats for it. Only the order of versions shows which answered first, since OSS cannot forbid
    overwriting in a bucket with versions.
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
    """Return the objects by which the stack configures its running instances."""
    return _records(args, keys.stored(keys.POLICY), keys.stored(keys.ACCOUNTS))


def said_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """Return the objects that users' commands read: the stack's policy, and the queue's reports."""
    queue = (
        (keys.stored(keys.ACCOUNTS), *map(keys.stored, (keys.QUEUE_JOBS, keys.GROWTH)))
        if args.stack.queued
        else ()
    )
    return _records(args, keys.stored(keys.POLICY), *queue)


def _records(args: IdentityArgs, *keys: str) -> list[pulumi.Output[str]]:
    return [pulumi.Output.concat(args.bucket_arns["records"], f"/{key}") for key in keys]


def payload_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """Return the objects of the records bucket that an instance fetches at its first boot."""
    prefixes = [built.PREFIX]
    if not args.stack.network.reaches_internet:
        prefixes.append(built.WHEELS_PREFIX)
    return _records(args, *(f"{prefix}/*" for prefix in prefixes))


_LICENCE = tuple(f"{naming.PROJECT}:{name}" for name in ("stack", "pool", "managed"))
