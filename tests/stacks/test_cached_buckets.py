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
OTHER, TWICE = (STORAGE | {"cached_buckets": named} for named in (["other"], ["data", "data"]))
CPFS = {"kms_instance_id": "kst-szh0000000000000000", "scratch_gib": 3600, "cached_buckets": ["data"]}
REFUSED = {
    "needs a Lustre of the stack's own: storage.scratch_gib": (examples, {"cached_buckets": ["data"]}),
    "'other': must be data, or a bucket of storage.existing.buckets": (examples, OTHER),
    "'data': is named more than once": (examples, TWICE),
    "is only for FSx for Lustre on AWS": (alicloud_examples, CPFS),
}


def test_what_cannot_be_linked_is_one_message():
    said = {says: refusal(of.stack_file(storage=storage)) for says, (of, storage) in REFUSED.items()}

    assert {says: text for says, text in said.items() if says not in text} == {}


@pytest.fixture
def declared():
    settings = examples.stack(storage=STORAGE)

    def made():
        # the bucket stands nowhere here
        with moto_server(settings.region), patch("gpu_fleet_stacks.aws.existing.look_at_buckets"):
            return run(settings)

    return kept("cached buckets", settings, made)


def test_each_bucket_is_a_folder_that_is_never_written_back_and_the_stacks_own_notifies(declared):
    token = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
    made = {each.inputs["fileSystemPath"]: each.inputs for each in declared.of_type(token)}

    assert {path: each["dataRepositoryPath"] for path, each in made.items()} == {
        "/data": "s3://gpu-fleet-test-data-123456789012",
        "/lab-datasets": "s3://lab-datasets",
    }
    assert not any("autoExportPolicy" in each.get("s3", {}) for each in made.values())
    assert made["/data"]["s3"]["autoImportPolicy"]["events"] == ["NEW", "CHANGED", "DELETED"]
    assert "s3" not in made["/lab-datasets"]


def test_the_key_lets_fsx_read_for_a_link_and_nothing_else(declared):
    (key,) = declared.of_type("aws:kms/key:Key")
    policy = json.loads(key.inputs["policy"])
    (own,) = [each for each in policy["Statement"] if each["Sid"] == "CacheReadsData"]
    del own["Principal"]
    document = json.dumps(policy | {"Statement": [own]})
    fsx = {
        "aws:PrincipalArn": f"{ROLE}AWSServiceRoleForFSxS3Access_fs-0123456789abcdef0",
        "kms:CallerAccount": "123456789012",
        "kms:ViaService": "s3.us-east-1.amazonaws.com",
    }
    others = {
        "aws:PrincipalArn": "arn:aws:iam::123456789012:role/other",
        "kms:CallerAccount": "999999999999",
        "kms:ViaService": "ec2.us-east-1.amazonaws.com",
    }

    def may(action, context):
        return decide(Request(action, "*", context=context), identity=[document]) is Verdict.ALLOWED

    assert may("kms:Decrypt", fsx)
    assert not may("kms:GenerateDataKey", fsx)
    assert [change for change in others.items() if may("kms:Decrypt", fsx | dict([change]))] == []
