"""What instances of an image that is not ours fetch at their first boot, stored in the records bucket."""

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.payload import built
from gpu_fleet_stacks.settings import Stack


def payload_objects(
    name: str,
    stack: Stack,
    bucket: pulumi.Input[str],
    key_id: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """The payload's object; none where instances fetch nothing.

    Another payload is another object beside the older one, which an instance still finds that starts from an
    older version of its launch template: they are a few megabytes each, and are deleted with the bucket.

    Args:
        opts: parent, and what must stand before.
    """
    payload = built.for_stack(stack)
    if payload is None:
        return []
    stored = alicloud.oss.BucketObject(
        name,
        bucket=bucket,
        key=payload.object_key,
        source=str(payload.path),
        content_type="application/gzip",
        server_side_encryption="KMS",
        kms_key_id=key_id,
        acl="private",
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(retain_on_delete=True)),
    )
    return [stored]
