"""The function that looks after image builds, on both clouds: what it may do, and who is notified."""

import json

import pytest

from tests.stacks import alicloud_examples, alicloud_programs
from tests.stacks.deletion_order import reached
from tests.stacks.examples import BUILDING, stack
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.ram import decide as ram_decides

ON_ALICLOUD = alicloud_examples.stack(
    image={"id": "m-1", "base_id": "m-2", "payload": "image/packages.toml", "mode": "baked"}
)
SCANNED = stack(
    image={
        "id": "ami-0123456789abcdef0",
        "base_id": BUILDING.image.base_id,
        "payload": BUILDING.image.payload,
        "mode": "baked",
        "scan": True,
    }
)
BUILDER = "arn:aws:imagebuilder:us-east-1:123456789012"
PARAMETER = "arn:aws:ssm:us-east-1:123456789012:parameter/imagebuilder/gpu-fleet-test/ami"


def policy(declared):
    (role,) = [
        resource
        for resource in declared.of_type("aws:iam/rolePolicy:RolePolicy")
        if resource.name == "gpu-fleet-test-builds"
    ]
    return role.inputs["policy"]


@pytest.mark.parametrize(
    ("action", "resource", "verdict"),
    [
        ("imagebuilder:StartImagePipelineExecution", f"{BUILDER}:image-pipeline/other", Verdict.NOT_ALLOWED),
        ("imagebuilder:DeleteImage", f"{BUILDER}:image/gpu-fleet-test-0/1.0.0/8", Verdict.NOT_ALLOWED),
        ("ssm:PutParameter", PARAMETER, Verdict.ALLOWED),
        ("ssm:PutParameter", PARAMETER.replace("test", "prod"), Verdict.NOT_ALLOWED),
        ("ec2:TerminateInstances", "arn:aws:ec2:us-east-1:123456789012:instance/i-1", Verdict.NOT_ALLOWED),
        ("iam:PassRole", "arn:aws:iam::123456789012:role/x", Verdict.NOT_ALLOWED),
    ],
)
def test_it_writes_its_stacks_parameter_and_starts_no_other_pipeline(register, action, resource, verdict):
    assert decide(Request(action, resource), identity=[policy(register(SCANNED))]) is verdict


def test_it_starts_the_pipeline_of_every_zone(register):
    declared = register(BUILDING)
    arns = [made.outputs["arn"] for made in declared.of_type("aws:imagebuilder/imagePipeline:ImagePipeline")]

    asked = [Request("imagebuilder:StartImagePipelineExecution", arn) for arn in arns]
    assert len(asked) == 2
    assert {decide(request, identity=[policy(declared)]) for request in asked} == {Verdict.ALLOWED}


def test_without_a_scan_the_pipeline_promotes_and_the_keeper_may_not(register):
    plain, scanning = register(BUILDING), register(SCANNED)
    kind = "aws:imagebuilder/distributionConfiguration:DistributionConfiguration"

    assert decide(Request("ssm:PutParameter", PARAMETER), identity=[policy(plain)]) is Verdict.NOT_ALLOWED
    (written,) = [made.inputs["distributions"][0] for made in plain.of_type(kind)]
    (unwritten,) = [made.inputs["distributions"][0] for made in scanning.of_type(kind)]
    assert written["ssmParameterConfigurations"]
    assert not unwritten.get("ssmParameterConfigurations")


def test_what_inspector_finds_is_collected_before_a_gpu_is_tried(register):
    """Image Builder's own test alone has the step that collects findings; a canary of ours alone has none."""
    pipelines = register(SCANNED).of_type("aws:imagebuilder/imagePipeline:ImagePipeline")

    for pipeline in pipelines:
        _, collecting, canary = pipeline.inputs["workflows"]
        assert collecting["workflowArn"].endswith(":aws:workflow/test/test-image/x.x.x")
        assert "canary" in canary["workflowArn"]
        assert {collecting["onFailure"], canary["onFailure"]} == {"ABORT"}


def test_operators_hear_of_a_failed_build_a_failing_keeper_and_a_silent_one(register):
    alarms = {
        made.name.removeprefix("gpu-fleet-test-builds-"): made.inputs
        for made in register(BUILDING).of_type("aws:cloudwatch/metricAlarm:MetricAlarm")
        if made.name.startswith("gpu-fleet-test-builds-")
    }

    assert set(alarms) == {"problem", "errors", "silent"}
    assert all(alarm["alarmActions"] for alarm in alarms.values())
    assert alarms["problem"]["metricName"] == "ImageBuildProblems"
    assert alarms["problem"]["comparisonOperator"] == "GreaterThanOrEqualToThreshold"
    assert alarms["silent"]["treatMissingData"] == "breaching"


def test_a_stack_that_builds_nothing_has_no_keeper(register):
    functions = register(stack()).of_type("aws:lambda/function:Function")

    assert "gpu-fleet-test-builds" not in [made.name for made in functions]


def gone_before(declared, function, pipeline):
    """Whether the keeper is gone at a destroy before any pipeline: it would begin a build that stays."""
    (keeper,) = [made for made in declared.of_type(function) if made.name == "gpu-fleet-test-builds"]
    pipelines = {made.urn for made in declared.of_type(pipeline)}
    return bool(pipelines) and pipelines <= reached(declared.registrations)[keeper.urn]


def test_at_a_destroy_the_keeper_is_gone_before_its_pipelines(register):
    declared = register(BUILDING)

    assert gone_before(
        declared, "aws:lambda/function:Function", "aws:imagebuilder/imagePipeline:ImagePipeline"
    )


def test_on_alibaba_cloud_too_it_is_gone_before_its_pipeline():
    declared = alicloud_programs.register(ON_ALICLOUD)

    assert gone_before(
        declared, "alicloud:fc/v3Function:V3Function", "alicloud:ecs/ecsImagePipeline:EcsImagePipeline"
    )


def test_on_alibaba_cloud_it_starts_one_pipeline_and_ends_nothing():
    declared = alicloud_programs.register(ON_ALICLOUD)
    (document,) = [
        made.inputs["policyDocument"]
        for made in declared.of_type("alicloud:ram/policy:Policy")
        if made.name == "gpu-fleet-test-builds"
    ]
    (pipeline,) = declared.of_type("alicloud:ecs/ecsImagePipeline:EcsImagePipeline")
    own = f"acs:ecs:{ON_ALICLOUD.region}:{ON_ALICLOUD.account_id}"

    def judged(action, resource):
        return ram_decides(Request(action, resource), identity=[document])

    assert judged("ecs:StartImagePipelineExecution", f"{own}:imagepipeline/{pipeline.id}") is Verdict.ALLOWED
    assert judged("ecs:StartImagePipelineExecution", f"{own}:imagepipeline/other") is Verdict.NOT_ALLOWED
    assert judged("ecs:DeleteInstance", f"{own}:instance/i-1") is Verdict.NOT_ALLOWED


def test_on_alibaba_cloud_contacts_hear_of_a_problem():
    declared = alicloud_programs.register(ON_ALICLOUD)
    alarms = {made.name: made.inputs for made in declared.of_type("alicloud:cms/alarm:Alarm")}

    assert alarms["gpu-fleet-test-builds-problem"]["metric"] == "ImageBuildProblems"
    assert json.loads(alarms["gpu-fleet-test-builds-errors"]["metricDimensions"])
    assert alarms["gpu-fleet-test-builds-problem"]["contactGroups"]
