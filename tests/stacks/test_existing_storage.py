"""Buckets of somebody else's: what instances may do there, what stays as it was, and what is refused."""

import base64
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import yaml

from stacks.alicloud import existing as of_alicloud
from stacks.aws import existing as of_aws
from stacks.errors import SettingsError
from stacks.payload import instance_file
from stacks.rehearsal import monitor
from stacks.rehearsal.bucket_policies import conditions_left_out
from stacks.rehearsal.clients import RegionClients
from stacks.rehearsal.program import Rehearsed
from stacks.settings import Stack
from tests.rehearsal.deletions import DELETERS
from tests.rehearsal.destroy import destroy
from tests.stacks import alicloud_examples, examples, iam, ram
from tests.stacks import alicloud_programs as programs
from tests.stacks.edits import EXISTING, EXISTING_VSWITCHES
from tests.stacks.existing import NO_BUCKET, alicloud_answering, answering
from tests.stacks.registrations import run
from tests.stacks.standing import standing

REGION, ACCOUNT = "us-east-1", "123456789012"
KEY = f"arn:aws:kms:{REGION}:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab"
OSS_KEY = "acs:kms:cn-shenzhen:1234567890123456:key/key-szh1111111111111111"
BUCKETS = {"lab-datasets": {"key": KEY}, "lab-results": {"write": True}}
OSS_BUCKETS = {"lab-datasets": {"key": OSS_KEY}, "lab-results": {"write": True}}


def using(buckets: Any = None) -> Stack:
    storage = {"existing": {"buckets": BUCKETS if buckets is None else buckets}}
    return examples.stack("guest", storage=storage)


def using_oss(buckets: Any = None) -> Stack:
    storage = {
        "kms_instance_id": "kst-szh0000000000000000",
        "existing": {"buckets": OSS_BUCKETS if buckets is None else buckets},
    }
    return alicloud_examples.stack("guest", storage=storage)


# AWS, in moto


def somebody_elses() -> dict[str, Any]:
    """All that S3 says of the buckets."""
    s3 = boto3.client("s3", region_name=REGION)
    return {
        name: (
            s3.get_bucket_tagging(Bucket=name)["TagSet"],
            s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"],
            s3.get_bucket_versioning(Bucket=name).get("Status"),
            [stored_object["Key"] for stored_object in s3.list_objects_v2(Bucket=name)["Contents"]],
        )
        for name in BUCKETS
    }


def made_by_hand() -> None:
    s3 = boto3.client("s3", region_name=REGION)
    for name in BUCKETS:
        s3.create_bucket(Bucket=name)
        default = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
        s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [default]})
        s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": "team", "Value": "lab"}]})
        s3.put_object(Bucket=name, Key="shard-0000", Body=b"1")


@dataclass(frozen=True)
class Guest:
    """A stack that uses the buckets, in moto; what they were before, and after."""

    rehearsed: Rehearsed
    before: dict[str, Any]
    after: dict[str, Any]

    def may(self, action: str, resource: str, role: str = "instance", **context: str) -> bool:
        """As an instance of pool ``dev`` or one of its users, from inside the network."""
        policies = {
            each_resource.name: each_resource.inputs["policy"]
            for each_resource in self.rehearsed.of_type("aws:iam/rolePolicy:RolePolicy")
        }
        endpoints = self.rehearsed.of_type("aws:ec2/vpcEndpoint:VpcEndpoint")
        request = iam.Request(
            action,
            resource,
            f"arn:aws:iam::{ACCOUNT}:role/gpu-fleet-guest-dev-{role}",
            {"aws:PrincipalAccount": ACCOUNT, "aws:SecureTransport": "true"} | context,
        )
        way = [endpoint.inputs["policy"] for endpoint in endpoints] if action.startswith("s3:") else []
        own = [policies[f"gpu-fleet-guest-dev-{role}"]]
        verdict = iam.decide(request, own, [], way, resource_must_allow=False)
        return verdict is iam.Verdict.ALLOWED


def with_foreign_buckets() -> Guest:
    made_by_hand()
    before = somebody_elses()
    return Guest(run(using()), before, somebody_elses())


@pytest.fixture
def guest() -> Iterator[Guest]:
    with conditions_left_out(), standing("with foreign buckets", REGION, with_foreign_buckets) as made:
        yield made


def test_an_up_declares_and_changes_nothing_of_the_buckets(guest):
    named = [
        resource.name
        for resource in guest.rehearsed.resources
        if set(BUCKETS) & {resource.inputs.get("bucket")}
    ]

    assert named == []
    assert guest.after == guest.before


@pytest.mark.parametrize("role", ["instance", "user"])
def test_a_pool_reads_the_named_buckets_through_the_networks_way_to_s3(role, guest):
    assert guest.may("s3:ListBucket", "arn:aws:s3:::lab-datasets", role)
    assert guest.may("s3:GetObject", "arn:aws:s3:::lab-datasets/shard-0000", role)


def test_its_users_alone_write_and_only_where_the_stack_file_says_so(guest):
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert guest.may(action, "arn:aws:s3:::lab-results/run/1", "user")
        assert not guest.may(action, "arn:aws:s3:::lab-results/run/1")
        assert not guest.may(action, "arn:aws:s3:::lab-datasets/shard-0000", "user")


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("s3:GetObject", "arn:aws:s3:::lab-datasets-private/1"),
        ("s3:ListBucket", "arn:aws:s3:::lab"),
        ("s3:PutBucketPolicy", "arn:aws:s3:::lab-results"),
        ("s3:DeleteBucket", "arn:aws:s3:::lab-results"),
        ("s3:PutLifecycleConfiguration", "arn:aws:s3:::lab-results"),
    ],
)
def test_an_instance_may_do_nothing_else_there_nor_in_a_bucket_of_like_name(action, resource, guest):
    assert not guest.may(action, resource)


def test_the_buckets_key_is_used_through_s3_alone(guest):
    assert guest.may("kms:Decrypt", KEY, **{"kms:ViaService": f"s3.{REGION}.amazonaws.com"})
    assert not guest.may("kms:Decrypt", KEY, **{"kms:ViaService": f"ec2.{REGION}.amazonaws.com"})
    assert not guest.may("kms:Decrypt", KEY)
    assert not guest.may("kms:ScheduleKeyDeletion", KEY)


def described(template: dict[str, Any]) -> dict[str, Any]:
    """``instance.toml`` as the registered user data writes it."""
    files = yaml.safe_load(base64.b64decode(template["userData"]))["write_files"]
    (text,) = [file["content"] for file in files if file["path"] == instance_file.PATH]
    return tomllib.loads(text)


def test_the_registered_user_data_names_the_buckets_for_their_mounts(guest):
    (template,) = guest.rehearsed.of_type("aws:ec2/launchTemplate:LaunchTemplate")

    assert described(template.inputs)["existing_bucket_uris"] == ["s3://lab-datasets", "s3://lab-results"]


def test_a_destroy_leaves_the_buckets_with_their_objects(guest):
    clients = RegionClients(REGION)
    first = destroy(guest.rehearsed.registrations, clients, DELETERS)
    for bucket in boto3.resource("s3", region_name=REGION).buckets.all():
        if bucket.name not in BUCKETS:
            bucket.object_versions.delete()
    destroy(first.left, clients, DELETERS)
    clients.pool.close()

    assert somebody_elses() == guest.before
    assert {item.name for item in boto3.resource("s3", region_name=REGION).buckets.all()} == set(BUCKETS)


def test_a_preview_names_every_bucket_in_another_region(monkeypatch, register):
    found = answering(EXISTING["vpc_id"], EXISTING["subnets"], region="eu-west-1")
    monkeypatch.setattr(monitor, "answer", found)
    with pytest.raises(of_aws.ExistingBucketError) as caught:
        register(using())

    assert str(caught.value).splitlines() == [
        f"storage.existing.buckets.{name} = '{name}': lies in eu-west-1; must lie in us-east-1"
        for name in BUCKETS
    ]


def test_a_bucket_that_is_not_there_is_reported_with_its_key(monkeypatch):
    def failing(**_: Any) -> None:
        raise Exception("invoke of aws:s3/getBucket:getBucket failed: couldn't find resource")

    monkeypatch.setattr(of_aws.aws.s3, "get_bucket", failing)
    with pytest.raises(of_aws.ExistingBucketError, match=r"buckets\.lab-results = .*couldn't find resource"):
        of_aws.look_at_buckets(using(), parent=None)


# Alibaba Cloud


def registered(monkeypatch, settings: Stack, **answers: Any) -> Rehearsed:
    vpc, vswitches = EXISTING_VSWITCHES["vpc_id"], EXISTING_VSWITCHES["subnets"]
    monkeypatch.setattr(monitor, "answer", alicloud_answering(vpc, vswitches, **answers))
    return programs.register(settings)


def test_users_read_and_write_on_alibaba_cloud_what_the_stack_file_says(monkeypatch):
    found = registered(monkeypatch, using_oss())
    (policy,) = [
        each_resource
        for each_resource in found.of_type("alicloud:ram/policy:Policy")
        if each_resource.name.endswith("dev-user")
    ]

    def may(action: str, resource: str) -> bool:
        request = iam.Request(action, resource)
        return ram.decide(request, [policy.inputs["policyDocument"]]) is iam.Verdict.ALLOWED

    oss = "acs:oss:oss-cn-shenzhen:1234567890123456"
    assert may("oss:GetObject", f"{oss}:lab-datasets/shard-0000")
    assert may("oss:PutObject", f"{oss}:lab-results/run/1")
    assert may("kms:Decrypt", OSS_KEY)
    assert not may("oss:PutObject", f"{oss}:lab-datasets/shard-0000")
    assert not may("oss:GetObject", f"{oss}:lab-datasets-private/1")
    assert not may("oss:PutBucketPolicy", f"{oss}:lab-results")


def test_the_oss_gateway_lets_writes_into_the_named_buckets_through(monkeypatch):
    (endpoint,) = programs.inputs(
        registered(monkeypatch, using_oss()), "alicloud:vpc/gatewayEndpoint:GatewayEndpoint"
    )

    def passes(resource: str) -> bool:
        request = iam.Request("oss:PutObject", f"acs:oss:oss-cn-shenzhen:1234567890123456:{resource}")
        return ram.decide(request, [], [endpoint["policyDocument"]]) is iam.Verdict.ALLOWED

    assert passes("lab-results/run/1")
    assert not passes("elsewhere/run/1")


@pytest.mark.parametrize(
    ("bucket", "wrong"),
    [
        (NO_BUCKET, "is no bucket of account 1234567890123456"),
        ({"location": "oss-cn-beijing"}, "lies in oss-cn-beijing; must lie in oss-cn-shenzhen"),
    ],
)
def test_a_preview_on_alibaba_cloud_names_every_bucket_that_is_elsewhere(bucket, wrong, monkeypatch):
    with pytest.raises(of_alicloud.ExistingBucketError) as caught:
        registered(monkeypatch, using_oss(), bucket=bucket)

    assert str(caught.value).splitlines() == [
        f"storage.existing.buckets.{name} = '{name}': {wrong}" for name in OSS_BUCKETS
    ]


def test_instances_write_into_no_bucket_that_keeps_their_objects_in_the_clear(monkeypatch):
    with pytest.raises(of_alicloud.ExistingBucketError) as caught:
        registered(monkeypatch, using_oss(), bucket={"serverSideEncryptionRule": {}})

    assert str(caught.value) == (
        "storage.existing.buckets.lab-results = 'lab-results': encrypts nothing by itself; its owner sets "
        "KMS or AES256, or write stays false"
    )


@pytest.mark.parametrize(
    ("settings", "buckets", "says"),
    [
        (
            using,
            {f"gpu-fleet-guest-data-{ACCOUNT}": {}},
            f"= 'gpu-fleet-guest-data-{ACCOUNT}': is the stack's own; leave it out",
        ),
        (
            using,
            {"lab": {"key": "alias/lab"}},
            "storage.existing.buckets.lab.key = 'alias/lab': must be the ARN of a key in us-east-1, such as "
            "arn:aws:kms:us-east-1:123456789012:key/",
        ),
        (using, {"lab": {"key": KEY.replace(REGION, "us-west-2")}}, "must be the ARN of a key in us-east-1"),
        (using_oss, {"lab": {"key": KEY}}, "must be the ARN of a key in cn-shenzhen, such as acs:kms:"),
        (
            using_oss,
            {"my.lab": {}},
            "storage.existing.buckets.my.lab = 'my.lab': a bucket of OSS has no dots",
        ),
        (using, {"Lab": {}}, "must be the name of a bucket: 3 to 63 lower case letters"),
        (using, {"lab": {"writes": True}}, "storage.existing.buckets.lab.writes = True: unknown key"),
        (using, {"lab": {"write": "yes"}}, "storage.existing.buckets.lab.write = 'yes'"),
        (using, {f"lab-{number}": {} for number in range(11)}, "must have at most 10 items"),
    ],
)
def test_a_bad_input_is_refused_with_key_value_and_what_is_allowed(settings, buckets, says):
    with pytest.raises(SettingsError) as caught:
        settings(buckets)

    assert says in str(caught.value)
