"""Copies of data and checkpoints in another region, under a key of that region."""

from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import closed_buckets, policies
from gpu_fleet_stacks.alicloud.keys import DAY_S, DELETION_WINDOW_DAYS, DELETION_WINDOW_DAYS_PROTECTED
from gpu_fleet_stacks.alicloud.roles import role_with_policy
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack


@dataclass(frozen=True)
class ReplicaArgs:
    """Inputs of the copies.

    Attributes:
        key_arn: the stack's key, under which the objects lie that are copied.
        storage: owns the buckets, whose versions must be kept before they are copied.
    """

    stack: Stack
    key_arn: pulumi.Output[str]
    storage: pulumi.Resource
    there: alicloud.Provider


class Replica(pulumi.ComponentResource):
    """Buckets, key and role of the copies.

    OSS copies what is written from now on. Deletions are not copied, so that a mistake here stays here. The
    key is deleted after its buckets, which OSS deletes only when they are empty.

    Attributes:
        bucket_uris: kind -> bucket in the other region.
    """

    bucket_uris: dict[str, str]

    def __init__(self, name: str, args: ReplicaArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Replica", name, None, opts)
        self._name, self._args, self._stack = f"{name}-replica", args, args.stack
        self._tags = naming.tags(args.stack.name, args.stack.owner)
        self._kept = pulumi.ResourceOptions(parent=self, protect=args.stack.protected, provider=args.there)
        self._key = self._own_key()
        buckets = {kind: self._bucket(kind) for kind in naming.REPLICATED}
        role, attachment = role_with_policy(
            self._name,
            self._stack,
            trust=policies.trust("oss.aliyuncs.com"),
            policy_document=role_policy(self._stack, args.key_arn, self._key.arn),
            purpose=f"Copies of data and checkpoints of gpu-fleet stack {self._stack.name}",
            parent=self,
        )
        for kind, bucket in buckets.items():
            self._copy(kind, bucket, role, [attachment])
        self.bucket_uris = {kind: f"oss://{self._stack.replica_name(kind)}" for kind in buckets}
        self.register_outputs({"bucket_uris": self.bucket_uris})

    def _own_key(self) -> alicloud.kms.Key:
        protected = self._stack.protected
        key = alicloud.kms.Key(
            f"{self._name}-key",
            description=f"gpu-fleet stack {self._stack.name}: copies of data and checkpoints",
            dkms_instance_id=self._stack.storage.replica_kms_instance_id,
            key_spec="Aliyun_AES_256",
            key_usage="ENCRYPT/DECRYPT",
            automatic_rotation="Enabled",
            rotation_interval=f"{self._stack.storage.key_rotation_days * DAY_S}s",
            pending_window_in_days=DELETION_WINDOW_DAYS_PROTECTED if protected else DELETION_WINDOW_DAYS,
            deletion_protection="Enabled" if protected else "Disabled",
            tags=self._tags,
            opts=self._kept,
        )
        alicloud.kms.Alias(
            f"{self._name}-alias",
            alias_name=f"alias/{naming.prefixed(self._stack.name)}",
            key_id=key.id,
            opts=self._kept,
        )
        return key

    def _bucket(self, kind: str) -> alicloud.oss.Bucket:
        """Declare a bucket in the other region."""
        name = f"{self._name}-{kind}"
        bucket = closed_buckets.declare(
            name,
            self._stack,
            self._stack.replica_name(kind),
            self._key.id,
            [closed_buckets.leftovers(self._stack.storage.old_versions_days)],
            tags=self._tags | {"Name": naming.prefixed(self._stack.name, "replica", kind)},
            opts=self._kept,
        )
        arn = f"acs:oss:*:{self._stack.account_id}:{self._stack.replica_name(kind)}"
        closed_buckets.close(name, bucket, arn, self._kept)
        return bucket

    def _copy(
        self,
        kind: str,
        bucket: alicloud.oss.Bucket,
        role: alicloud.ram.Role,
        after: list[pulumi.Resource],
    ) -> None:
        alicloud.oss.BucketReplication(
            f"{self._name}-{kind}",
            bucket=self._stack.bucket_name(kind),
            action="PUT",
            historical_object_replication="enabled",
            destination={"bucket": bucket.bucket, "location": f"oss-{self._stack.storage.replica_region}"},
            sync_role=role.role_name,
            encryption_configuration={"replica_kms_key_id": self._key.id},
            source_selection_criteria={"sse_kms_encrypted_objects": {"status": "Enabled"}},
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self._args.storage, *after]),
        )


def role_policy(
    stack: Stack, key_arn: pulumi.Input[str], replica_key_arn: pulumi.Input[str]
) -> pulumi.Output[str]:
    """Return the policy of the role: read here, write copies there, each under its own key.

    https://www.alibabacloud.com/help/en/oss/user-guide/cross-region-replication-overview
    """
    arn = f"acs:oss:*:{stack.account_id}:"
    sources = [f"{arn}{stack.bucket_name(kind)}" for kind in naming.REPLICATED]
    copies = [f"{arn}{stack.replica_name(kind)}" for kind in naming.REPLICATED]
    read = ["oss:ReplicateList", "oss:ReplicateGet"]
    write = ["oss:ReplicateGet", "oss:ReplicatePut"]
    return policies.document(
        policies.allow(read, [*sources, *(f"{each}/*" for each in sources)]),
        policies.allow(write, [*copies, *(f"{each}/*" for each in copies)]),
        policies.allow(["kms:Decrypt"], key_arn),
        policies.allow(["kms:GenerateDataKey"], replica_key_arn),
    )
