"""Every bucket of a stack: encrypted, with versions, private, reached by TLS alone, its leftovers deleted."""

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.settings import Redundancy, Stack

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
ABORT_UPLOADS_AFTER_DAYS = 7


def declare(
    name: str,
    stack: Stack,
    bucket_name: str,
    key_id: pulumi.Input[str] | None,
    lifecycle_rules: Sequence[alicloud.oss.BucketLifecycleRuleArgs],
    *,
    tags: Mapping[str, str],
    opts: pulumi.ResourceOptions,
    overlap: bool = False,
    logging: alicloud.oss.BucketLoggingArgs | None = None,
) -> alicloud.oss.Bucket:
    """Declare a bucket with its encryption, versions and lifecycle inside.

    The bucket reads these back, and would conflict with separate resources for them. The policy can only be a
    separate resource, hence ``ignore_changes``.

    Args:
        key_id: key that encrypts it; None for OSS's own keys.
        overlap: several rules of the lifecycle may let the same object expire.
    """
    encryption = alicloud.oss.BucketServerSideEncryptionRuleArgs(
        sse_algorithm="AES256" if key_id is None else "KMS", kms_master_key_id=key_id
    )
    return alicloud.oss.Bucket(
        name,
        bucket=bucket_name,
        storage_class="Standard",
        redundancy_type=str(stack.storage.redundancy or Redundancy.LRS),
        server_side_encryption_rule=encryption,
        versioning=alicloud.oss.BucketVersioningArgs(status="Enabled"),
        lifecycle_rules=list(lifecycle_rules),
        lifecycle_rule_allow_same_action_overlap=overlap,
        logging=logging,
        tags=tags,
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(ignore_changes=["policy"])),
    )


def close(
    name: str,
    bucket: alicloud.oss.Bucket,
    arn: str,
    opts: pulumi.ResourceOptions,
    opened: Sequence[policies.Statement] = (),
) -> alicloud.oss.BucketPolicy:
    """Declare the settings; return the policy, which refuses plain HTTP for every caller.

    The settings for HTTPS refuse old TLS. No setting is deleted before its bucket, as Pulumi's order of
    dependencies would have it: a bucket that stays, because it is protected or its deletion fails, would then
    be open to plain HTTP and without its policy.
    """
    opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(deleted_with=bucket))
    alicloud.oss.BucketAcl(name, bucket=bucket.id, acl="private", opts=opts)
    alicloud.oss.BucketPublicAccessBlock(name, bucket=bucket.id, block_public_access=True, opts=opts)
    tls = list(TLS_VERSIONS)
    alicloud.oss.BucketHttpsConfig(name, bucket=bucket.id, enable=True, tls_versions=tls, opts=opts)
    insecure = {"Bool": {"acs:SecureTransport": ["false"]}}
    refused = policies.deny(["oss:*"], [arn, f"{arn}/*"], insecure, ["*"])
    policy = policies.document(refused, *opened)
    return alicloud.oss.BucketPolicy(name, bucket=bucket.id, policy=policy, opts=opts)


def leftovers(old_versions_days: int) -> alicloud.oss.BucketLifecycleRuleArgs:
    """Return the rule that deletes overwritten and deleted objects after a while, unfinished uploads sooner.

    It is one rule, since OSS allows one a prefix (help.aliyun.com/en/oss/user-guide/0014-00000085).
    """
    return alicloud.oss.BucketLifecycleRuleArgs(
        id="leftovers",
        enabled=True,
        prefix="",
        noncurrent_version_expirations=[
            alicloud.oss.BucketLifecycleRuleNoncurrentVersionExpirationArgs(days=old_versions_days)
        ],
        expirations=[alicloud.oss.BucketLifecycleRuleExpirationArgs(expired_object_delete_marker=True)],
        abort_multipart_uploads=[
            alicloud.oss.BucketLifecycleRuleAbortMultipartUploadArgs(days=ABORT_UPLOADS_AFTER_DAYS)
        ],
    )
