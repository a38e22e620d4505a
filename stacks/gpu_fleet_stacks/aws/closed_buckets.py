"""Settings of every bucket of a stack: closed to the public, owned by its account, versioned, encrypted."""

from collections.abc import Sequence

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


def encrypt(
    name: str, bucket: aws.s3.Bucket, key_arn: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> pulumi.Resource:
    """Declare that the key encrypts every object; arguments as for ``close``."""
    return aws.s3.BucketServerSideEncryptionConfiguration(
        name,
        bucket=bucket.id,
        rules=[
            {
                "apply_server_side_encryption_by_default": {
                    "sse_algorithm": "aws:kms",
                    "kms_master_key_id": key_arn,
                },
                "bucket_key_enabled": True,
            }
        ],
        opts=opts,
    )


def leftovers(old_versions_days: int) -> Sequence[aws.s3.BucketLifecycleConfigurationRuleArgsDict]:
    """Return the rules that delete overwritten and deleted objects after a while, and unfinished uploads."""
    return [
        {
            "id": "old-versions",
            "status": "Enabled",
            "filter": {"prefix": ""},
            "noncurrent_version_expiration": {"noncurrent_days": old_versions_days},
            "expiration": {"expired_object_delete_marker": True},
        },
        {
            "id": "aborted-uploads",
            "status": "Enabled",
            "filter": {"prefix": ""},
            "abort_incomplete_multipart_upload": {"days_after_initiation": ABORT_UPLOADS_AFTER_DAYS},
        },
    ]
