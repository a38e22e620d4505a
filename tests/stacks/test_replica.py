"""Copies of data and checkpoints in another region: closed, with their own key, paid for, and refused."""

import json
from decimal import Decimal

import boto3
import pytest

from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.crossguard.model import Profile, Resource
from gpu_fleet_stacks.deployer.policy import Declared, Wanted, policies
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.settings.quantities import Level, Volumes
from tests.stacks import alicloud_examples, examples, iam
from tests.stacks.policy_judge import violations
from tests.stacks.registrations import declared, run

AWS = examples.stack(storage={"replica_region": "us-west-2"})
ALICLOUD = alicloud_examples.stack(
    storage={
        "kms_instance_id": "kst-szh0000000000000000",
        "replica_region": "cn-hangzhou",
        "replica_kms_instance_id": "kst-hzz0000000000000000",
    }
)
CONFIG = "aws:s3/bucketReplicationConfig:BucketReplicationConfig"
NAME = "gpu-fleet-test-replica-data"
SOURCE, COPY = (f"gpu-fleet-test-data{end}-123456789012" for end in ("", "-replica"))


def by_name(found, kind):
    """Return the inputs of the copies' resources of a type."""
    return {each.name: each.inputs for each in found.of_type(kind) if "-replica" in each.name}


def test_the_copies_stand_in_their_region_closed_and_under_their_own_key():
    with moto_server("us-east-1"):
        found = run(AWS)
        s3, there = boto3.client("s3", "us-east-1"), boto3.client("s3", "us-west-2")
        (rule,) = s3.get_bucket_replication(Bucket=SOURCE)["ReplicationConfiguration"]["Rules"]
        place = there.get_bucket_location(Bucket=COPY)["LocationConstraint"]
        encrypted = there.get_bucket_encryption(Bucket=COPY)["ServerSideEncryptionConfiguration"]["Rules"]
        public = there.get_public_access_block(Bucket=COPY)["PublicAccessBlockConfiguration"]
        versions = there.get_bucket_versioning(Bucket=COPY)["Status"]
        key = encrypted[0]["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"]
        known = boto3.client("kms", "us-west-2").describe_key(KeyId=key)["KeyMetadata"]["KeyState"]

    assert (place, versions, known, set(public.values())) == ("us-west-2", "Enabled", "Enabled", {True})
    assert rule["Destination"]["Bucket"] == f"arn:aws:s3:::{COPY}"
    assert rule["Destination"]["EncryptionConfiguration"]["ReplicaKmsKeyID"] == key
    (asked,) = by_name(found, CONFIG)[NAME]["rules"]
    assert asked["sourceSelectionCriteria"] == {"sseKmsEncryptedObjects": {"status": "Enabled"}}
    assert rule["DeleteMarkerReplication"]["Status"] == "Disabled"
    assert found.outputs["replica_bucket_uris"]["data"] == f"s3://{COPY}"


def test_oss_copies_under_its_own_key_and_never_a_deletion():
    found = declared(ALICLOUD)
    copies = by_name(found, "alicloud:oss/bucketReplication:BucketReplication")
    buckets = by_name(found, "alicloud:oss/bucket:Bucket")

    assert {name.rpartition("-")[2] for name in copies} == {"data", "checkpoints"}
    for name, copy in copies.items():
        assert copy["action"] == "PUT"
        assert copy["destination"]["location"] == "oss-cn-hangzhou"
        assert copy["destination"]["bucket"] == buckets[name]["bucket"]
        key = copy["encryptionConfiguration"]["replicaKmsKeyId"]
        assert key == buckets[name]["serverSideEncryptionRule"]["kmsMasterKeyId"]
        assert buckets[name]["versioning"] == {"status": "Enabled"}
    for kind in ("BucketAcl", "BucketPublicAccessBlock", "BucketHttpsConfig", "BucketPolicy"):
        assert len(by_name(found, f"alicloud:oss/{kind[0].lower()}{kind[1:]}:{kind}")) == 2


BOTH = pytest.mark.parametrize("settings", [AWS, ALICLOUD], ids=["aws", "alicloud"])


@BOTH
def test_the_policy_pack_lets_the_copies_pass(settings):
    found = declared(settings)
    resources = [Resource(each.type, each.name, each.inputs) for each in found.registrations]
    profile = Profile(regions=(settings.region, str(settings.storage.replica_region)))

    assert [str(each) for each in violations(resources, profile) if "replica" in str(each)] == []


@pytest.mark.parametrize("cloud", [examples, alicloud_examples], ids=["aws", "alicloud"])
def test_without_the_setting_there_is_no_copy_and_no_role(cloud):
    assert [each.name for each in declared(cloud.stack()).registrations if "replica" in each.name] == []


def test_the_role_copies_versions_and_reads_and_deletes_nothing_else():
    found = declared(AWS)
    (document,) = (each["policy"] for each in by_name(found, "aws:iam/rolePolicy:RolePolicy").values())

    def may(action: str, bucket: str) -> bool:
        request = iam.Request(f"s3:{action}", f"arn:aws:s3:::{bucket}/dev/a")
        return iam.decide(request, identity=[document]) is iam.Verdict.ALLOWED

    reads, records = "GetObjectVersionForReplication", SOURCE.replace("-data-", "-records-")
    own, others = [(reads, SOURCE), ("ReplicateObject", COPY)], [("ReplicateDelete", COPY), (reads, records)]
    assert [each for each in (*own, *others, ("ReplicateObject", SOURCE)) if may(*each)] == own


def test_storage_is_paid_twice_and_each_gb_is_sent_once():
    volumes, listed = Volumes(bucket_gb=1000), prices.load(AWS.cloud).quotes
    with_copies, without = (estimate(each, volumes) for each in (AWS, examples.stack()))

    more = with_copies.month(Level.NOW).expected.amount - without.month(Level.NOW).expected.amount
    assert more == 1000 * (Decimal(listed["bucket"].amount) + Decimal(listed["replica_traffic"].amount))
    assert "replica_traffic" in {quote.what for quote in estimate(ALICLOUD).unknown}


def test_a_region_that_cannot_hold_copies_and_a_kms_instance_that_is_not_there_are_refused():
    elsewhere = "must be another region of aws than us-east-1"
    kms = "storage.replica_kms_instance_id"
    for region in ("us-east-1", "us-gov-west-1", "eu-middle-1", "cn-north-1"):
        text = examples.refusal(examples.stack_file(storage={"replica_region": region}))
        assert f"storage.replica_region = '{region}'" in text
        assert elsewhere in text
    for storage, says in (
        ({"replica_region": "cn-hangzhou"}, f"{kms} = null: required with storage.replica_region"),
        ({"replica_kms_instance_id": "kst-1"}, f"{kms} = 'kst-1': is for storage.replica_region on alicloud"),
    ):
        file = alicloud_examples.stack_file(storage={"kms_instance_id": "kst-szh0000000000000000"} | storage)
        assert says in examples.refusal(file)


def resources(settings):
    return [Declared(each.type, each.name, each.inputs) for each in declared(settings).resources]


@BOTH
def test_a_deployer_may_make_the_key_of_the_other_region(settings):
    place = "arn:aws:kms:us-west-2:" if settings is AWS else "acs:kms:cn-hangzhou:"

    assert place in json.dumps(policies(settings, resources(settings), Wanted()))


def test_a_deployer_who_may_delete_data_empties_the_copies_too():
    wanted = policies(AWS, resources(AWS), Wanted(delete_data=True))
    made = [json.dumps(document) for document in wanted]
    bucket, there = f"arn:aws:s3:::{COPY}", {"aws:RequestedRegion": "us-west-2"}
    calls = ["ListBucketVersions", "ListBucketMultipartUploads", "DeleteBucket"]
    asked = [iam.Request(f"s3:{call}", bucket, context=there) for call in calls]
    asked.append(iam.Request("s3:DeleteObjectVersion", f"{bucket}/x", context=there))

    assert [each.action for each in asked if iam.decide(each, made) is not iam.Verdict.ALLOWED] == []
