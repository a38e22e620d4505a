"""Settings of every bucket of a stack: private, reached by TLS alone, its leftovers deleted."""

from collections.abc import Sequence

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import policies

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
ABORT_UPLOADS_AFTER_DAYS = 7


def close(
    name: str,
    bucket: alicloud.oss.Bucket,
    arn: str,
    opts: pulumi.ResourceOptions,
    opened: Sequence[policies.Statement] = (),
) -> alicloud.oss.BucketPolicy:
    """Declare the settings; return the policy, which refuses plain HTTP for every caller.

    The settings for HTTPS refuse old TLS.

    Args:
        name: logical name of the bucket and of each of its settings.
        opts: options by which settings are deleted with their bucket or not at all.
        opened: further statements of the policy.
    """
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
