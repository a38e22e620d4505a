"""Payload for the first boot of instances whose image lacks it, stored in the records bucket."""

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
    """Declare the payload's object; none where instances fetch nothing.

    A new payload is a new object beside the older one, which instances of an older launch template version
    still fetch. Each is a few megabytes and is deleted with the bucket.
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
