"""OSS access logs of the stack's buckets, in a bucket of their own.

As on AWS, the stack's key does not encrypt this bucket: OSS's own keys do, so that its delivery needs no
right on the stack's key. It holds names of objects and callers, and no object.
"""

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import closed_buckets
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Redundancy, Stack

KIND = "access-logs"


def bucket(name: str, stack: Stack, parent: pulumi.Resource) -> pulumi.Resource:
    """Declare the log bucket; return the resource that must exist before OSS delivers there.

    OSS writes as the owner of both buckets, which are in one region and account, and needs no policy for it
    (www.alibabacloud.com/help/en/oss/developer-reference/putbucketlogging).
    """
    name = f"{name}-{KIND}"
    made = alicloud.oss.Bucket(
        name,
        bucket=stack.bucket_name(KIND),
        storage_class="Standard",
        redundancy_type=str(stack.storage.redundancy or Redundancy.LRS),
        server_side_encryption_rule=alicloud.oss.BucketServerSideEncryptionRuleArgs(sse_algorithm="AES256"),
        versioning=alicloud.oss.BucketVersioningArgs(status="Enabled"),
        lifecycle_rules=[_old_logs(stack.logs.retention_days)],
        lifecycle_rule_allow_same_action_overlap=False,
        tags=naming.tags(stack.name, stack.owner, Name=naming.prefixed(stack.name, KIND)),
        opts=pulumi.ResourceOptions(parent=parent, protect=stack.protected, ignore_changes=["policy"]),
    )
    opts = pulumi.ResourceOptions(parent=parent, protect=stack.protected, deleted_with=made)
    arn = f"acs:oss:*:{stack.account_id}:{stack.bucket_name(KIND)}"
    closed_buckets.close(name, made, arn, opts)
    return made


def logging(stack: Stack, kind: str) -> alicloud.oss.BucketLoggingArgs | None:
    """Return the part of a bucket that makes OSS write its access log; None where it is off."""
    if not stack.logs.bucket_access:
        return None
    return alicloud.oss.BucketLoggingArgs(target_bucket=stack.bucket_name(KIND), target_prefix=f"{kind}/")


def _old_logs(days: int) -> alicloud.oss.BucketLifecycleRuleArgs:
    """Return the rule that deletes files with the age of the stack's other logs, and versions a day later."""
    return alicloud.oss.BucketLifecycleRuleArgs(
        id="old-logs",
        enabled=True,
        prefix="",
        expirations=[alicloud.oss.BucketLifecycleRuleExpirationArgs(days=days)],
        noncurrent_version_expirations=[
            alicloud.oss.BucketLifecycleRuleNoncurrentVersionExpirationArgs(days=1)
        ],
        abort_multipart_uploads=[
            alicloud.oss.BucketLifecycleRuleAbortMultipartUploadArgs(
                days=closed_buckets.ABORT_UPLOADS_AFTER_DAYS
            )
        ],
    )
