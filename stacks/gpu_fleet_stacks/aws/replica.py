"""Copies of data and checkpoints in another region, under a key of that region."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import closed_buckets, policies, storage
from gpu_fleet_stacks.aws.keys import DELETION_WINDOW_DAYS, DELETION_WINDOW_DAYS_PROTECTED
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
    there: aws.Provider


class Replica(pulumi.ComponentResource):
    """Buckets, key and role of the copies.

    S3 copies what is written from now on. Deletions are not copied, so that a mistake here stays here. The
    key is deleted after its buckets, which S3 deletes only when they are empty.

    Attributes:
        bucket_uris: kind -> bucket in the other region.
    """

    bucket_uris: dict[str, str]

    def __init__(self, name: str, args: ReplicaArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Replica", name, None, opts)
        self._name, self._args, self._stack = f"{name}-replica", args, args.stack
        self._tags = naming.tags(args.stack.name, args.stack.owner)
        self._kept = pulumi.ResourceOptions(parent=self, protect=args.stack.protected, provider=args.there)
        self._key = self._own_key()
        buckets = {kind: self._bucket(kind) for kind in naming.REPLICATED}
        role = self._role()
        for kind, (bucket, versioning) in buckets.items():
            self._copy(kind, bucket, role, [versioning])
        self.bucket_uris = {kind: f"s3://{self._stack.replica_name(kind)}" for kind in buckets}
        self.register_outputs({"bucket_uris": self.bucket_uris})

    def _own_key(self) -> aws.kms.Key:
        root = f"arn:{policies.partition(self._stack.region)}:iam::{self._stack.account_id}:root"
        key = aws.kms.Key(
            f"{self._name}-key",
            description=f"gpu-fleet stack {self._stack.name}: copies of data and checkpoints",
            enable_key_rotation=True,
            rotation_period_in_days=self._stack.storage.key_rotation_days,
            deletion_window_in_days=DELETION_WINDOW_DAYS_PROTECTED
            if self._stack.protected
            else DELETION_WINDOW_DAYS,
            policy=policies.document(
                policies.allow("AccountAdministers", ["kms:*"], "*", principal={"AWS": root})
            ),
            tags=self._tags,
            opts=self._kept,
        )
        aws.kms.Alias(
            f"{self._name}-alias",
            name=f"alias/{naming.prefixed(self._stack.name)}",
            target_key_id=key.key_id,
            opts=self._kept,
        )
        return key

    def _bucket(self, kind: str) -> tuple[aws.s3.Bucket, pulumi.Resource]:
        """Declare a bucket in the other region; return it, and its versioning."""
        name = f"{self._name}-{kind}"
        label = naming.prefixed(self._stack.name, "replica", kind)
        bucket = aws.s3.Bucket(
            name,
            bucket=self._stack.replica_name(kind),
            tags=self._tags | {"Name": label},
            opts=pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(depends_on=[self._key])),
        )
        settings = pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(deleted_with=bucket))
        versioning = closed_buckets.close(name, bucket, settings)
        closed_buckets.encrypt(name, bucket, self._key.arn, settings)
        aws.s3.BucketLifecycleConfiguration(
            name,
            bucket=bucket.id,
            rules=[*closed_buckets.leftovers(self._stack.storage.old_versions_days)],
            opts=pulumi.ResourceOptions.merge(settings, pulumi.ResourceOptions(depends_on=[versioning])),
        )
        policy = storage.bucket_policy(bucket.arn, self._key.arn)
        aws.s3.BucketPolicy(name, bucket=bucket.id, policy=policy, opts=settings)
        return bucket, versioning

    def _role(self) -> pulumi.Output[str]:
        """Declare the role that S3 copies with; return its ARN once it may do so."""
        here = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            self._name,
            assume_role_policy=policies.trust("s3.amazonaws.com", self._stack.account_id),
            description=f"Copies of data and checkpoints of gpu-fleet stack {self._stack.name}",
            tags=self._tags,
            opts=here,
        )
        document = role_policy(self._stack, self._args.key_arn, self._key.arn)
        policy = aws.iam.RolePolicy(self._name, role=role.id, policy=document, opts=here)
        return pulumi.Output.all(role.arn, policy.id).apply(lambda both: str(both[0]))

    def _copy(
        self, kind: str, bucket: aws.s3.Bucket, role: pulumi.Output[str], after: list[pulumi.Resource]
    ) -> None:
        aws.s3.BucketReplicationConfig(
            f"{self._name}-{kind}",
            bucket=self._stack.bucket_name(kind),
            role=role,
            rules=[
                {
                    "id": "replica",
                    "priority": 0,
                    "status": "Enabled",
                    "filter": {"prefix": ""},
                    "delete_marker_replication": {"status": "Disabled"},
                    "source_selection_criteria": {"sse_kms_encrypted_objects": {"status": "Enabled"}},
                    "destination": {
                        "bucket": bucket.arn,
                        "encryption_configuration": {"replica_kms_key_id": self._key.arn},
                    },
                }
            ],
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self._args.storage, *after]),
        )


def role_policy(
    stack: Stack, key_arn: pulumi.Input[str], replica_key_arn: pulumi.Input[str]
) -> pulumi.Output[str]:
    """Return the policy of the role: read versions here, write copies there, each under its own key.

    docs.aws.amazon.com/AmazonS3/latest/userguide/setting-repl-config-perm-overview.html
    """
    arn = f"arn:{policies.partition(stack.region)}:s3:::"
    sources = [f"{arn}{stack.bucket_name(kind)}" for kind in naming.REPLICATED]
    copies = [f"{arn}{stack.replica_name(kind)}/*" for kind in naming.REPLICATED]

    def through(region: str | None) -> dict[str, dict[str, str]]:
        return {"StringEquals": {"kms:ViaService": f"s3.{region}.amazonaws.com"}}

    versions = ["s3:GetObjectVersionForReplication", "s3:GetObjectVersionAcl", "s3:GetObjectVersionTagging"]
    return policies.document(
        policies.allow("Look", ["s3:GetReplicationConfiguration", "s3:ListBucket"], sources),
        policies.allow("Read", versions, [f"{each}/*" for each in sources]),
        policies.allow("Copy", ["s3:ReplicateObject", "s3:ReplicateTags"], copies),
        policies.allow("ReadKey", ["kms:Decrypt"], key_arn, through(stack.region)),
        policies.allow("CopyKey", ["kms:Encrypt"], replica_key_arn, through(stack.storage.replica_region)),
    )
