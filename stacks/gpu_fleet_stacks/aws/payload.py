"""What instances of an image that is not ours fetch at their first boot, stored in the records bucket."""

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import built
from gpu_fleet_stacks.settings import Stack


def payload_objects(
    name: str,
    stack: Stack,
    bucket: pulumi.Input[str],
    key_arn: pulumi.Input[str],
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
    stored = aws.s3.BucketObjectv2(
        name,
        bucket=bucket,
        key=payload.object_key,
        source=pulumi.FileAsset(str(payload.path)),
        source_hash=payload.sha256,
        content_type="application/gzip",
        server_side_encryption="aws:kms",
        kms_key_id=key_arn,
        tags=naming.tags(stack.name, stack.owner),
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(retain_on_delete=True)),
    )
    return [stored]
