"""What an instance may do, and what its users may: two roles of each pool.

The instance's role is root's: it reads what the stack says, reports on the instance, leaves its group. Users,
jobs and containers get the user role, which the instance's role alone may assume, for the account that asks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pulumi

from gpu_fleet_stacks import naming
from gpu_fleet_stacks.alicloud import instance_logs, policies
from gpu_fleet_stacks.alicloud.roles import role_with_policy
from gpu_fleet_stacks.payload import built, sweep_archive
from gpu_fleet_stacks.settings import Pool, Stack
from gpu_fleet_stacks.settings.schema import ExistingBucket

WRITE_ACTIONS = ("oss:PutObject", "oss:DeleteObject", "oss:AbortMultipartUpload")
LIST_ACTIONS = ("oss:ListObjects", "oss:GetBucketInfo", "oss:GetBucketLocation")
# data and checkpoints are shared by the pools of a stack; what one wrote, no other may change
SHARED = ("data", "checkpoints")
# By which `launch` finds the other instances of its group (training/gpu_fleet_jobs/launch/alicloud_peers.py).
PEER_ACTIONS = ("ess:DescribeScalingInstances",)
# Read only: who is in my pool, and what is asked of me?
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
    """RAM roles of one pool. Cloud Assistant sessions need no permission of the instance's own.

    Attributes:
        role_name: for the pool's launch template; known once the role may do its work.
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
    """A role of the stack's account, known before there is one: RAM's names are ours."""
    return f"acs:ram::{stack.account_id}:role/{name}"


def instance_policy(args: IdentityArgs, user_role: str) -> pulumi.Output[str]:
    """The instance's role's only policy; every write is bound to this stack by a resource or a condition.

    Args:
        user_role: the name of the user role.
    """
    stack, pool = args.stack, args.pool
    own = f"{stack.region}:{stack.account_id}"
    tags = naming.tags(stack.name, pool.owner or stack.owner, pool=pool.name, managed="true")
    licensed = {f"acs:ResourceTag/{key}": [tags[key]] for key in _LICENCE}
    # What is sent to CloudMonitor carries no resource in RAM, so this action cannot be bound to a namespace.
    statements = [
        policies.allow(LOOK_ACTIONS, "*"),
        # for bucket@.service, which shows everybody what everybody may read
        *_reads(args),
        # on an image that runs nothing of ours nobody gives users a role of their own
        *(_saves(args) if stack.image.managed else _writes(args)),
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
        policies.allow(["sts:AssumeRole"], f"acs:ram:*:{stack.account_id}:role/{user_role}"),
        *instance_logs.write_statements(stack, pool.name),
    ]
    if pool.erdma or pool.reservation_id is not None:
        statements.append(
            policies.allow(HARDEN_ACTIONS, f"acs:ecs:{own}:instance/*", {"StringEquals": licensed})
        )
    if args.queue_secret_arn is not None:
        # munge's key, by which nodes and controller know each other; the stack's key decrypts it, see above
        statements.append(policies.allow(["kms:GetSecretValue"], args.queue_secret_arn))
    return policies.document(*statements)


def user_policy(args: IdentityArgs) -> pulumi.Output[str]:
    """The user role's only policy: no right over instances, nothing in the name of the agent or the sweep.

    RAM knows no variable for the caller: of the runs that this opens, the policy of each session leaves the
    account's own (image/gpu_fleet_image/instance/credentials/alicloud.py). Nor does it know a condition on
    the service that asks KMS; what the key encrypts outside of buckets, users may not read.
    """
    pool = args.pool.name
    return policies.document(
        policies.allow(PEER_ACTIONS, "*"),
        *_reads(args),
        *_writes(args),
        # what an instance saved before its end is not a user's to change
        policies.deny(WRITE_ACTIONS, _below(args, "data", naming.kept_prefix(pool))),
        policies.allow(["oss:GetObject"], said_objects(args)),
        *_runs(args),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
    )


def user_trust(instance_role_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Who may assume the user role: the pool's instances.

    RAM's reference names no condition on a session's name. Root's service on the instance gives it,
    ``ACCOUNT@INSTANCE``, and ActionTrail shows it.
    """
    principal = {"RAM": [instance_role_arn]}
    return policies.document({"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal})


def _runs(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Submitted runs: what was sent for them, and what they say."""
    prefixes = naming.run_prefixes("*")
    words = naming.words_prefix("*", args.pool.name)
    yield policies.allow(["oss:PutObject"], _below(args, "records", words))
    yield policies.allow(["oss:GetObject"], [_below(args, "records", each) for each in prefixes])
    below = {"StringLike": {"oss:Prefix": [f"{each}*" for each in prefixes]}}
    yield policies.allow(["oss:ListObjects"], args.bucket_arns["records"], below)


def _below(args: IdentityArgs, kind: str, prefix: str) -> pulumi.Output[str]:
    return pulumi.Output.concat(args.bucket_arns[kind], f"/{prefix}*")


def _reads(args: IdentityArgs) -> Iterator[policies.Statement]:
    """The stack's buckets, which its pools share, and somebody else's, whose own policies decide too."""
    existing = args.stack.storage.existing.buckets
    yield policies.allow(LIST_ACTIONS, [args.bucket_arns[kind] for kind in SHARED])
    yield policies.allow(["oss:GetObject"], [_below(args, kind, "") for kind in SHARED])
    if existing:
        arns = _named(args.stack, existing)
        yield policies.allow(LIST_ACTIONS, arns)
        yield policies.allow(["oss:GetObject"], [f"{arn}/*" for arn in arns])
    yield from _existing_keys("kms:Decrypt", existing.values())


def _saves(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Files that it saves before its end, and why it started no run."""
    pool = args.pool.name
    yield policies.allow(WRITE_ACTIONS, _below(args, "data", naming.kept_prefix(pool)))
    yield policies.allow(["oss:PutObject"], _below(args, "records", naming.words_prefix("*", pool)))


def _writes(args: IdentityArgs) -> Iterator[policies.Statement]:
    """Below the pool's prefix, and in somebody else's buckets that the stack's file opens."""
    stack, own = args.stack, naming.pool_prefix(args.pool.name)
    yield policies.allow(WRITE_ACTIONS, [_below(args, kind, own) for kind in SHARED])
    writable = {name: use for name, use in stack.storage.existing.buckets.items() if use.write}
    if writable:
        yield policies.allow(WRITE_ACTIONS, [f"{arn}/*" for arn in _named(stack, writable)])
    yield from _existing_keys("kms:GenerateDataKey", writable.values())


def _named(stack: Stack, buckets: Iterable[str]) -> list[str]:
    return [f"acs:oss:*:{stack.account_id}:{name}" for name in buckets]


def _existing_keys(action: str, uses: Iterable[ExistingBucket]) -> Iterator[policies.Statement]:
    """Their owners' keys."""
    if keys := sorted({use.key for use in uses if use.key is not None}):
        yield policies.allow([action], keys)


def _handshake(args: IdentityArgs) -> list[policies.Statement]:
    """What its instances say to the sweep (image/gpu_fleet_image/core/handshake.py).

    RAM knows no variable for the caller.

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
    return _records(args, sweep_archive.POLICY_KEY, sweep_archive.ACCOUNTS_KEY)


def said_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """What users' commands read on an instance: their stack's policy, and what its queue says."""
    queue = (sweep_archive.ACCOUNTS_KEY, *sweep_archive.QUEUE_SAYS) if args.stack.queued else ()
    return _records(args, sweep_archive.POLICY_KEY, *queue)


def _records(args: IdentityArgs, *keys: str) -> list[pulumi.Output[str]]:
    return [pulumi.Output.concat(args.bucket_arns["records"], f"/{key}") for key in keys]


def payload_objects(args: IdentityArgs) -> list[pulumi.Output[str]]:
    """What an instance fetches at its first boot; all that a pool's role reads of the records bucket."""
    prefixes = [built.PREFIX]
    if not args.stack.network.reaches_internet:
        prefixes.append(built.WHEELS_PREFIX)
    return _records(args, *(f"{prefix}/*" for prefix in prefixes))


_LICENCE = tuple(f"{naming.PROJECT}:{name}" for name in ("stack", "pool", "managed"))
