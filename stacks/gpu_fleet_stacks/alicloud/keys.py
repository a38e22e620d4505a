"""The stack's own KMS key."""

from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

DELETION_WINDOW_DAYS_PROTECTED = 30
DELETION_WINDOW_DAYS = 7
DAY_S = 86_400


@dataclass(frozen=True)
class KeysArgs:
    """Inputs of the key: only the stack's settings."""

    stack: Stack


class Keys(pulumi.ComponentResource):
    """One customer-managed key for everything the stack stores.

    Disks, buckets and file systems name it by its id; RAM policies by its ARN. RAM decides who may use it:
    the key keeps KMS's default policy, which leaves that to the account.

    Pulumi never deletes it (``retain_on_delete``): snapshots, images and detached disks that it encrypts are
    in no state file, so no order of deletions covers them. ``gpu-fleet destroy`` schedules the key's deletion
    once it has looked and found nothing left under it (``stacks/gpu_fleet_stacks/teardown``).

    Attributes:
        key_id: the key, for every ``kms_key_id`` of the stack.
    """

    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]

    def __init__(self, name: str, args: KeysArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Keys", name, None, opts)
        stack = args.stack
        key = alicloud.kms.Key(
            f"{name}-key",
            description=f"gpu-fleet stack {stack.name}: disks, buckets, file systems, logs",
            # Outside of a KMS instance a key rotates yearly, whatever is set (API UpdateRotationPolicy).
            dkms_instance_id=stack.storage.kms_instance_id,
            key_spec="Aliyun_AES_256",
            key_usage="ENCRYPT/DECRYPT",
            automatic_rotation="Enabled",
            # In seconds, like the API's answer: in days, each `up` would see a change.
            rotation_interval=f"{stack.storage.key_rotation_days * DAY_S}s",
            pending_window_in_days=DELETION_WINDOW_DAYS_PROTECTED
            if stack.protected
            else DELETION_WINDOW_DAYS,
            deletion_protection="Enabled" if stack.protected else "Disabled",
            tags=naming.tags(stack.name, stack.owner),
            opts=pulumi.ResourceOptions(parent=self, protect=stack.protected, retain_on_delete=True),
        )
        alicloud.kms.Alias(
            f"{name}-alias",
            alias_name=f"alias/{naming.prefixed(stack.name)}",
            key_id=key.id,
            opts=pulumi.ResourceOptions(parent=self, protect=stack.protected),
        )
        self.key_id = key.id
        self.key_arn = key.arn
        self.register_outputs({"key_id": key.id, "key_arn": key.arn})
