"""What the key, bucket and file-system creators leave in moto, read with boto3."""

import json

import pytest

from gpu_fleet_stacks.rehearsal.aws_resources import s3
from tests.stacks.rehearsal.examples import REGION, TAGS, as_map

ROOT = {"AWS": "arn:aws:iam::123456789012:root"}
STATEMENT = {"Effect": "Allow", "Action": "kms:*", "Resource": "*", "Principal": ROOT}
KEY_POLICY = json.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]})


def test_a_key_rotates_and_has_its_policy_and_tags(clients, create):
    sent = []
    clients.pool.session.events.register(
        "provide-client-params.kms.EnableKeyRotation", lambda params, **_: sent.append(params)
    )
    rotation = {"enableKeyRotation": True, "rotationPeriodInDays": 90}

    made, outputs = create("kms/key", description="volumes", policy=KEY_POLICY, tags=TAGS, **rotation)

    kms = clients("kms")
    tags = {tag["TagKey"]: tag["TagValue"] for tag in kms.list_resource_tags(KeyId=made)["Tags"]}
    assert kms.get_key_rotation_status(KeyId=made)["KeyRotationEnabled"] is True
    assert [params["RotationPeriodInDays"] for params in sent] == [90]
    assert kms.get_key_policy(KeyId=made, PolicyName="default")["Policy"] == KEY_POLICY
    assert tags == TAGS
    assert kms.describe_key(KeyId=made)["KeyMetadata"]["Arn"] == outputs["arn"]


def test_an_alias_leads_to_its_key(clients, create):
    key_id, key = create("kms/key", description="volumes")

    _, outputs = create("kms/alias", name="alias/mine", targetKeyId=key_id)

    assert clients("kms").describe_key(KeyId="alias/mine")["KeyMetadata"]["KeyId"] == key_id
    assert outputs["targetKeyArn"] == key["arn"]


@pytest.fixture
def bucket(create):
    return create("s3/bucket", bucket="mine", tags=TAGS)[0]


def test_a_bucket_of_another_region_stands_there(clients):
    s3.bucket(clients.at("eu-central-1"), "it", {"bucket": "afar"})

    assert clients("s3").get_bucket_location(Bucket="afar")["LocationConstraint"] == "eu-central-1"


# What a creator is given for a bucket, the call that reads it back, and what that says.
BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
ENCRYPTION = {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": "arn:aws:kms:us-east-1:123456789012:key/mine"}
ENCRYPTED = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": ENCRYPTION["kmsMasterKeyId"]}
BY_KEY = {"ApplyServerSideEncryptionByDefault": ENCRYPTED, "BucketKeyEnabled": True}
EMPTY_POLICY = json.dumps({"Version": "2012-10-17", "Statement": []})
OF_A_BUCKET = {
    "PublicAccessBlock": (
        dict.fromkeys(BLOCKS, True),
        "get_public_access_block",
        {"PublicAccessBlockConfiguration": {block[0].upper() + block[1:]: True for block in BLOCKS}},
    ),
    "OwnershipControls": (
        {"rule": {"objectOwnership": "BucketOwnerEnforced"}},
        "get_bucket_ownership_controls",
        {"OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}},
    ),
    "ServerSideEncryptionConfiguration": (
        {"rules": [{"applyServerSideEncryptionByDefault": ENCRYPTION, "bucketKeyEnabled": True}]},
        "get_bucket_encryption",
        {"ServerSideEncryptionConfiguration": {"Rules": [BY_KEY]}},
    ),
    "Versioning": (
        {"versioningConfiguration": {"status": "Enabled"}},
        "get_bucket_versioning",
        {"Status": "Enabled"},
    ),
    "Policy": ({"policy": EMPTY_POLICY}, "get_bucket_policy", {"Policy": EMPTY_POLICY}),
}


def test_a_bucket_has_its_tags_and_what_each_creator_is_given_for_it(clients, create, bucket):
    assert as_map(clients("s3").get_bucket_tagging(Bucket=bucket)["TagSet"]) == TAGS
    for name, (inputs, read, expected) in OF_A_BUCKET.items():
        create(f"s3/bucket{name}", bucket=bucket, **inputs)
        found = getattr(clients("s3"), read)(Bucket=bucket)
        assert found.items() >= expected.items(), name


def test_a_bucket_forgets_old_versions_and_aborted_uploads(clients, create, bucket):
    old = {"id": "old", "status": "Enabled", "filter": {"prefix": ""}}
    old |= {"noncurrentVersionExpiration": {"noncurrentDays": 30}}
    tagged = {"and": {"prefix": "tmp/", "tags": {"keep": "no"}}}
    aborted = {"id": "aborted", "status": "Enabled", "filter": tagged}
    aborted |= {"abortIncompleteMultipartUpload": {"daysAfterInitiation": 7}}

    create("s3/bucketLifecycleConfiguration", bucket=bucket, rules=[old, aborted])

    old, aborted = clients("s3").get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert (old["ID"], old["NoncurrentVersionExpiration"]) == ("old", {"NoncurrentDays": 30})
    assert aborted["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert aborted["Filter"]["And"]["Tags"] == [{"Key": "keep", "Value": "no"}]


@pytest.fixture
def home(create):
    kind = {"encrypted": True, "throughputMode": "elastic"}
    return create(
        "efs/fileSystem", lifecyclePolicies=[{"transitionToIa": "AFTER_30_DAYS"}], tags=TAGS, **kind
    )


def test_a_home_is_encrypted_moves_what_is_not_read_and_has_its_policy(clients, create, seen, home):
    made, outputs = home

    create("efs/fileSystemPolicy", fileSystemId=made, policy=KEY_POLICY)

    files = seen("efs", "describe_file_systems", FileSystemId=made)
    assert (files["Encrypted"], files["ThroughputMode"]) == (True, "elastic")
    assert outputs["dnsName"] == f"{made}.efs.{REGION}.amazonaws.com"
    moved = seen("efs", "describe_lifecycle_configuration", FileSystemId=made)
    assert moved == {"TransitionToIA": "AFTER_30_DAYS"}
    policy = clients("efs").describe_file_system_policy(FileSystemId=made)["Policy"]
    assert json.loads(policy) == json.loads(KEY_POLICY)


def test_a_home_can_be_mounted_from_its_subnet(create, seen, home, subnet_id, group_id):
    files, _ = home

    made, outputs = create(
        "efs/mountTarget", fileSystemId=files, subnetId=subnet_id, securityGroups=[group_id]
    )

    target = seen("efs", "describe_mount_targets", FileSystemId=files)
    group = seen("efs", "describe_mount_target_security_groups", MountTargetId=made)
    assert (target["MountTargetId"], target["SubnetId"], group) == (made, subnet_id, group_id)
    assert outputs["mountTargetDnsName"].startswith(f"{REGION}a.{files}.efs.")


def test_a_scratch_file_system_reports_where_to_mount_it(create, seen, vpc_id, subnet_id, group_id):
    kind = {"deploymentType": "PERSISTENT_2", "storageType": "SSD", "storageCapacity": 2400}
    speed = {"perUnitStorageThroughput": 125, "dataCompressionType": "LZ4", "tags": TAGS}

    made, outputs = create(
        "fsx/lustreFileSystem", subnetIds=subnet_id, securityGroupIds=[group_id], **kind, **speed
    )

    files = seen("fsx", "describe_file_systems", FileSystemIds=[made])
    assert (files["FileSystemType"], files["StorageCapacity"]) == ("LUSTRE", 2400)
    assert files["LustreConfiguration"]["DeploymentType"] == "PERSISTENT_2"
    assert outputs["dnsName"] == f"{made}.fsx.{REGION}.amazonaws.com"
    assert (outputs["vpcId"], len(outputs["mountName"])) == (vpc_id, 8)
