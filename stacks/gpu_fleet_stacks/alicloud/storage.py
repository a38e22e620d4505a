"""Buckets, homes and scratch: encrypted with the stack's key, reached by TLS, never silently replaced."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import access_logs, closed_buckets, existing, policies
from gpu_fleet_stacks.alicloud.existing_files import FoundFiles
from gpu_fleet_stacks.alicloud.payload import payload_objects
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.payload.stored_documents import stored_documents
from gpu_fleet_stacks.settings import Stack

# Researchers' data, what trainers save, and what the platform keeps for itself (ledger, image payload).
OLD_STATES_DAYS = 35  # longer than a month, which the meter counts
# Answers of instances and sweep about a mark; each sweep lists them all
# (image/gpu_fleet_image/core/handshake.py).
HANDSHAKE_DAYS = 2
BUCKETS = ("data", "checkpoints", "records")


def _bucket_arn(stack: Stack, kind: str) -> str:
    """Return the ARN of a bucket for a policy; OSS names no region in it."""
    return f"acs:oss:*:{stack.account_id}:{stack.bucket_name(kind)}"


@dataclass(frozen=True)
class StorageArgs:
    """Inputs of the storage.

    Attributes:
        key_id: the key that encrypts everything here.
        subnet_ids: zone -> private vSwitch.
        networks: zone -> its CIDR.
        reaper_policy: the sweep's policy as JSON, which users' commands read in the records bucket.
    """

    stack: Stack
    key_id: pulumi.Output[str]
    vpc_id: pulumi.Output[str]
    subnet_ids: dict[str, pulumi.Output[str]]
    networks: Mapping[str, str]
    reaper_policy: str
    mounts: Mapping[str, FoundFiles]


class Storage(pulumi.ComponentResource):
    """Storage of the stack.

    Attributes:
        bucket_arns: kind (``data``, ``checkpoints``, ``records``) -> bucket.
        home_dns_name: address of the homes' mount; empty without any.
        scratch_dns_name: address of CPFS's mount; empty without any.
    """

    bucket_arns: dict[str, pulumi.Output[str]]
    bucket_names: dict[str, pulumi.Output[str]]
    home_dns_name: pulumi.Output[str]
    scratch_dns_name: pulumi.Output[str]

    def __init__(self, name: str, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Storage", name, None, opts)
        self._name, self._args, self._stack = name, args, args.stack
        self._child = pulumi.ResourceOptions(parent=self)
        self._kept = pulumi.ResourceOptions(parent=self, protect=args.stack.protected)
        existing.look_at_buckets(args.stack, self)
        self.bucket_names = {}
        self._access = [access_logs.bucket(name, args.stack, self)] if args.stack.logs.bucket_access else []
        self.bucket_arns = {kind: self._bucket(kind) for kind in BUCKETS}
        storage = args.stack.storage
        self.home_dns_name = self._home() if storage.home else self._foreign("home")
        self.scratch_dns_name = self._scratch() if storage.scratch_gib else self._foreign("scratch")
        self.register_outputs({"bucket_arns": self.bucket_arns})

    def _tags(self, label: str) -> dict[str, str]:
        return naming.tags(self._stack.name, self._stack.owner, Name=naming.prefixed(self._stack.name, label))

    def _bucket(self, kind: str) -> pulumi.Output[str]:
        """Declare a bucket, what the stack stores in it, and its policy; return its ARN."""
        name = f"{self._name}-{kind}"
        bucket = closed_buckets.declare(
            name,
            self._stack,
            self._stack.bucket_name(kind),
            self._args.key_id,
            [
                closed_buckets.leftovers(self._stack.storage.old_versions_days),
                *(_numbered_states() if kind == "records" else []),
            ],
            overlap=kind == "records",  # the rule of the whole bucket covers the numbered states too
            logging=access_logs.logging(self._stack, kind),
            tags=self._tags(kind),
            opts=pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(depends_on=self._access)),
        )
        if kind == "records":
            payload_objects(
                f"{self._name}-bootstrap", self._stack, bucket.bucket, self._args.key_id, self._child
            )
            for document in stored_documents(self._stack, self._args.reaper_policy):
                self._document(*document, bucket)
        opened = [_recipe(self._args)] if kind == "records" and self._stack.image.built else []
        policy = closed_buckets.close(name, bucket, _bucket_arn(self._stack, kind), self._kept, opened)
        self.bucket_names[kind] = pulumi.Output.all(bucket.bucket, policy.id).apply(lambda both: str(both[0]))
        return bucket.id.apply(lambda _: _bucket_arn(self._stack, kind))

    def _document(self, label: str, key: str, content: str, bucket: alicloud.oss.Bucket) -> None:
        """Declare a JSON object of the records bucket that the sweep, instances and users read."""
        alicloud.oss.BucketObject(
            f"{self._name}-{label}",
            bucket=bucket.bucket,
            key=key,
            content=content,
            content_type="application/json",
            server_side_encryption="KMS",
            kms_key_id=self._args.key_id,
            acl="private",
            opts=self._child,
        )

    def _foreign(self, purpose: str) -> pulumi.Output[str]:
        """Return the address of an existing file system's mount, or empty."""
        files = self._args.mounts.get(purpose)
        return pulumi.Output.from_input(files.domain if files is not None else "")

    def _home(self) -> pulumi.Output[str]:
        """Declare a NAS for homes, which outlive every instance; return its mount's address.

        It is of the extreme kind, since the standard one supports no customer key (alicloud_nas_file_system,
        ``encrypt_type``). One mount target serves every zone of the network.
        """
        files = alicloud.nas.FileSystem(
            f"{self._name}-home",
            file_system_type="extreme",
            protocol_type="NFS",
            storage_type="standard",
            capacity=self._stack.storage.home_gib,
            zone_id=self._stack.network.home_zone,
            encrypt_type=2,
            kms_key_id=self._args.key_id,
            description=naming.prefixed(self._stack.name, "home"),
            tags=self._tags("home"),
            opts=self._kept,
        )
        group = alicloud.nas.AccessGroup(
            f"{self._name}-home",
            access_group_name=naming.prefixed(self._stack.name, "home"),
            access_group_type="Vpc",
            file_system_type="extreme",
            description=f"Private vSwitches of gpu-fleet stack {self._stack.name}",
            opts=self._child,
        )
        for network in self._args.networks.values():
            alicloud.nas.AccessRule(
                f"{self._name}-home-{network.replace('/', '-').replace('.', '-')}",
                access_group_name=group.access_group_name,
                file_system_type="extreme",
                source_cidr_ip=network,
                rw_access_type="RDWR",
                user_access_type="no_squash",
                priority=1,
                opts=self._child,
            )
        return self._mount_target("home", files, group.access_group_name)

    def _scratch(self) -> pulumi.Output[str]:
        """Declare a CPFS in the home zone; return its address. It has no key, so keep no secrets there."""
        zone = self._stack.network.home_zone
        files = alicloud.nas.FileSystem(
            f"{self._name}-scratch",
            file_system_type="cpfs",
            protocol_type="cpfs",
            storage_type="advance_100",
            capacity=self._stack.storage.scratch_gib,
            zone_id=zone,
            vpc_id=self._args.vpc_id,
            vswitch_id=self._args.subnet_ids[zone],
            description=naming.prefixed(self._stack.name, "scratch"),
            tags=self._tags("scratch"),
            opts=self._kept,
        )
        return self._mount_target("scratch", files, None)

    def _mount_target(
        self, label: str, files: alicloud.nas.FileSystem, access_group_name: pulumi.Input[str] | None
    ) -> pulumi.Output[str]:
        zone = self._stack.network.home_zone
        target = alicloud.nas.MountTarget(
            f"{self._name}-{label}",
            file_system_id=files.id,
            access_group_name=access_group_name,
            network_type="Vpc",
            vpc_id=self._args.vpc_id,
            vswitch_id=self._args.subnet_ids[zone],
            opts=self._child,
        )
        return target.mount_target_domain


def _numbered_states() -> list[alicloud.oss.BucketLifecycleRuleArgs]:
    """Return the rules that delete old states of lease, meter and mover, each of which is its own object.

    A program that was silent for a month starts anew.
    """
    prefixes = {
        "old-states-of-capacity": ("reaper/capacity/state.json.", OLD_STATES_DAYS),
        "old-states-of-lease": ("reaper/lease.json.", OLD_STATES_DAYS),
        "old-states-of-meter": ("reaper/meter.json.", OLD_STATES_DAYS),
        "handshake": ("reaper/handshake/", HANDSHAKE_DAYS),
    }
    return [
        alicloud.oss.BucketLifecycleRuleArgs(
            id=name,
            enabled=True,
            prefix=prefix,
            expirations=[alicloud.oss.BucketLifecycleRuleExpirationArgs(days=days)],
        )
        for name, (prefix, days) in prefixes.items()
    ]


def _recipe(args: StorageArgs) -> policies.Statement:
    """Let every caller inside the stack's network read the recipe, and nothing else of the records bucket.

    An image's builder has no identity of its own. OSS does not count that as public
    (www.alibabacloud.com/help/en/oss/user-guide/block-public-access).
    """
    recipe = image_files.recipe(args.stack).object_key
    inside = {"StringEquals": {"acs:SourceVpc": [args.vpc_id]}}
    arn = _bucket_arn(args.stack, "records")
    return policies.allow(["oss:GetObject"], [f"{arn}/{recipe}"], inside, ["*"])
