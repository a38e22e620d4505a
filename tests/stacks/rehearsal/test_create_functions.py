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
    role = create("aws:iam/role:Role", name="sweep", assumeRolePolicy=TRUST.replace("ec2", "lambda"))[1]
    return create(
        "aws:lambda/function:Function",
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
    seen = clients("lambda").get_function(FunctionName="sweep")
    configuration = seen["Configuration"]
    code = zip_bytes(function["code"])

    assert (configuration["Timeout"], configuration["MemorySize"]) == (300, 512)
    assert configuration["Environment"] == {"Variables": {"GPU_FLEET_TOPIC_ARN": "arn"}}
    assert seen["Concurrency"]["ReservedConcurrentExecutions"] == 1
    assert (seen["Tags"], configuration["FunctionArn"]) == (TAGS, function["arn"])
    assert configuration["CodeSha256"] == base64.b64encode(hashlib.sha256(code).digest()).decode()
    assert zipfile.ZipFile(io.BytesIO(code)).namelist() == ["policy.json"]


def test_a_function_may_be_called_by_whom_it_permits(clients, create, function):
    create(
        "aws:lambda/permission:Permission",
        statementId="schedule",
        action="lambda:InvokeFunction",
        function="sweep",
        principal="scheduler.amazonaws.com",
        sourceArn="arn:aws:scheduler:us-east-1:123456789012:schedule/default/sweep",
    )

    policy = json.loads(clients("lambda").get_policy(FunctionName="sweep")["Policy"])
    assert [statement["Sid"] for statement in policy["Statement"]] == ["schedule"]


def test_a_function_is_not_tried_again_for_ever(clients, create, function):
    create(
        "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig",
        functionName="sweep",
        maximumRetryAttempts=0,
        maximumEventAgeInSeconds=300,
        destinationConfig={"onFailure": {"destination": "arn:aws:sqs:us-east-1:123456789012:failed"}},
    )

    seen = clients("lambda").get_function_event_invoke_config(FunctionName="sweep")
    assert (seen["MaximumRetryAttempts"], seen["MaximumEventAgeInSeconds"]) == (0, 300)
    assert seen["DestinationConfig"]["OnFailure"]["Destination"].endswith(":failed")


def test_a_schedule_calls_its_target(clients, create, function, role):
    made, outputs = create(
        "aws:scheduler/schedule:Schedule",
        name="sweep",
        scheduleExpression="rate(10 minutes)",
        flexibleTimeWindow={"mode": "OFF"},
        target={
            "arn": function["arn"],
            "roleArn": role["arn"],
            "input": "{}",
            "retryPolicy": {"maximumRetryAttempts": 2, "maximumEventAgeInSeconds": 300},
        },
    )

    seen = clients("scheduler").get_schedule(Name="sweep")
    assert (made, seen["Arn"]) == ("default/sweep", outputs["arn"])
    assert (seen["ScheduleExpression"], seen["Target"]["Arn"]) == ("rate(10 minutes)", function["arn"])
    assert seen["Target"]["RetryPolicy"]["MaximumRetryAttempts"] == 2


def test_a_schedule_may_stand_in_a_group_of_its_own(clients, create, function, role):
    create("aws:scheduler/scheduleGroup:ScheduleGroup", name="mine", tags=TAGS)

    made, _ = create(
        "aws:scheduler/schedule:Schedule",
        name="sweep",
        groupName="mine",
        scheduleExpression="rate(1 hour)",
        flexibleTimeWindow={"mode": "FLEXIBLE", "maximumWindowInMinutes": 5},
        target={"arn": function["arn"], "roleArn": role["arn"]},
    )

    seen = clients("scheduler").get_schedule(Name="sweep", GroupName="mine")
    assert (made, seen["FlexibleTimeWindow"]["Mode"]) == ("mine/sweep", "FLEXIBLE")


def test_a_rule_hands_events_to_its_target(clients, create, function):
    rule, _ = create(
        "aws:cloudwatch/eventRule:EventRule",
        name="spot",
        eventPattern=json.dumps({"source": ["aws.ec2"]}),
        tags=TAGS,
    )

    create("aws:cloudwatch/eventTarget:EventTarget", rule=rule, arn=function["arn"], targetId="sweep")

    seen = clients("events").list_targets_by_rule(Rule="spot")["Targets"]
    assert [(entry["Id"], entry["Arn"]) for entry in seen] == [("sweep", function["arn"])]


def test_a_parameter_holds_its_value(clients, create):
    _, outputs = create(
        "aws:ssm/parameter:Parameter", name="/mine/image", type="String", value="ami-1", tags=TAGS
    )

    seen = clients("ssm").get_parameter(Name="/mine/image")["Parameter"]
    assert (seen["Value"], seen["ARN"], outputs["version"]) == ("ami-1", outputs["arn"], 1)
