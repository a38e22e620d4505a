"""Buckets, homes and scratch: encrypted with the stack's key, reached by TLS, never silently replaced."""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import closed_buckets, existing, existing_files, policies
from gpu_fleet_stacks.aws.access_logs import AccessLogs
from gpu_fleet_stacks.aws.existing_files import Mount
from gpu_fleet_stacks.aws.firewall import HOME, SCRATCH
from gpu_fleet_stacks.aws.payload import payload_objects
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload.stored_documents import stored_documents
from gpu_fleet_stacks.settings import Stack

# Researchers' data, what trainers save, and what the platform keeps for itself (ledger, image payload).
BUCKETS = ("data", "checkpoints", "records")
# Answers of instances and sweep about a mark; each sweep lists them all
# (image/gpu_fleet_image/core/handshake.py).
HANDSHAKE_DAYS = 2
# MB/s per TiB, the least of PERSISTENT_2: docs.aws.amazon.com/fsx/latest/LustreGuide/performance.html
SCRATCH_THROUGHPUT = 125


@dataclass(frozen=True)
class StorageArgs:
    """Inputs of the storage.

    Attributes:
        key_arn: the key that encrypts everything here.
        keys: owns that key, its alias and the role that it trusts; all of them outlast the buckets.
        subnet_ids: zone -> private subnet.
        group_ids: label -> security group, with ``home`` and ``scratch`` where the settings ask for them.
        firewall: owns the groups' rules. FSx refuses a Lustre whose group does not let its port in yet
            ("do not permit Lustre LNET network traffic on port 988"), and the rules follow their group.
        reaper_policy: the sweep's policy as JSON, which users' commands read in the records bucket.
    """

    stack: Stack
    key_arn: pulumi.Output[str]
    keys: pulumi.Resource
    subnet_ids: dict[str, pulumi.Output[str]]
    group_ids: dict[str, pulumi.Output[str]]
    firewall: pulumi.Resource
    reaper_policy: str


class Storage(pulumi.ComponentResource):
    """Storage of the stack.

    Attributes:
        bucket_arns: kind (``data``, ``checkpoints``, ``records``) -> bucket.
        home_dns_name: where to mount homes from; empty without any.
        scratch_dns_name: where to mount Lustre from; empty without any.
        scratch_mount_name: what Lustre calls the file system there; empty without any.
    """

    bucket_arns: dict[str, pulumi.Output[str]]
    home_dns_name: pulumi.Output[str]
    scratch_dns_name: pulumi.Output[str]
    scratch_mount_name: pulumi.Output[str]

    def __init__(self, name: str, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Storage", name, None, opts)
        self._name, self._args, self._stack = name, args, args.stack
        self._child = pulumi.ResourceOptions(parent=self)
        self._kept = pulumi.ResourceOptions(parent=self, protect=args.stack.protected)
        existing.look_at_buckets(args.stack, self)
        self._lustre: aws.fsx.LustreFileSystem | None = None
        home, scratch = self._home(), self._scratch()
        self._access = AccessLogs(name, args.stack, BUCKETS, self) if args.stack.logs.bucket_access else None
        self.bucket_arns = {kind: self._bucket(kind) for kind in BUCKETS}
        if self._access is not None and args.stack.logs.data_events:
            self._access.data_events()
        if self._lustre is not None and not args.stack.emulated:  # moto 5.2.5 lacks associations
            self._cache(self._lustre)
        known = pulumi.Output.from_input
        self.home_dns_name, self.scratch_dns_name = known(home.dns_name), known(scratch.dns_name)
        self.scratch_mount_name = known(scratch.name)
        self.register_outputs({"bucket_arns": self.bucket_arns})

    def _tags(self, label: str) -> dict[str, str]:
        return naming.tags(self._stack.name, self._stack.owner, Name=naming.prefixed(self._stack.name, label))

    def _bucket(self, kind: str) -> pulumi.Output[str]:
        name = f"{self._name}-{kind}"
        bucket = aws.s3.Bucket(
            name,
            bucket=self._stack.bucket_name(kind),
            tags=self._tags(kind),
            # S3 refuses to delete a bucket with objects, and a failed deletion keeps the bucket's
            # dependencies.
            opts=pulumi.ResourceOptions.merge(
                self._kept, pulumi.ResourceOptions(depends_on=[self._args.keys])
            ),
        )
        settings = self._settings_of(bucket)
        versioning = closed_buckets.close(name, bucket, settings)
        encryption = closed_buckets.encrypt(name, bucket, self._args.key_arn, settings)
        self._lifecycle(name, bucket, versioning, with_handshake=kind == "records")
        if self._access is not None:
            self._access.of(kind, bucket, settings)
        stored = self._objects(bucket, [encryption, versioning]) if kind == "records" else []
        # after the first objects: an emulator that ignores conditions refuses every later upload
        aws.s3.BucketPolicy(
            name,
            bucket=bucket.id,
            policy=bucket_policy(bucket.arn, self._args.key_arn),
            opts=pulumi.ResourceOptions.merge(settings, pulumi.ResourceOptions(depends_on=stored)),
        )
        return bucket.arn

    def _document(
        self, label: str, key: str, content: str, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions
    ) -> pulumi.Resource:
        """Declare a JSON object of the records bucket that the sweep, instances and users read."""
        return aws.s3.BucketObjectv2(
            f"{self._name}-{label}",
            bucket=bucket.id,
            key=key,
            content=content,
            content_type="application/json",
            server_side_encryption="aws:kms",
            kms_key_id=self._args.key_arn,
            tags=naming.tags(self._stack.name, self._stack.owner),
            opts=opts,
        )

    def _settings_of(self, owner: pulumi.Resource) -> pulumi.ResourceOptions:
        """Return options for the settings that restrict a bucket or file system: never deleted before it.

        Pulumi's order of dependencies would delete them first. An owner that stays, because it is protected
        or its deletion fails, would then be open, unversioned and without its policy.
        """
        return pulumi.ResourceOptions(parent=self, protect=self._stack.protected, deleted_with=owner)

    def _objects(self, bucket: aws.s3.Bucket, after: list[pulumi.Resource]) -> list[pulumi.Resource]:
        """Declare the objects that instances fetch at first boot, and those that users' commands read."""
        opts = pulumi.ResourceOptions(parent=self, depends_on=after)
        payload = payload_objects(f"{self._name}-bootstrap", self._stack, bucket.id, self._args.key_arn, opts)
        documents = stored_documents(self._stack, self._args.reaper_policy)
        return [*payload, *(self._document(*document, bucket, opts) for document in documents)]

    def _lifecycle(
        self,
        name: str,
        bucket: aws.s3.Bucket,
        versioning: aws.s3.BucketVersioning,
        *,
        with_handshake: bool,
    ) -> None:
        days = self._stack.storage.old_versions_days
        aws.s3.BucketLifecycleConfiguration(
            name,
            bucket=bucket.id,
            rules=[
                *closed_buckets.leftovers(days),
                *([_handshake()] if with_handshake else []),
            ],
            opts=pulumi.ResourceOptions.merge(
                self._settings_of(bucket), pulumi.ResourceOptions(depends_on=[versioning])
            ),
        )

    def _home(self) -> Mount:
        """Return the mount of the stack's own homes, of existing ones, or of none."""
        named = self._stack.storage.existing.home
        if named is not None:
            return existing_files.home(self._stack, named, self)
        return Mount(self._own_home()) if self._stack.storage.home else Mount()

    def _own_home(self) -> pulumi.Output[str]:
        """Declare an EFS for homes, which outlive every instance; return its DNS name."""
        files = aws.efs.FileSystem(
            f"{self._name}-home",
            encrypted=True,
            kms_key_id=self._args.key_arn,
            throughput_mode="elastic",
            lifecycle_policies=[{"transition_to_ia": "AFTER_30_DAYS"}],
            tags=self._tags("home"),
            opts=self._kept,
        )
        settings = self._settings_of(files)
        aws.efs.FileSystemPolicy(
            f"{self._name}-home", file_system_id=files.id, policy=home_policy(files.arn), opts=settings
        )
        if not self._args.stack.emulated:  # moto 5.2.5 lacks PutBackupPolicy
            aws.efs.BackupPolicy(
                f"{self._name}-home",
                file_system_id=files.id,
                backup_policy={"status": "ENABLED"},
                opts=settings,
            )
        for zone, subnet_id in self._args.subnet_ids.items():
            aws.efs.MountTarget(
                f"{self._name}-home-{zone}",
                file_system_id=files.id,
                subnet_id=subnet_id,
                security_groups=[self._args.group_ids[HOME]],
                opts=self._child,
            )
        return files.dns_name

    def _scratch(self) -> Mount:
        """Return the mount of the stack's own Lustre, of an existing one, or of none."""
        named = self._stack.storage.existing.scratch
        if named is not None:
            return existing_files.scratch(self._stack, named)
        return self._own_scratch() if self._stack.storage.scratch_gib else Mount()

    def _own_scratch(self) -> Mount:
        """Declare an FSx for Lustre in the home zone; return its mount."""
        files = aws.fsx.LustreFileSystem(
            f"{self._name}-scratch",
            deployment_type="PERSISTENT_2",
            storage_type="SSD",
            storage_capacity=self._stack.storage.scratch_gib,
            per_unit_storage_throughput=SCRATCH_THROUGHPUT,
            data_compression_type="LZ4",
            kms_key_id=self._args.key_arn,
            subnet_ids=self._args.subnet_ids[self._stack.network.home_zone],
            security_group_ids=[self._args.group_ids[SCRATCH]],
            copy_tags_to_backups=True,
            tags=self._tags("scratch"),
            opts=pulumi.ResourceOptions.merge(
                self._kept, pulumi.ResourceOptions(depends_on=[self._args.firewall])
            ),
        )
        self._lustre = files
        return Mount(files.dns_name, files.mount_name)

    def _cache(self, files: aws.fsx.LustreFileSystem) -> None:
        """Declare buckets as folders of Lustre: a first read fetches a file; nothing is written back.

        FSx learns of new objects by notifications that it sets on the bucket: only on the stack's own.
        """
        for name in self._stack.storage.cached_buckets:
            own = name == "data"
            news = _NEWS if own else None
            aws.fsx.DataRepositoryAssociation(
                f"{self._name}-cache-{name}",
                file_system_id=files.id,
                file_system_path=f"/{name}",
                data_repository_path=self._of_data_bucket() if own else f"s3://{name}",
                batch_import_meta_data_on_create=True,
                s3=news,
                tags=self._tags(f"cache-{name}"),
                opts=self._child,
            )

    def _of_data_bucket(self) -> pulumi.Output[str]:
        """Return the bucket's address, once it exists."""
        return self.bucket_arns["data"].apply(lambda arn: f"s3://{arn.rpartition(':')[2]}")


_NEWS = aws.fsx.DataRepositoryAssociationS3Args(
    auto_import_policy=aws.fsx.DataRepositoryAssociationS3AutoImportPolicyArgs(
        events=["NEW", "CHANGED", "DELETED"]
    )
)


def _handshake() -> aws.s3.BucketLifecycleConfigurationRuleArgsDict:
    """Return the rule that deletes answers about old marks."""
    return {
        "id": "handshake",
        "status": "Enabled",
        "filter": {"prefix": "reaper/handshake/"},
        "expiration": {"days": HANDSHAKE_DAYS},
    }


def bucket_policy(bucket_arn: pulumi.Output[str], key_arn: pulumi.Output[str]) -> pulumi.Output[str]:
    """Refuse plain HTTP, old TLS, and objects under any other key, for every caller."""
    everything = [bucket_arn, pulumi.Output.concat(bucket_arn, "/*")]
    everyone = {"AWS": "*"}
    return policies.document(
        policies.deny("TlsOnly", ["s3:*"], everything, {"Bool": {"aws:SecureTransport": "false"}}, everyone),
        policies.deny(
            "ModernTls",
            ["s3:*"],
            everything,
            {"NumericLessThan": {"s3:TlsVersion": closed_buckets.LEAST_TLS}},
            everyone,
        ),
        _deny_header("OwnKeyOnly", "s3:x-amz-server-side-encryption-aws-kms-key-id", key_arn, everything[1]),
        _deny_header("KmsOnly", "s3:x-amz-server-side-encryption", "aws:kms", everything[1]),
    )


def _deny_header(
    sid: str, header: str, wanted: pulumi.Input[str], objects: pulumi.Output[str]
) -> policies.Statement:
    """Refuse an upload that names another value; one that names none gets the bucket's default.

    ``Null`` is needed beside it: a negated operator is true where the key is absent
    (docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html).
    """
    condition: dict[str, dict[str, Any]] = {"StringNotEquals": {header: wanted}, "Null": {header: "false"}}
    return policies.deny(sid, ["s3:PutObject"], objects, condition, {"AWS": "*"})


def home_policy(file_system_arn: pulumi.Output[str]) -> pulumi.Output[str]:
    """Allow mounts by TLS only; the mount target's group admits instances, the uid decides about files."""
    mounts = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    through_target = {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}}
    return policies.document(
        policies.allow(
            "MountFromNetwork",
            [*mounts, "elasticfilesystem:ClientRootAccess"],
            file_system_arn,
            through_target,
            {"AWS": "*"},
        ),
        policies.deny(
            "TlsOnly", ["*"], file_system_arn, {"Bool": {"aws:SecureTransport": "false"}}, {"AWS": "*"}
        ),
    )
