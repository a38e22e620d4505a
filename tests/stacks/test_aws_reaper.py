"""The sweep as a stack declares it: what it may do, what it runs, what wakes somebody up."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import boto3
import pytest
from hypothesis import HealthCheck, given, settings

from image.reaper import policy as policies
from image.reaper.place import POLICY_KEY
from stacks.aws.reaper import bundle
from stacks.aws.reaper_role import LICENCES, MARKS
from stacks.payload import sweep_archive
from stacks.payload.sweep_archive import policy_document
from stacks.rehearsal.archives import archive_files, zip_bytes
from stacks.rehearsal.registrations import RegistrationOutcome
from stacks.settings.reader import from_mapping
from tests.stacks import examples

HANDLER_SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[2])

class Context:
    aws_request_id = "request-1"
    def get_remaining_time_in_millis(self):
        return 120_000

from image.reaper.sweep.handler import handle
summary = handle({}, Context())
print(json.dumps({"summary": summary, "modules": sorted(sys.modules)}))
"""


def role_statements(shipped) -> list[dict]:
    policies_of_roles = shipped.of_type("aws:iam/rolePolicy:RolePolicy")
    (own,) = [role for role in policies_of_roles if role.name.endswith("-reaper")]
    return json.loads(own.inputs["policy"])["Statement"]


def allowing(shipped, action: str) -> list[dict]:
    return [
        statement
        for statement in role_statements(shipped)
        if statement["Effect"] == "Allow" and action in statement["Action"]
    ]


@pytest.mark.parametrize("action", ["ec2:TerminateInstances", "ec2:StopInstances"])
def test_the_sweep_terminates_only_managed_instances_of_its_stack(shipped, action):
    (statement,) = allowing(shipped, action)

    assert statement["Condition"]["StringEquals"] == {
        "aws:ResourceTag/gpu-fleet:managed": "true",
        "aws:ResourceTag/gpu-fleet:stack": shipped.settings.name,
    }


def test_the_sweep_changes_only_groups_of_its_stack(shipped):
    (statement,) = allowing(shipped, "autoscaling:DetachInstances")

    assert statement["Resource"].endswith(f"autoScalingGroupName/gpu-fleet-{shipped.settings.name}-*")
    tags = statement["Condition"]["StringEquals"]
    assert tags == {"aws:ResourceTag/gpu-fleet:stack": shipped.settings.name}


def test_the_sweep_writes_its_own_marks_and_no_other_tags(shipped):
    (statement,) = allowing(shipped, "ec2:CreateTags")

    assert set(statement["Condition"]["ForAllValues:StringEquals"]["aws:TagKeys"]) == set(MARKS)
    # an empty set of keys would satisfy ForAllValues
    assert statement["Condition"]["Null"] == {"aws:TagKeys": "false"}


def test_the_sweep_is_denied_to_touch_what_licenses_or_protects(shipped):
    denials = {
        statement["Sid"]: statement for statement in role_statements(shipped) if statement["Effect"] == "Deny"
    }

    assert set(denials["NeverLicences"]["Condition"]["ForAnyValue:StringEquals"]["aws:TagKeys"]) == set(
        LICENCES
    )
    protected = denials["NeverProtected"]
    assert protected["Condition"] == {"Null": {"aws:ResourceTag/gpu-fleet:protected": "false"}}
    assert {"ec2:TerminateInstances", "ec2:StopInstances"} <= set(protected["Action"])
    assert denials["NeverAttributes"]["Action"] == ["ec2:ModifyInstanceAttribute"]


def test_the_sweep_may_remove_leftovers_only_where_the_settings_say_so(shipped):
    assert shipped.settings.reaper.leftovers.remove is False
    assert allowing(shipped, "ec2:DeleteVolume") == []


def test_one_sweep_at_a_time_without_retries(shipped):
    functions = shipped.of_type("aws:lambda/function:Function")
    invocations = shipped.of_type("aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig")
    (function,) = [each_function for each_function in functions if each_function.name.endswith("-reaper")]
    (invocation,) = [
        each_invocation for each_invocation in invocations if each_invocation.name.endswith("-reaper")
    ]

    assert function.inputs["reservedConcurrentExecutions"] == 1
    assert function.inputs["architectures"] == ["arm64"]
    assert function.inputs["runtime"] == "python3.12"
    assert invocation.inputs["maximumRetryAttempts"] == 0


def test_users_find_the_policy_of_the_sweep_under_the_stacks_own_key(shipped):
    objects = shipped.of_type("aws:s3/bucketObjectv2:BucketObjectv2")
    (stored,) = [stored_object for stored_object in objects if stored_object.name.endswith("-reaper-policy")]
    text = stored.inputs["content"]

    assert stored.outcome is RegistrationOutcome.CREATED
    assert stored.inputs["bucket"] == shipped.settings.bucket_name("records")
    assert stored.inputs["key"] == POLICY_KEY
    assert text == archive_files(bundle(shipped.settings))["policy.json"].decode()
    assert text == shipped.rehearsed.outputs["policy"]
    assert policies.parse(text).stack == shipped.settings.name
    assert stored.inputs["serverSideEncryption"] == "aws:kms"
    assert stored.inputs["kmsKeyId"] == shipped.rehearsed.outputs["key_arn"]


def test_the_schedule_follows_the_settings(shipped):
    found = shipped.client("scheduler").get_schedule(Name=f"gpu-fleet-{shipped.settings.name}-reaper")

    assert found["ScheduleExpression"] == f"rate({shipped.settings.reaper.every_minutes} minutes)"
    assert found["State"] == "ENABLED"


@pytest.mark.parametrize(
    ("label", "metric"),
    [("errors", "Errors"), ("failures", "SweepFailures"), ("breaker", "SweepBreakerTrips")],
)
def test_a_user_hears_of_a_sweep_that_fails_or_holds_back(shipped, label, metric):
    name = f"gpu-fleet-{shipped.settings.name}-reaper-{label}"
    (alarm,) = shipped.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]

    assert alarm["MetricName"] == metric
    assert alarm["Threshold"] == 1
    assert alarm["AlarmActions"] == [shipped.rehearsed.outputs["topic_arn"]]


def test_a_user_hears_of_half_an_hour_without_a_sweep(shipped):
    name = f"gpu-fleet-{shipped.settings.name}-reaper-silent"
    (alarm,) = shipped.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]

    assert alarm["Period"] == 1800
    assert alarm["TreatMissingData"] == "breaching"
    assert alarm["ComparisonOperator"] == "LessThanThreshold"


def test_the_log_is_kept_and_encrypted(shipped):
    name = f"/aws/lambda/gpu-fleet-{shipped.settings.name}-reaper"
    (group,) = shipped.client("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]

    assert group["retentionInDays"] == shipped.settings.logs.retention_days
    assert group["kmsKeyId"] == shipped.rehearsed.outputs["key_arn"]


def test_the_policy_names_an_alarm_that_the_stack_declares(shipped):
    named = {pool["scale_in_alarm"] for pool in policy_document(shipped.settings)["pools"].values()} - {None}

    declared = shipped.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert named <= {alarm["AlarmName"] for alarm in declared}
    assert named, "every shipped stack has a pool that scales"


@given(content=examples.stack_files())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_the_policy_of_any_valid_settings_is_a_valid_policy(content):
    document = policy_document(from_mapping("any", content))

    parsed = policies.parse(json.dumps(document))
    assert set(parsed.pools) == {pool["name"] for pool in content["pools"]}


def test_the_policy_carries_what_users_wrote_and_the_catalogs_price():
    span = {"start": "19:00", "end": "07:00"}
    idle = {"after_hours": 8, "grace_minutes": 15, "quiet_hours": [span], "quiet_weekends": True}
    stack = examples.stack(pools=[examples.pool(idle=idle)], reaper={"time_zone": "Europe/Berlin"})

    document = policy_document(stack)

    pool = document["pools"]["dev"]
    assert document["time_zone"] == "Europe/Berlin"
    assert (pool["idle_after_hours"], pool["grace_minutes"]) == (8, 15)
    assert pool["quiet_hours"] == [span]
    assert pool["require_acknowledgement"] is True
    assert pool["hourly_price"] == {"g5.xlarge": "1.006"}
    assert pool["scale_in_alarm"] == "gpu-fleet-test-dev-cpu-low"


def test_a_price_of_another_region_is_not_claimed():
    network = {"cidr": "10.0.0.0/16", "zones": ["eu-central-1a"]}
    stack = examples.stack(region="eu-central-1", network=network)

    assert policy_document(stack)["pools"]["dev"]["hourly_price"] == {"g5.xlarge": None}


def test_only_an_hour_on_demand_has_a_known_price():
    pools = [examples.pool(), examples.pool(name="cheap", market="spot")]

    prices = {
        name: pool["hourly_price"]
        for name, pool in policy_document(examples.stack(pools=pools))["pools"].items()
    }

    assert prices == {"dev": {"g5.xlarge": "1.006"}, "cheap": {"g5.xlarge": None}}


@pytest.mark.parametrize(
    ("changed", "is_new"),
    [
        ("reaper/agent/judge.py", True),
        ("reaper/agent/sensors/gpu.py", True),
        ("reaper/aws/agent.py", True),
        ("reaper/sweep/verdict.py", False),
        ("reaper/README.md", False),
    ],
)
def test_the_policy_names_another_release_of_the_agent_where_its_sources_differ(
    tmp_path, monkeypatch, changed, is_new
):
    release = sweep_archive.agents_release("aws")
    shutil.copytree(sweep_archive.ROOT / "image", tmp_path / "image")
    monkeypatch.setattr(sweep_archive, "ROOT", tmp_path)

    with (tmp_path / "image" / changed).open("a") as file:
        file.write("# more\n")

    assert (sweep_archive.agents_release.__wrapped__("aws") != release) is is_new


def test_the_archive_is_the_same_for_the_same_settings():
    assert zip_bytes(bundle(examples.stack())) == zip_bytes(bundle(examples.stack()))


def test_the_archive_holds_the_sweep_and_nothing_of_the_agent():
    names = set(archive_files(bundle(examples.stack())))

    assert {"policy.json", "image/reaper/sweep/handler.py", "image/reaper/sweep/verdict.py"} <= names
    assert not names & {
        "image/reaper/agent/loop.py",
        "image/console/cli.py",
        "image/reaper/agent/sensors/gpu.py",
    }


def test_the_very_archive_sweeps_in_a_fresh_interpreter_with_boto3_alone(prod, tmp_path):
    """What Pulumi would upload, unzipped: no click, no rich, no psutil, nothing of this checkout."""
    with zipfile.ZipFile(BytesIO(zip_bytes(bundle(prod.settings)))) as archive:
        archive.extractall(tmp_path / "code")
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six.py"):
        (libraries / name).symlink_to(Path(boto3.__file__).parents[1] / name)
    records = prod.rehearsed.outputs["bucket_uris"]["records"]
    # moto holds denials of a bucket policy without their conditions, so that nobody could write at all
    prod.client("s3").delete_bucket_policy(Bucket=records.removeprefix("s3://"))
    environment = {
        **{key: value for key, value in os.environ.items() if key.startswith("AWS_")},
        "GPU_FLEET_LEDGER_URI": f"{records}/reaper",
        "GPU_FLEET_TOPIC_ARN": prod.rehearsed.outputs["topic_arn"],
    }

    command = [sys.executable, "-I", "-S", "-c", HANDLER_SCRIPT, str(tmp_path / "code"), str(libraries)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["summary"]["failed"] == []
    assert not {"click", "rich", "psutil", "pynvml", "pulumi"} & set(last["modules"])


def test_the_modules_of_the_bundle_are_found_by_their_imports():
    assert "image/reaper/sweep/verdict.py" in sweep_archive.modules()
    assert sweep_archive.modules("image.reaper.errors") == (
        "image/__init__.py",
        "image/instance/__init__.py",
        "image/instance/errors.py",
        "image/reaper/__init__.py",
        "image/reaper/errors.py",
    )
