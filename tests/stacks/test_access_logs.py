"""Who asked what of the stack's buckets: where it is written, who may write it, and how long it stays."""

import json
from dataclasses import dataclass
from typing import Any

import boto3
import pytest

from stacks.aws.stack import build
from stacks.crossguard import encryption_rules
from stacks.crossguard.model import Profile, Resource
from stacks.errors import SettingsError
from stacks.rehearsal.bucket_policies import conditions_left_out
from stacks.rehearsal.moto_server import moto_server
from stacks.rehearsal.program import Rehearsed, run_program
from stacks.settings.reader import from_mapping
from tests.stacks import alicloud_examples, examples, iam
from tests.stacks.registrations import declared

REGION, ACCOUNT = "us-east-1", "123456789012"
KINDS = ("data", "checkpoints", "records")
LOGS = f"gpu-fleet-logged-access-logs-{ACCOUNT}"
BUCKET = "alicloud:oss/bucket:Bucket"


def settings(**logs: Any):
    return examples.stack("logged", logs={"bucket_access": True} | logs)


def own(kind: str) -> str:
    return f"gpu-fleet-logged-{kind}-{ACCOUNT}"


@dataclass(frozen=True)
class Logged:
    """A stack in moto, and what S3 says of its buckets."""

    rehearsed: Rehearsed
    targets: dict[str, Any]
    of_logs: dict[str, Any]


@pytest.fixture(scope="module")
def logged() -> Logged:
    with moto_server(REGION), conditions_left_out():
        rehearsed = run_program("logged", program=lambda: build(settings(retention_days=400)), config={})
        s3 = boto3.client("s3", region_name=REGION)
        targets = {kind: s3.get_bucket_logging(Bucket=own(kind)).get("LoggingEnabled") for kind in KINDS}
        encryption = s3.get_bucket_encryption(Bucket=LOGS)["ServerSideEncryptionConfiguration"]["Rules"]
        of_logs = {
            "logging": s3.get_bucket_logging(Bucket=LOGS).get("LoggingEnabled"),
            "encryption": encryption[0]["ApplyServerSideEncryptionByDefault"],
            "public": s3.get_public_access_block(Bucket=LOGS)["PublicAccessBlockConfiguration"],
            "rules": s3.get_bucket_lifecycle_configuration(Bucket=LOGS)["Rules"],
        }
        return Logged(rehearsed, targets, of_logs)


def test_every_bucket_writes_below_its_own_prefix_and_the_logs_log_nothing(logged):
    assert logged.targets == {kind: {"TargetBucket": LOGS, "TargetPrefix": f"{kind}/"} for kind in KINDS}
    assert logged.of_logs["logging"] is None


def test_the_logs_are_private_under_keys_of_s3_and_go_when_the_setting_says(logged):
    (rule,) = logged.of_logs["rules"]

    assert logged.of_logs["encryption"] == {"SSEAlgorithm": "AES256"}
    assert set(logged.of_logs["public"].values()) == {True}
    assert rule["Expiration"]["Days"] == 400


def may(logged: Logged, principal: str, action: str, **context: str) -> bool:
    """By the policy of the logs' bucket alone."""
    (policy,) = [
        part.inputs["policy"]
        for part in logged.rehearsed.of_type("aws:s3/bucketPolicy:BucketPolicy")
        if part.inputs["bucket"] == LOGS
    ]
    request = iam.Request(
        action, f"arn:aws:s3:::{LOGS}/data/2026", principal, {"aws:SecureTransport": "true"} | context
    )
    return iam.decide(request, [], [policy], [], resource_must_allow=True) is iam.Verdict.ALLOWED


DELIVERY = "logging.s3.amazonaws.com"
OF_DATA = {"aws:SourceArn": f"arn:aws:s3:::{own('data')}", "aws:SourceAccount": ACCOUNT}


def test_s3_delivers_for_the_buckets_of_the_stack(logged):
    assert may(logged, DELIVERY, "s3:PutObject", **OF_DATA)


def test_nothing_else_is_let_in_by_the_policy(logged):
    refused = [
        (DELIVERY, "s3:PutObject", OF_DATA | {"aws:SourceArn": "arn:aws:s3:::somebody-elses"}),
        (DELIVERY, "s3:PutObject", OF_DATA | {"aws:SourceAccount": "210987654321"}),
        (DELIVERY, "s3:PutObject", OF_DATA | {"aws:SecureTransport": "false"}),
        (DELIVERY, "s3:GetObject", OF_DATA),
        ("delivery.logs.amazonaws.com", "s3:PutObject", OF_DATA),
        (f"arn:aws:iam::{ACCOUNT}:role/gpu-fleet-logged-dev-instance", "s3:PutObject", OF_DATA),
    ]

    assert [request for request in refused if may(logged, *request[:2], **request[2])] == []


def test_instances_have_no_right_on_the_logs(logged):
    for policy in logged.rehearsed.of_type("aws:iam/rolePolicy:RolePolicy"):
        assert LOGS not in policy.inputs["policy"]


def test_a_bucket_is_logged_once_the_policy_stands_by_which_s3_delivers(logged):
    (policy,) = [
        part
        for part in logged.rehearsed.of_type("aws:s3/bucketPolicy:BucketPolicy")
        if part.inputs["bucket"] == LOGS
    ]

    for part in logged.rehearsed.of_type("aws:s3/bucketLogging:BucketLogging"):
        assert policy.urn in part.dependencies


def test_without_the_setting_there_is_no_such_bucket():
    found = declared(examples.stack("logged"))

    assert found.of_type("aws:s3/bucketLogging:BucketLogging") == ()
    assert LOGS not in {bucket.inputs["bucket"] for bucket in found.of_type("aws:s3/bucket:Bucket")}


# Alibaba Cloud


def on_alibaba_cloud() -> dict[str, Any]:
    """Each bucket's inputs, by its kind."""
    made = alicloud_examples.stack("logged", logs={"bucket_access": True, "retention_days": 400})
    found = declared(made)
    return {bucket.name.removeprefix("gpu-fleet-logged-"): bucket.inputs for bucket in found.of_type(BUCKET)}


def test_oss_writes_below_each_buckets_prefix_into_a_private_bucket_under_its_own_keys():
    found = on_alibaba_cloud()
    logs = found.pop("access-logs")

    assert {kind: bucket["logging"] for kind, bucket in found.items()} == {
        kind: {"targetBucket": logs["bucket"], "targetPrefix": f"{kind}/"} for kind in KINDS
    }
    assert "logging" not in logs
    assert logs["serverSideEncryptionRule"] == {"sseAlgorithm": "AES256"}
    assert logs["lifecycleRules"][0]["expirations"] == [{"days": 400}]


def test_the_logs_on_oss_are_neither_public_nor_reached_without_tls():
    found = declared(alicloud_examples.stack("logged", logs={"bucket_access": True}))

    def part(kind: str) -> dict[str, Any]:
        (inputs,) = [
            item.inputs for item in found.of_type(kind) if item.name == "gpu-fleet-logged-access-logs"
        ]
        return inputs

    policy = json.loads(part("alicloud:oss/bucketPolicy:BucketPolicy")["policy"])

    assert part("alicloud:oss/bucketAcl:BucketAcl")["acl"] == "private"
    assert part("alicloud:oss/bucketPublicAccessBlock:BucketPublicAccessBlock")["blockPublicAccess"]
    assert part("alicloud:oss/bucketHttpsConfig:BucketHttpsConfig")["tlsVersions"] == ["TLSv1.2", "TLSv1.3"]
    (statement,) = policy["Statement"]
    assert (statement["Effect"], statement["Condition"]) == (
        "Deny",
        {"Bool": {"acs:SecureTransport": ["false"]}},
    )


# the rule of the policy pack that knows the exception


def of_s3(algorithm: str, *, logged: bool) -> list[Resource]:
    """A bucket under a cloud's key or none, which takes another's logs or does not."""
    kind = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    rule = {"applyServerSideEncryptionByDefault": {"sseAlgorithm": algorithm}}
    target = {"bucket": "data", "targetBucket": "logs" if logged else "elsewhere"}
    return [
        Resource("aws:s3/bucket:Bucket", "logs", {"bucket": "logs"}),
        Resource(kind, "logs", {"bucket": "logs", "rules": [rule]}),
        Resource("aws:s3/bucketLogging:BucketLogging", "data", target),
    ]


@pytest.mark.parametrize(
    ("algorithm", "logged", "refused"),
    [("AES256", True, False), ("AES256", False, True), ("none", True, True)],
)
def test_the_policy_pack_lets_keys_of_s3_stand_for_logs_alone(algorithm, logged, refused):
    found = list(encryption_rules.buckets(of_s3(algorithm, logged=logged), Profile(regions=())))

    assert bool(found) is refused


@pytest.fixture(scope="module")
def trail():
    """A stack with CloudTrail, in moto: what it registered, and what CloudTrail says."""
    settings = examples.stack(logs={"bucket_access": True, "data_events": True})
    with moto_server(settings.region):
        made = run_program(settings.name, program=lambda: build(settings), config={})
        client = boto3.client("cloudtrail", settings.region)
        (described,) = client.describe_trails()["trailList"]
        chosen = client.get_event_selectors(TrailName=described["Name"])["AdvancedEventSelectors"]
        logging = client.get_trail_status(Name=described["Name"])["IsLogging"]
    return made, described, chosen, logging


def test_cloudtrail_delivers_every_call_for_an_object_of_the_stack_to_the_bucket_of_logs(trail):
    _, described, (chosen,), logging = trail
    fields = {each["Field"]: each for each in chosen["FieldSelectors"]}

    assert logging
    assert described["S3BucketName"] == "gpu-fleet-test-access-logs-123456789012"
    assert described["LogFileValidationEnabled"]
    assert fields["eventCategory"]["Equals"] == ["Data"]
    assert fields["resources.ARN"]["StartsWith"] == [
        f"arn:aws:s3:::gpu-fleet-test-{kind}-123456789012/" for kind in ("data", "checkpoints", "records")
    ]


def test_the_bucket_of_logs_takes_files_of_the_stacks_own_trail_alone(trail):
    made, described, _, _ = trail
    (policy,) = [
        json.loads(each.inputs["policy"])
        for each in made.of_type("aws:s3/bucketPolicy:BucketPolicy")
        if each.name.endswith("access-logs")
    ]
    said = {each["Sid"]: each for each in policy["Statement"]}

    assert said["TrailDelivers"]["Condition"]["StringEquals"]["aws:SourceArn"] == described["TrailARN"]
    assert said["TrailDelivers"]["Resource"].endswith("/cloudtrail/AWSLogs/123456789012/*")
    assert said["TrailLooks"]["Action"] == ["s3:GetBucketAcl"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (examples.stack_file(logs={"data_events": True}), "needs the bucket that logs.bucket_access"),
        (
            alicloud_examples.stack_file(logs={"bucket_access": True, "data_events": True}),
            "is of CloudTrail on AWS",
        ),
    ],
    ids=["no bucket", "another cloud"],
)
def test_data_events_without_a_place_for_them_are_refused(content, message):
    with pytest.raises(SettingsError, match=message):
        from_mapping("test", content)
