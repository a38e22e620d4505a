"""What the function, schedule, rule and parameter creators leave in moto, read with boto3."""

import base64
import hashlib
import io
import json
import zipfile

import pulumi
import pytest

from gpu_fleet_stacks.rehearsal.archives import zip_bytes
from tests.stacks.rehearsal.examples import TAGS, TRUST


@pytest.fixture
def function(create):
    _, role = create("iam/role", name="sweep", assumeRolePolicy=TRUST.replace("ec2", "lambda"))
    return create(
        "lambda/function",
        name="sweep",
        role=role["arn"],
        runtime="python3.12",
        handler="gpu_fleet_image.controllers.sweep.handler.handle",
        code=pulumi.AssetArchive({"policy.json": pulumi.StringAsset("{}")}),
        timeout=300,
        memorySize=512,
        architectures=["arm64"],
        reservedConcurrentExecutions=1,
        environment={"variables": {"GPU_FLEET_TOPIC_ARN": "arn"}},
        tags=TAGS,
    )[1]


def test_a_function_has_its_settings_and_its_code(clients, function):
    found = clients("lambda").get_function(FunctionName="sweep")
    configuration, code = found["Configuration"], zip_bytes(function["code"])

    assert (configuration["Timeout"], configuration["MemorySize"]) == (300, 512)
    assert configuration["Environment"] == {"Variables": {"GPU_FLEET_TOPIC_ARN": "arn"}}
    assert found["Concurrency"]["ReservedConcurrentExecutions"] == 1
    assert (found["Tags"], configuration["FunctionArn"]) == (TAGS, function["arn"])
    assert configuration["CodeSha256"] == base64.b64encode(hashlib.sha256(code).digest()).decode()
    assert zipfile.ZipFile(io.BytesIO(code)).namelist() == ["policy.json"]


def test_a_function_may_be_called_by_whom_it_permits(clients, create, function):
    schedule = "arn:aws:scheduler:us-east-1:123456789012:schedule/default/sweep"
    who = {"principal": "scheduler.amazonaws.com", "sourceArn": schedule, "statementId": "schedule"}

    create("lambda/permission", action="lambda:InvokeFunction", function="sweep", **who)

    policy = json.loads(clients("lambda").get_policy(FunctionName="sweep")["Policy"])
    assert [statement["Sid"] for statement in policy["Statement"]] == ["schedule"]


def test_a_function_is_not_tried_again_for_ever(clients, create, function):
    failed = {"onFailure": {"destination": "arn:aws:sqs:us-east-1:123456789012:failed"}}
    limits = {"maximumRetryAttempts": 0, "maximumEventAgeInSeconds": 300}

    create("lambda/functionEventInvokeConfig", functionName="sweep", destinationConfig=failed, **limits)

    found = clients("lambda").get_function_event_invoke_config(FunctionName="sweep")
    assert (found["MaximumRetryAttempts"], found["MaximumEventAgeInSeconds"]) == (0, 300)
    assert found["DestinationConfig"]["OnFailure"]["Destination"].endswith(":failed")


def test_a_schedule_calls_its_target(clients, create, function, role):
    target = {"arn": function["arn"], "roleArn": role["arn"], "input": "{}"}
    target["retryPolicy"] = {"maximumRetryAttempts": 2, "maximumEventAgeInSeconds": 300}
    when = {"scheduleExpression": "rate(10 minutes)", "flexibleTimeWindow": {"mode": "OFF"}}

    made, outputs = create("scheduler/schedule", name="sweep", target=target, **when)

    found = clients("scheduler").get_schedule(Name="sweep")
    assert (made, found["Arn"]) == ("default/sweep", outputs["arn"])
    assert (found["ScheduleExpression"], found["Target"]["Arn"]) == ("rate(10 minutes)", function["arn"])
    assert found["Target"]["RetryPolicy"]["MaximumRetryAttempts"] == 2


def test_a_schedule_may_stand_in_a_group_of_its_own(clients, create, function, role):
    create("scheduler/scheduleGroup", name="mine", tags=TAGS)
    window = {"mode": "FLEXIBLE", "maximumWindowInMinutes": 5}
    when = {"scheduleExpression": "rate(1 hour)", "flexibleTimeWindow": window}
    target = {"arn": function["arn"], "roleArn": role["arn"]}

    made, _ = create("scheduler/schedule", name="sweep", groupName="mine", target=target, **when)

    found = clients("scheduler").get_schedule(Name="sweep", GroupName="mine")
    assert (made, found["FlexibleTimeWindow"]["Mode"]) == ("mine/sweep", "FLEXIBLE")


def test_a_rule_hands_events_to_its_target(create, seen, function):
    pattern = json.dumps({"source": ["aws.ec2"]})
    rule, _ = create("cloudwatch/eventRule", name="spot", eventPattern=pattern, tags=TAGS)

    create("cloudwatch/eventTarget", rule=rule, arn=function["arn"], targetId="sweep")

    entry = seen("events", "list_targets_by_rule", Rule="spot")
    assert (entry["Id"], entry["Arn"]) == ("sweep", function["arn"])


def test_a_parameter_holds_its_value(clients, create):
    _, outputs = create("ssm/parameter", name="/mine/image", type="String", value="ami-1", tags=TAGS)

    found = clients("ssm").get_parameter(Name="/mine/image")["Parameter"]
    assert (found["Value"], found["ARN"], outputs["version"]) == ("ami-1", outputs["arn"], 1)
