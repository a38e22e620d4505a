"""Access logs of the stack's buckets: their place, their writers, and their retention."""

import json
from typing import Any

import pytest

from gpu_fleet_stacks.crossguard import encryption_rules
from gpu_fleet_stacks.crossguard.model import Profile, Resource
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from tests.stacks import alicloud_examples, examples, iam
from tests.stacks.registrations import declared, stood

ACCOUNT = "123456789012"
LOGGING = "Logging:BucketLogging"
KINDS = ("data", "checkpoints", "records")
LOGS = f"gpu-fleet-logged-access-logs-{ACCOUNT}"
BUCKET = "alicloud:oss/bucket:Bucket"


def settings(**logs: Any):
    return examples.stack("logged", logs={"bucket_access": True} | logs)


def own(kind: str) -> str:
    return f"gpu-fleet-logged-{kind}-{ACCOUNT}"


@pytest.fixture(scope="module")
def logged() -> Rehearsed:
    """Return a stack with such logs, registered in moto."""
    return stood(settings(retention_days=400))


def of_bucket(found: Rehearsed, kind: str, bucket: str = LOGS) -> list[dict[str, Any]]:
    """Return the inputs of a bucket's settings of a kind."""
    token = f"aws:s3/{kind[0].lower()}{kind[1:]}:{kind}"
    return [made.inputs for made in found.of_type(token) if made.inputs["bucket"] == bucket]


def test_every_bucket_writes_below_its_own_prefix_and_the_logs_log_nothing(logged):
    for kind in KINDS:
        (written,) = of_bucket(logged, "BucketLogging", own(kind))
        assert (written["targetBucket"], written["targetPrefix"]) == (LOGS, f"{kind}/")
    assert of_bucket(logged, "BucketLogging") == []


def test_the_logs_are_private_under_keys_of_s3_and_go_when_the_setting_says(logged):
    (encryption,) = of_bucket(logged, "BucketServerSideEncryptionConfiguration")
    (public,) = of_bucket(logged, "BucketPublicAccessBlock")
    (lifecycle,) = of_bucket(logged, "BucketLifecycleConfiguration")

    (rule,) = encryption["rules"]
    assert rule["applyServerSideEncryptionByDefault"] == {"sseAlgorithm": "AES256"}
    assert {value for key, value in public.items() if key != "bucket"} == {True}
    assert [rule["expiration"]["days"] for rule in lifecycle["rules"]] == [400]


def may(logged: Rehearsed, principal: str, action: str, **context: str) -> bool:
    """Judge by the policy of the logs' bucket alone."""
    (bucket,) = of_bucket(logged, "BucketPolicy")
    secure = {"aws:SecureTransport": "true"}
    request = iam.Request(action, f"arn:aws:s3:::{LOGS}/data/2026", principal, secure | context)
    return iam.decide(request, [], [bucket["policy"]], [], resource_must_allow=True) is iam.Verdict.ALLOWED


DELIVERY = "logging.s3.amazonaws.com"
OF_DATA = {"aws:SourceArn": f"arn:aws:s3:::{own('data')}", "aws:SourceAccount": ACCOUNT}


def test_s3_alone_delivers_for_the_buckets_of_the_stack_alone(logged):
    refused = [
        (DELIVERY, "s3:PutObject", OF_DATA | {"aws:SourceArn": "arn:aws:s3:::somebody-elses"}),
        (DELIVERY, "s3:PutObject", OF_DATA | {"aws:SourceAccount": "210987654321"}),
        (DELIVERY, "s3:PutObject", OF_DATA | {"aws:SecureTransport": "false"}),
        (DELIVERY, "s3:GetObject", OF_DATA),
        ("delivery.logs.amazonaws.com", "s3:PutObject", OF_DATA),
        (f"arn:aws:iam::{ACCOUNT}:role/gpu-fleet-logged-dev-instance", "s3:PutObject", OF_DATA),
    ]

    assert may(logged, DELIVERY, "s3:PutObject", **OF_DATA)
    assert [request for request in refused if may(logged, *request[:2], **request[2])] == []


def test_instances_have_no_right_on_the_logs(logged):
    policies = [made.inputs["policy"] for made in logged.of_type("aws:iam/rolePolicy:RolePolicy")]

    assert policies
    assert [policy for policy in policies if LOGS in policy] == []


def test_a_bucket_is_logged_once_the_policy_stands_by_which_s3_delivers(logged):
    policies, logging = (logged.of_type(f"aws:s3/bucket{kind}") for kind in ("Policy:BucketPolicy", LOGGING))
    (policy,) = [each for each in policies if each.inputs["bucket"] == LOGS]

    assert logging
    assert all(policy.urn in part.dependencies for part in logging)


def test_without_the_setting_there_is_no_such_bucket():
    found = declared(examples.stack("logged"))

    assert found.of_type("aws:s3/bucketLogging:BucketLogging") == ()
    assert LOGS not in {bucket.inputs["bucket"] for bucket in found.of_type("aws:s3/bucket:Bucket")}


# Alibaba Cloud


def test_oss_writes_below_each_buckets_prefix_into_a_private_bucket_under_its_own_keys_behind_tls():
    logs = {"bucket_access": True, "retention_days": 400}
    found = declared(alicloud_examples.stack("logged", logs=logs))
    name = "gpu-fleet-logged-access-logs"

    def part(kind: str) -> dict[str, Any]:
        token = f"alicloud:oss/{kind[0].lower()}{kind[1:]}:{kind}"
        (inputs,) = [made.inputs for made in found.of_type(token) if made.name == name]
        return inputs

    of_logs = part("Bucket")
    writing = {made.name: made.inputs.get("logging") for made in found.of_type(BUCKET)}
    assert writing == {name: None} | {
        f"gpu-fleet-logged-{kind}": {"targetBucket": of_logs["bucket"], "targetPrefix": f"{kind}/"}
        for kind in KINDS
    }
    assert of_logs["serverSideEncryptionRule"] == {"sseAlgorithm": "AES256"}
    assert of_logs["lifecycleRules"][0]["expirations"] == [{"days": 400}]
    assert part("BucketAcl")["acl"] == "private"
    assert part("BucketPublicAccessBlock")["blockPublicAccess"]
    assert part("BucketHttpsConfig")["tlsVersions"] == ["TLSv1.2", "TLSv1.3"]
    (statement,) = json.loads(part("BucketPolicy")["policy"])["Statement"]
    denied = (statement["Effect"], statement["Condition"])
    assert denied == ("Deny", {"Bool": {"acs:SecureTransport": ["false"]}})


# the rule of the policy pack that knows the exception


def of_s3(algorithm: str, logged: bool) -> list[Resource]:
    """Return a bucket with or without a cloud's key, as a target of another's logs or not."""
    kind = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    rule = {"applyServerSideEncryptionByDefault": {"sseAlgorithm": algorithm}}
    target = {"bucket": "data", "targetBucket": "logs" if logged else "elsewhere"}
    return [
        Resource("aws:s3/bucket:Bucket", "logs", {"bucket": "logs"}),
        Resource(kind, "logs", {"bucket": "logs", "rules": [rule]}),
        Resource("aws:s3/bucketLogging:BucketLogging", "data", target),
    ]


def test_the_policy_pack_lets_keys_of_s3_stand_for_logs_alone():
    refused = {("AES256", True): False, ("AES256", False): True, ("none", True): True}

    profile = Profile(regions=())

    found = {case: any(encryption_rules.buckets(of_s3(*case), profile)) for case in refused}

    assert found == refused


@pytest.fixture(scope="module")
def trailed() -> Rehearsed:
    """Return a stack with CloudTrail, registered in moto."""
    return stood(examples.stack(logs={"bucket_access": True, "data_events": True}))


TRAIL = "aws:cloudtrail/trail:Trail"


def test_cloudtrail_delivers_every_call_for_an_object_of_the_stack_to_the_bucket_of_logs(trailed):
    (trail,) = [made.inputs for made in trailed.of_type(TRAIL)]
    (chosen,) = trail["advancedEventSelectors"]
    fields = {each["field"]: each for each in chosen["fieldSelectors"]}

    assert trail.get("enableLogging", True)
    assert trail["s3BucketName"] == f"gpu-fleet-test-access-logs-{ACCOUNT}"
    assert trail["enableLogFileValidation"]
    assert fields["eventCategory"]["equals"] == ["Data"]
    objects = [f"arn:aws:s3:::gpu-fleet-test-{kind}-{ACCOUNT}/" for kind in KINDS]
    assert fields["resources.ARN"]["startsWiths"] == objects


def test_the_bucket_of_logs_takes_files_of_the_stacks_own_trail_alone(trailed):
    (trail,) = trailed.of_type(TRAIL)
    (bucket,) = of_bucket(trailed, "BucketPolicy", f"gpu-fleet-test-access-logs-{ACCOUNT}")
    said = {each["Sid"]: each for each in json.loads(bucket["policy"])["Statement"]}

    assert said["TrailDelivers"]["Condition"]["StringEquals"]["aws:SourceArn"] == trail.outputs["arn"]
    assert said["TrailDelivers"]["Resource"].endswith(f"/cloudtrail/AWSLogs/{ACCOUNT}/*")
    assert said["TrailLooks"]["Action"] == ["s3:GetBucketAcl"]


def test_data_events_without_a_place_for_them_are_refused():
    elsewhere = alicloud_examples.stack_file(logs={"bucket_access": True, "data_events": True})

    alone = examples.refusal(examples.stack_file(logs={"data_events": True}))
    assert "needs the bucket that logs.bucket_access" in alone
    assert "is only for CloudTrail on AWS" in examples.refusal(elsewhere)
