"""S3 access logs of the stack's buckets, in a bucket of their own.

The stack's key does not encrypt this bucket: S3 delivers access logs to no bucket under a KMS key
(docs.aws.amazon.com/AmazonS3/latest/userguide/enable-server-access-logging.html), so S3's own keys do. It
holds names of objects and callers, and no object.
"""

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import closed_buckets, policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

KIND = "access-logs"
TRAIL = "cloudtrail"  # prefix of the trail's files
DELIVERY = "logging.s3.amazonaws.com"


class AccessLogs:
    """The log bucket, and the access that other buckets need to write their logs there.

    Args:
        kinds: the buckets that are logged; each writes below its own prefix.
        parent: the component that owns the buckets.
    """

    def __init__(self, name: str, stack: Stack, kinds: Sequence[str], parent: pulumi.Resource) -> None:
        self._stack, self._parent = stack, parent
        self._stem, self._name = name, f"{name}-{KIND}"
        bucket = aws.s3.Bucket(
            self._name,
            bucket=stack.bucket_name(KIND),
            tags=naming.tags(stack.name, stack.owner, Name=naming.prefixed(stack.name, KIND)),
            opts=pulumi.ResourceOptions(parent=parent, protect=stack.protected),
        )
        self._sources = [
            f"arn:{policies.partition(stack.region)}:s3:::{stack.bucket_name(kind)}" for kind in kinds
        ]
        self._policy = self._settings(bucket)

    def of(self, kind: str, bucket: aws.s3.Bucket, opts: pulumi.ResourceOptions) -> None:
        """Turn on S3's access log of a bucket."""
        aws.s3.BucketLogging(
            f"{self._stem}-{kind}",
            bucket=bucket.id,
            target_bucket=self._stack.bucket_name(KIND),
            target_prefix=f"{kind}/",
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[self._policy])),
        )

    def data_events(self) -> None:
        """Declare a CloudTrail trail: each call for an object of these buckets, with caller, in signed files.

        The log bucket itself is left out: each delivery would be an event of its own.
        """
        stack = self._stack
        field = aws.cloudtrail.TrailAdvancedEventSelectorFieldSelectorArgs
        chosen = [
            field(field="eventCategory", equals=["Data"]),
            field(field="resources.type", equals=["AWS::S3::Object"]),
            field(field="resources.ARN", starts_withs=[f"{source}/" for source in self._sources]),
        ]
        aws.cloudtrail.Trail(
            f"{self._stem}-data-events",
            name=_trail_name(stack),
            s3_bucket_name=stack.bucket_name(KIND),
            s3_key_prefix=TRAIL,
            enable_log_file_validation=True,
            include_global_service_events=False,
            is_multi_region_trail=False,
            advanced_event_selectors=[
                aws.cloudtrail.TrailAdvancedEventSelectorArgs(
                    name="Objects of the stack", field_selectors=chosen
                )
            ],
            tags=naming.tags(stack.name, stack.owner),
            opts=pulumi.ResourceOptions(parent=self._parent, depends_on=[self._policy]),
        )

    def _settings(self, bucket: aws.s3.Bucket) -> pulumi.Resource:
        """Declare the settings of the log bucket; return the policy that lets S3 deliver.

        They are deleted with the bucket or not at all, as in ``storage.py``.
        """
        name = self._name
        opts = pulumi.ResourceOptions(parent=self._parent, protect=self._stack.protected, deleted_with=bucket)
        versioning = closed_buckets.close(name, bucket, opts)
        aws.s3.BucketServerSideEncryptionConfiguration(
            name,
            bucket=bucket.id,
            rules=[{"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}],
            opts=opts,
        )
        aws.s3.BucketLifecycleConfiguration(
            name,
            bucket=bucket.id,
            rules=[*_lifecycle(self._stack.logs.retention_days)],
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[versioning])),
        )
        return aws.s3.BucketPolicy(
            name,
            bucket=bucket.id,
            policy=_bucket_policy(bucket.arn, self._sources, self._stack),
            opts=opts,
        )


def _trail_name(stack: Stack) -> str:
    return naming.prefixed(stack.name, "data-events")


def _trail_delivers(bucket_arn: pulumi.Output[str], stack: Stack) -> list[policies.Statement]:
    """Allow the trail to deliver its files.

    https://docs.aws.amazon.com/awscloudtrail/latest/userguide/create-s3-bucket-policy-for-cloudtrail.html
    """
    arn = f"arn:{policies.partition(stack.region)}:cloudtrail:{stack.region}:{stack.account_id}:trail/"
    of_trail = {"aws:SourceArn": f"{arn}{_trail_name(stack)}"}
    service = {"Service": "cloudtrail.amazonaws.com"}
    files = pulumi.Output.concat(bucket_arn, f"/{TRAIL}/AWSLogs/{stack.account_id}/*")
    whole = of_trail | {"s3:x-amz-acl": "bucket-owner-full-control"}
    return [
        policies.allow("TrailLooks", ["s3:GetBucketAcl"], bucket_arn, {"StringEquals": of_trail}, service),
        policies.allow("TrailDelivers", ["s3:PutObject"], files, {"StringEquals": whole}, service),
    ]


def _lifecycle(days: int) -> list[aws.s3.BucketLifecycleConfigurationRuleArgsDict]:
    """Return the rules that delete files with the age of the stack's other logs, and versions a day later."""
    return [
        {
            "id": "old-logs",
            "status": "Enabled",
            "filter": {"prefix": ""},
            "expiration": {"days": days},
            "noncurrent_version_expiration": {"noncurrent_days": 1},
            "abort_incomplete_multipart_upload": {
                "days_after_initiation": closed_buckets.ABORT_UPLOADS_AFTER_DAYS
            },
        },
    ]


def _bucket_policy(
    bucket_arn: pulumi.Output[str], sources: Sequence[str], stack: Stack
) -> pulumi.Output[str]:
    """Allow S3's log delivery for the stack's buckets and the stack's trail; deny everything without TLS."""
    objects = pulumi.Output.concat(bucket_arn, "/*")
    everyone = {"AWS": "*"}
    return policies.document(
        policies.allow(
            "DeliverLogs",
            ["s3:PutObject"],
            objects,
            {
                "ArnEquals": {"aws:SourceArn": list(sources)},
                "StringEquals": {"aws:SourceAccount": stack.account_id},
            },
            {"Service": DELIVERY},
        ),
        *(_trail_delivers(bucket_arn, stack) if stack.logs.data_events else []),
        policies.deny(
            "TlsOnly", ["s3:*"], [bucket_arn, objects], {"Bool": {"aws:SecureTransport": "false"}}, everyone
        ),
        policies.deny(
            "ModernTls",
            ["s3:*"],
            [bucket_arn, objects],
            {"NumericLessThan": {"s3:TlsVersion": closed_buckets.LEAST_TLS}},
            everyone,
        ),
    )
