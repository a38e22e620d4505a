"""OSS access logs of the stack's buckets, in a bucket of their own.

As on AWS, the stack's key does not encrypt this bucket: OSS's own keys do, so that its delivery needs no
right on the stack's key. It holds names of objects and callers, and no object.
"""

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import closed_buckets
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

KIND = "access-logs"


def bucket(name: str, stack: Stack, parent: pulumi.Resource) -> pulumi.Resource:
    """Declare the log bucket; return the resource that must exist before OSS delivers there.

    OSS writes as the owner of both buckets, which are in one region and account, and needs no policy for it
    (www.alibabacloud.com/help/en/oss/developer-reference/putbucketlogging).
    """
    name = f"{name}-{KIND}"
    opts = pulumi.ResourceOptions(parent=parent, protect=stack.protected)
    made = closed_buckets.declare(
        name,
        stack,
        stack.bucket_name(KIND),
        None,
        [_old_logs(stack.logs.retention_days)],
        tags=naming.tags(stack.name, stack.owner, Name=naming.prefixed(stack.name, KIND)),
        opts=opts,
    )
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
