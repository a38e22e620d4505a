"""Buckets in moto, and each setting that is a resource of its own in the provider."""

from typing import Any

from gpu_fleet_stacks.rehearsal.archives import asset_bytes
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    pascal,
    physical_name,
    picked,
    tag_list,
    with_tags_all,
)

# The one region that bucket requests must not name:
# docs.aws.amazon.com/AmazonS3/latest/API/API_CreateBucket.html
UNNAMED_REGION = "us-east-1"


def bucket(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    s3, region = clients("s3"), clients.region
    bucket_name = physical_name(name, inputs, "bucket")
    constraint = {"CreateBucketConfiguration": {"LocationConstraint": region}}
    locks = picked(inputs, {"ObjectLockEnabledForBucket": "objectLockEnabled"})
    s3.create_bucket(Bucket=bucket_name, **({} if region == UNNAMED_REGION else constraint), **locks)
    if inputs.get("tags"):
        s3.put_bucket_tagging(Bucket=bucket_name, Tagging={"TagSet": tag_list(inputs["tags"])})
    return bucket_name, with_tags_all(
        inputs,
        bucket=bucket_name,
        arn=f"arn:{clients.partition}:s3:::{bucket_name}",
        bucketDomainName=f"{bucket_name}.s3.amazonaws.com",
        bucketRegionalDomainName=f"{bucket_name}.s3.{region}.amazonaws.com",
        bucketRegion=region,
        requestPayer="BucketOwner",
    )


def public_access_block(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    names = api_names("blockPublicAcls blockPublicPolicy ignorePublicAcls restrictPublicBuckets")
    clients("s3").put_public_access_block(
        Bucket=inputs["bucket"], PublicAccessBlockConfiguration=picked(inputs, names)
    )
    return inputs["bucket"], inputs


def ownership_controls(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    clients("s3").put_bucket_ownership_controls(
        Bucket=inputs["bucket"], OwnershipControls={"Rules": [pascal(inputs["rule"])]}
    )
    return inputs["bucket"], inputs


def encryption(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    names = {"SSEAlgorithm": "sseAlgorithm", "KMSMasterKeyID": "kmsMasterKeyId"}
    rules = [
        {
            "ApplyServerSideEncryptionByDefault": picked(rule["applyServerSideEncryptionByDefault"], names),
            **picked(rule, {"BucketKeyEnabled": "bucketKeyEnabled"}),
        }
        for rule in inputs["rules"]
    ]
    clients("s3").put_bucket_encryption(
        Bucket=inputs["bucket"], ServerSideEncryptionConfiguration={"Rules": rules}
    )
    return inputs["bucket"], inputs


def versioning(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    configuration = {"Status": inputs["versioningConfiguration"]["status"]}
    clients("s3").put_bucket_versioning(Bucket=inputs["bucket"], VersioningConfiguration=configuration)
    return inputs["bucket"], inputs


def lifecycle(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    clients("s3").put_bucket_lifecycle_configuration(
        Bucket=inputs["bucket"],
        LifecycleConfiguration={"Rules": [_lifecycle_rule(rule) for rule in inputs["rules"]]},
    )
    return inputs["bucket"], {"transitionDefaultMinimumObjectSize": "all_storage_classes_128K"} | inputs


def _lifecycle_rule(rule: Inputs) -> dict[str, Any]:
    """Convert a rule: the API spells ``ID``, and expects the tags of an ``and`` filter as pairs."""
    request: dict[str, Any] = pascal({key: value for key, value in rule.items() if key != "id"})
    both = rule.get("filter", {}).get("and")
    if both and "tags" in both:
        request["Filter"]["And"]["Tags"] = tag_list(both["tags"])
    return {"ID": rule["id"]} | request


def policy(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    clients("s3").put_bucket_policy(Bucket=inputs["bucket"], Policy=inputs["policy"])
    return inputs["bucket"], inputs


def logging(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    target = {"TargetBucket": inputs["targetBucket"], "TargetPrefix": inputs["targetPrefix"]}
    clients("s3").put_bucket_logging(Bucket=inputs["bucket"], BucketLoggingStatus={"LoggingEnabled": target})
    return inputs["bucket"], inputs


def stored_object(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    """Create an aws:s3/bucketObjectv2:BucketObjectv2, of an asset or a text."""
    body = inputs["content"].encode() if "content" in inputs else asset_bytes(inputs["source"])
    names = {"ServerSideEncryption": "serverSideEncryption", "SSEKMSKeyId": "kmsKeyId"}
    made = clients("s3").put_object(
        Bucket=inputs["bucket"],
        Key=inputs["key"],
        Body=body,
        **picked(inputs, names),
    )
    arn = f"arn:{clients.partition}:s3:::{inputs['bucket']}/{inputs['key']}"
    computed = {"arn": arn, "etag": made["ETag"].strip('"'), "versionId": made.get("VersionId", "")}
    return f"{inputs['bucket']}/{inputs['key']}", with_tags_all(inputs, **computed)


def replication(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    rules = [
        {
            **picked(rule, {"ID": "id", "Priority": "priority", "Status": "status"}),
            "Filter": {"Prefix": rule["filter"]["prefix"]},
            "DeleteMarkerReplication": pascal(rule["deleteMarkerReplication"]),
            "SourceSelectionCriteria": pascal(rule["sourceSelectionCriteria"]),
            "Destination": {
                "Bucket": rule["destination"]["bucket"],
                "EncryptionConfiguration": {
                    "ReplicaKmsKeyID": rule["destination"]["encryptionConfiguration"]["replicaKmsKeyId"]
                },
            },
        }
        for rule in inputs["rules"]
    ]
    clients("s3").put_bucket_replication(
        Bucket=inputs["bucket"], ReplicationConfiguration={"Role": inputs["role"], "Rules": rules}
    )
    return inputs["bucket"], inputs


CREATORS = {
    "aws:s3/bucketReplicationConfig:BucketReplicationConfig": replication,
    "aws:s3/bucket:Bucket": bucket,
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": public_access_block,
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": ownership_controls,
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": encryption,
    "aws:s3/bucketVersioning:BucketVersioning": versioning,
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": lifecycle,
    "aws:s3/bucketObjectv2:BucketObjectv2": stored_object,
    "aws:s3/bucketPolicy:BucketPolicy": policy,
    "aws:s3/bucketLogging:BucketLogging": logging,
}
