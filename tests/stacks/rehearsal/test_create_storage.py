"""What the key, bucket and file-system creators leave in moto, read with boto3."""

import json

import pytest

from gpu_fleet_stacks.rehearsal.aws_resources import s3
from tests.stacks.rehearsal.examples import REGION, TAGS, as_map

ROOT = {"AWS": "arn:aws:iam::123456789012:root"}
STATEMENT = {"Effect": "Allow", "Action": "kms:*", "Resource": "*", "Principal": ROOT}
KEY_POLICY = json.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]})


def test_a_key_rotates_and_has_its_policy_and_tags(clients, create):
    made, outputs = create(
        "aws:kms/key:Key",
        description="volumes",
        enableKeyRotation=True,
        rotationPeriodInDays=90,
        policy=KEY_POLICY,
        tags=TAGS,
    )

    kms = clients("kms")
    tags = {tag["TagKey"]: tag["TagValue"] for tag in kms.list_resource_tags(KeyId=made)["Tags"]}
    assert kms.get_key_rotation_status(KeyId=made)["KeyRotationEnabled"] is True
    assert kms.get_key_policy(KeyId=made, PolicyName="default")["Policy"] == KEY_POLICY
    assert tags == TAGS
    assert kms.describe_key(KeyId=made)["KeyMetadata"]["Arn"] == outputs["arn"]


def test_the_rotation_period_reaches_the_service(create, clients):
    sent = []
    clients.pool.session.events.register(
        "provide-client-params.kms.EnableKeyRotation", lambda params, **_: sent.append(params)
    )

    create("aws:kms/key:Key", enableKeyRotation=True, rotationPeriodInDays=90)

    assert [params["RotationPeriodInDays"] for params in sent] == [90]


def test_an_alias_leads_to_its_key(clients, create):
    key_id, key = create("aws:kms/key:Key", description="volumes")

    _, outputs = create("aws:kms/alias:Alias", name="alias/mine", targetKeyId=key_id)

    assert clients("kms").describe_key(KeyId="alias/mine")["KeyMetadata"]["KeyId"] == key_id
    assert outputs["targetKeyArn"] == key["arn"]


@pytest.fixture
def bucket(create):
    return create("aws:s3/bucket:Bucket", bucket="mine", tags=TAGS)[0]


def test_a_bucket_has_its_name_and_tags(clients, bucket):
    assert as_map(clients("s3").get_bucket_tagging(Bucket=bucket)["TagSet"]) == TAGS


def test_a_bucket_of_another_region_stands_there(clients):
    s3.bucket(clients.at("eu-central-1"), "it", {"bucket": "afar"})

    assert clients("s3").get_bucket_location(Bucket="afar")["LocationConstraint"] == "eu-central-1"


# What a creator is given for a bucket, the call that reads it back, and what that says.
BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
ENCRYPTION = {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": "arn:aws:kms:us-east-1:123456789012:key/mine"}
ENCRYPTED = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": ENCRYPTION["kmsMasterKeyId"]}
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
        {
            "ServerSideEncryptionConfiguration": {
                "Rules": [{"ApplyServerSideEncryptionByDefault": ENCRYPTED, "BucketKeyEnabled": True}]
            }
        },
    ),
    "Versioning": (
        {"versioningConfiguration": {"status": "Enabled"}},
        "get_bucket_versioning",
        {"Status": "Enabled"},
    ),
    "Policy": ({"policy": EMPTY_POLICY}, "get_bucket_policy", {"Policy": EMPTY_POLICY}),
}


def test_a_bucket_has_what_each_creator_is_given_for_it(clients, create, bucket):
    for name, (inputs, read, expected) in OF_A_BUCKET.items():
        create(f"aws:s3/bucket{name}:Bucket{name}", bucket=bucket, **inputs)
        seen = getattr(clients("s3"), read)(Bucket=bucket)
        assert seen.items() >= expected.items(), name


def test_a_bucket_forgets_old_versions_and_aborted_uploads(clients, create, bucket):
    create(
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        bucket=bucket,
        rules=[
            {
                "id": "old",
                "status": "Enabled",
                "filter": {"prefix": ""},
                "noncurrentVersionExpiration": {"noncurrentDays": 30},
            },
            {
                "id": "aborted",
                "status": "Enabled",
                "filter": {"and": {"prefix": "tmp/", "tags": {"keep": "no"}}},
                "abortIncompleteMultipartUpload": {"daysAfterInitiation": 7},
            },
        ],
    )

    old, aborted = clients("s3").get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert (old["ID"], old["NoncurrentVersionExpiration"]) == ("old", {"NoncurrentDays": 30})
    assert aborted["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert aborted["Filter"]["And"]["Tags"] == [{"Key": "keep", "Value": "no"}]


@pytest.fixture
def home(create):
    return create(
        "aws:efs/fileSystem:FileSystem",
        encrypted=True,
        throughputMode="elastic",
        lifecyclePolicies=[{"transitionToIa": "AFTER_30_DAYS"}],
        tags=TAGS,
    )


def test_a_home_is_encrypted_moves_what_is_not_read_and_reports_where_to_mount_it(clients, home):
    made, outputs = home

    seen = clients("efs").describe_file_systems(FileSystemId=made)["FileSystems"][0]
    lifecycle = clients("efs").describe_lifecycle_configuration(FileSystemId=made)["LifecyclePolicies"]
    assert (seen["Encrypted"], seen["ThroughputMode"]) == (True, "elastic")
    assert outputs["dnsName"] == f"{made}.efs.{REGION}.amazonaws.com"
    assert lifecycle == [{"TransitionToIA": "AFTER_30_DAYS"}]


def test_a_home_can_be_mounted_from_its_subnet(clients, create, home, subnet_id, group_id):
    made, outputs = create(
        "aws:efs/mountTarget:MountTarget",
        fileSystemId=home[0],
        subnetId=subnet_id,
        securityGroups=[group_id],
    )

    efs = clients("efs")
    seen = efs.describe_mount_targets(FileSystemId=home[0])["MountTargets"][0]
    groups = efs.describe_mount_target_security_groups(MountTargetId=made)["SecurityGroups"]
    assert (seen["MountTargetId"], seen["SubnetId"], groups) == (made, subnet_id, [group_id])
    assert outputs["mountTargetDnsName"].startswith(f"{REGION}a.{home[0]}.efs.")


def test_a_home_has_its_policy(clients, create, home):
    create("aws:efs/fileSystemPolicy:FileSystemPolicy", fileSystemId=home[0], policy=KEY_POLICY)

    seen = clients("efs").describe_file_system_policy(FileSystemId=home[0])["Policy"]
    assert json.loads(seen) == json.loads(KEY_POLICY)


def test_a_scratch_file_system_reports_where_to_mount_it(clients, create, vpc_id, subnet_id, group_id):
    made, outputs = create(
        "aws:fsx/lustreFileSystem:LustreFileSystem",
        deploymentType="PERSISTENT_2",
        storageType="SSD",
        storageCapacity=2400,
        perUnitStorageThroughput=125,
        dataCompressionType="LZ4",
        subnetIds=subnet_id,
        securityGroupIds=[group_id],
        tags=TAGS,
    )

    seen = clients("fsx").describe_file_systems(FileSystemIds=[made])["FileSystems"][0]
    assert (seen["FileSystemType"], seen["StorageCapacity"]) == ("LUSTRE", 2400)
    assert seen["LustreConfiguration"]["DeploymentType"] == "PERSISTENT_2"
    assert outputs["dnsName"] == f"{made}.fsx.{REGION}.amazonaws.com"
    assert (outputs["vpcId"], len(outputs["mountName"])) == (vpc_id, 8)
