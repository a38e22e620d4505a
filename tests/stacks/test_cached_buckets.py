"""Buckets as folders of the shared scratch: links, permissions, refusals."""

import json
from unittest.mock import patch

import pytest

from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.stacks import alicloud_examples, examples
from tests.stacks.examples import refusal
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.registrations import kept, run

STORAGE = {
    "scratch_gib": 1200,
    "cached_buckets": ["data", "lab-datasets"],
    "existing": {"buckets": {"lab-datasets": {}}},
}
ROLE = "arn:aws:iam::123456789012:role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/"
REFUSED = {
    "no Lustre": ({"cached_buckets": ["data"]}, "needs a Lustre of the stack's own: storage.scratch_gib"),
    "a bucket that nobody named": (
        STORAGE | {"cached_buckets": ["other"]},
        "storage.cached_buckets = 'other': must be data, or a bucket of storage.existing.buckets",
    ),
    "a bucket twice": (STORAGE | {"cached_buckets": ["data", "data"]}, "'data': is named more than once"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_linked_is_one_message(case):
    storage, message = REFUSED[case]

    assert message in refusal(examples.stack_file(storage=storage))


def test_alibaba_clouds_cpfs_is_linked_to_no_bucket():
    storage = {"kms_instance_id": "kst-szh0000000000000000", "scratch_gib": 3600, "cached_buckets": ["data"]}

    assert "is only for FSx for Lustre on AWS" in refusal(alicloud_examples.stack_file(storage=storage))


@pytest.fixture
def declared():
    settings = examples.stack(storage=STORAGE)

    def made():
        # the bucket stands nowhere here
        with moto_server(settings.region), patch("gpu_fleet_stacks.aws.existing.look_at_buckets"):
            return run(settings)

    return kept("cached buckets", settings, made)


def links(declared):
    token = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
    return {each.inputs["fileSystemPath"]: each.inputs for each in declared.of_type(token)}


def test_each_bucket_is_a_folder_that_is_read_and_never_written_back(declared):
    made = links(declared)

    assert {path: each["dataRepositoryPath"] for path, each in made.items()} == {
        "/data": "s3://gpu-fleet-test-data-123456789012",
        "/lab-datasets": "s3://lab-datasets",
    }
    assert not any("autoExportPolicy" in each.get("s3", {}) for each in made.values())


def test_a_notification_is_set_on_the_stacks_own_bucket_alone(declared):
    made = links(declared)

    assert made["/data"]["s3"]["autoImportPolicy"]["events"] == ["NEW", "CHANGED", "DELETED"]
    assert "s3" not in made["/lab-datasets"]


def key_policy(declared):
    (key,) = declared.of_type("aws:kms/key:Key")
    return json.loads(key.inputs["policy"])


def may(policy, action, principal, **changed):
    context = {
        "aws:PrincipalArn": principal,
        "kms:CallerAccount": "123456789012",
        "kms:ViaService": "s3.us-east-1.amazonaws.com",
    }
    request = Request(action, "*", context=context | changed)
    statements = [each for each in policy["Statement"] if each["Sid"] == "CacheReadsData"]
    document = json.dumps(policy | {"Statement": [strip(each) for each in statements]})
    return decide(request, identity=[document]) is Verdict.ALLOWED


def strip(statement):
    return {key: value for key, value in statement.items() if key != "Principal"}


def test_the_key_lets_fsx_read_for_a_link_and_nothing_else(declared):
    policy = key_policy(declared)
    fsx = f"{ROLE}AWSServiceRoleForFSxS3Access_fs-0123456789abcdef0"

    assert may(policy, "kms:Decrypt", fsx)
    assert not may(policy, "kms:GenerateDataKey", fsx)
    assert not may(policy, "kms:Decrypt", "arn:aws:iam::123456789012:role/other")
    assert not may(policy, "kms:Decrypt", fsx, **{"kms:CallerAccount": "999999999999"})
    assert not may(policy, "kms:Decrypt", fsx, **{"kms:ViaService": "ec2.us-east-1.amazonaws.com"})
