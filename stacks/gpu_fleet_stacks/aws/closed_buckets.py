"""Settings of every bucket of a stack: closed to the public, owned by its account, versioned."""

import pulumi
import pulumi_aws as aws

LEAST_TLS = "1.2"
ABORT_UPLOADS_AFTER_DAYS = 7


def close(name: str, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions) -> aws.s3.BucketVersioning:
    """Declare the settings; return the versioning, which a lifecycle rule for old versions depends on.

    Args:
        name: logical name of the bucket and of each of its settings.
        opts: options by which settings are deleted with their bucket or not at all.
    """
    aws.s3.BucketPublicAccessBlock(
        name,
        bucket=bucket.id,
        block_public_acls=True,
        block_public_policy=True,
        ignore_public_acls=True,
        restrict_public_buckets=True,
        opts=opts,
    )
    aws.s3.BucketOwnershipControls(
        name, bucket=bucket.id, rule={"object_ownership": "BucketOwnerEnforced"}, opts=opts
    )
    return aws.s3.BucketVersioning(
        name, bucket=bucket.id, versioning_configuration={"status": "Enabled"}, opts=opts
    )
