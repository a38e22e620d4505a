"""Check the existing buckets that the stack's instances use: present, in its region, key and TLS policy."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.usable import unless_missing
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.schema import ExistingBucket

KMS = ("aws:kms", "aws:kms:dsse")


def buckets(stack: Stack, aws: Aws) -> Iterator[Finding]:
    """Check each bucket that the stack file names."""
    for name, use in stack.storage.existing.buckets.items():
        yield guarded(f"bucket {name}", partial(_bucket, stack, aws, name, use))


def _bucket(stack: Stack, aws: Aws, name: str, use: ExistingBucket) -> Finding:
    subject, key = f"bucket {name}", f"storage.existing.buckets.{name}"
    # a HEAD has no body, so its error is the status alone: API HeadBucket, "404 Not Found"
    head = unless_missing(partial(aws.ask, "s3", "head_bucket", Bucket=name), "HeadBucket: 404")
    if not head:
        return Finding(subject, Rating.PROBLEM, "there is no such bucket", f"name another than {key}")
    if head.get("BucketRegion", stack.region) != stack.region:
        says = f"is in {head['BucketRegion']}: instances would pay for each byte between regions"
        return Finding(subject, Rating.PROBLEM, says, f"name one in {stack.region}")
    encrypted_by = _kms_key(aws, name)
    if encrypted_by is not None and use.key is None:
        says = f"is encrypted by the KMS key {encrypted_by}, which instances may not use"
        return Finding(subject, Rating.PROBLEM, says, f"name its ARN as {key}.key")
    if not _refuses_plain_http(aws, name):
        says = f"is in {stack.region}; its policy does not refuse plain HTTP"
        return Finding(subject, Rating.NOTE, says, "its owner may deny aws:SecureTransport false")
    return Finding(subject, Rating.FINE, f"is in {stack.region}, and reached by TLS alone")


def _kms_key(aws: Aws, name: str) -> str | None:
    """Return the key of the bucket's default encryption; None for S3's own, which needs no permission."""
    missing = "ServerSideEncryptionConfigurationNotFoundError"
    answer = unless_missing(partial(aws.ask, "s3", "get_bucket_encryption", Bucket=name), missing)
    for rule in answer.get("ServerSideEncryptionConfiguration", {}).get("Rules", []):
        default = rule.get("ApplyServerSideEncryptionByDefault", {})
        if default.get("SSEAlgorithm") in KMS:
            return str(default.get("KMSMasterKeyID", "aws/s3"))
    return None


def _refuses_plain_http(aws: Aws, name: str) -> bool:
    asked = partial(aws.ask, "s3", "get_bucket_policy", Bucket=name)
    text = unless_missing(asked, "NoSuchBucketPolicy").get("Policy")
    statements: list[dict[str, Any]] = json.loads(text)["Statement"] if text else []
    return any(
        statement["Effect"] == "Deny"
        and str(statement.get("Condition", {}).get("Bool", {}).get("aws:SecureTransport", "")).lower()
        == "false"
        for statement in statements
    )
