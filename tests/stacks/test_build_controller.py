"""The controller of image builds, on both clouds: its rights, and its notices."""

import json

import pytest

from tests.stacks import alicloud_examples
from tests.stacks.clouds import WORDS
from tests.stacks.deletion_order import reached
from tests.stacks.examples import BUILDING, stack
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.ram import decide as ram_decides
from tests.stacks.registered import named
from tests.stacks.registrations import declared

PAYLOAD = {"payload": BUILDING.image.payload, "mode": "baked"}
ON_ALICLOUD = alicloud_examples.stack(image={"id": "m-1", "base_id": "m-2"} | PAYLOAD)
ON_AWS = {"id": "ami-0123456789abcdef0", "base_id": BUILDING.image.base_id, "scan": True}
SCANNED = stack(image=ON_AWS | PAYLOAD)
BUILDER = "arn:aws:imagebuilder:us-east-1:123456789012"
PARAMETER = "arn:aws:ssm:us-east-1:123456789012:parameter/imagebuilder/gpu-fleet-test/ami"
FUNCTIONS = ("aws:lambda/function:Function", "alicloud:fc/v3Function:V3Function")
PIPELINES = ("aws:imagebuilder/imagePipeline:ImagePipeline", "alicloud:ecs/ecsImagePipeline:EcsImagePipeline")
START = "imagebuilder:StartImagePipelineExecution"


def may(settings, action, resource):
    on_alicloud = settings is ON_ALICLOUD
    words, judge = WORDS[settings.cloud], ram_decides if on_alicloud else decide
    role = named(declared(settings), words.role_policy, "gpu-fleet-test-builds")
    return judge(Request(action, resource), identity=[role.inputs[words.document]]) is Verdict.ALLOWED


def test_it_starts_its_own_pipelines_writes_its_stacks_parameter_and_does_nothing_else():
    zones = [made.outputs["arn"] for made in declared(BUILDING).of_type(PIPELINES[0])]
    (pipeline,) = declared(ON_ALICLOUD).of_type(PIPELINES[1])
    own = f"acs:ecs:{ON_ALICLOUD.region}:{ON_ALICLOUD.account_id}"
    on_alicloud = "ecs:StartImagePipelineExecution"
    allowed = [
        *((BUILDING, START, arn) for arn in zones),
        (SCANNED, "ssm:PutParameter", PARAMETER),
        (ON_ALICLOUD, on_alicloud, f"{own}:imagepipeline/{pipeline.id}"),
    ]
    refused = [
        (SCANNED, START, f"{BUILDER}:image-pipeline/other"),
        (SCANNED, "imagebuilder:DeleteImage", f"{BUILDER}:image/gpu-fleet-test-0/1.0.0/8"),
        (SCANNED, "ssm:PutParameter", PARAMETER.replace("test", "prod")),
        (SCANNED, "ec2:TerminateInstances", "arn:aws:ec2:us-east-1:123456789012:instance/i-1"),
        (SCANNED, "iam:PassRole", "arn:aws:iam::123456789012:role/x"),
        (ON_ALICLOUD, on_alicloud, f"{own}:imagepipeline/other"),
        (ON_ALICLOUD, "ecs:DeleteInstance", f"{own}:instance/i-1"),
    ]

    assert len(zones) == 2
    assert [asked[1:] for asked in allowed if not may(*asked)] == []
    assert [asked[1:] for asked in refused if may(*asked)] == []


def test_without_a_scan_the_pipeline_promotes_and_the_controller_may_not():
    plain, scanning = declared(BUILDING), declared(SCANNED)
    kind = "aws:imagebuilder/distributionConfiguration:DistributionConfiguration"

    assert not may(BUILDING, "ssm:PutParameter", PARAMETER)
    (written,) = [made.inputs["distributions"][0] for made in plain.of_type(kind)]
    (unwritten,) = [made.inputs["distributions"][0] for made in scanning.of_type(kind)]
    assert written["ssmParameterConfigurations"]
    assert not unwritten.get("ssmParameterConfigurations")


def test_what_inspector_finds_is_collected_before_a_gpu_is_tried():
    """Only Image Builder's own test has the step that collects findings; our canary alone has none."""
    pipelines = declared(SCANNED).of_type("aws:imagebuilder/imagePipeline:ImagePipeline")

    for pipeline in pipelines:
        _, collecting, canary = pipeline.inputs["workflows"]
        assert collecting["workflowArn"].endswith(":aws:workflow/test/test-image/x.x.x")
        assert "canary" in canary["workflowArn"]
        assert {collecting["onFailure"], canary["onFailure"]} == {"ABORT"}


def test_operators_hear_of_a_failed_build_a_failing_controller_and_a_silent_one():
    alarms = {
        made.name.removeprefix("gpu-fleet-test-builds-"): made.inputs
        for made in declared(BUILDING).of_type("aws:cloudwatch/metricAlarm:MetricAlarm")
        if made.name.startswith("gpu-fleet-test-builds-")
    }

    functions = declared(stack()).of_type(FUNCTIONS[0])
    assert "gpu-fleet-test-builds" not in [made.name for made in functions]  # where nothing is built
    assert set(alarms) == {"problem", "errors", "silent"}
    assert all(alarm["alarmActions"] for alarm in alarms.values())
    assert alarms["problem"]["metricName"] == "ImageBuildProblems"
    assert alarms["problem"]["comparisonOperator"] == "GreaterThanOrEqualToThreshold"
    assert alarms["silent"]["treatMissingData"] == "breaching"


@pytest.mark.parametrize("settings", [BUILDING, ON_ALICLOUD], ids=["aws", "alicloud"])
def test_at_a_destroy_the_controller_is_gone_before_its_pipelines(settings):
    """It would begin a build that remains."""
    found = declared(settings)
    functions = [made for kind in FUNCTIONS for made in found.of_type(kind)]
    (controller,) = [made for made in functions if made.name == "gpu-fleet-test-builds"]
    pipelines = {made.urn for kind in PIPELINES for made in found.of_type(kind)}

    assert pipelines
    assert pipelines <= reached(found.registrations)[controller.urn]


def test_on_alibaba_cloud_contacts_hear_of_a_problem():
    alarms = {made.name: made.inputs for made in declared(ON_ALICLOUD).of_type("alicloud:cms/alarm:Alarm")}

    assert alarms["gpu-fleet-test-builds-problem"]["metric"] == "ImageBuildProblems"
    assert json.loads(alarms["gpu-fleet-test-builds-errors"]["metricDimensions"])
    assert alarms["gpu-fleet-test-builds-problem"]["contactGroups"]
