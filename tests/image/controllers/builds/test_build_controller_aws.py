"""The controller on AWS: its function as the stack packs it, against answers of the real API's shapes."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from gpu_fleet_image.controllers.builds import aws as controller
from gpu_fleet_image.controllers.builds.build_controller import METRIC, token
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.providers.aws import connect as connecting
from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.images.aws import AwsBuilds
from tests.stacks import aws_account
from tests.stacks.clouds import code_of
from tests.stacks.examples import BUILDING, stack

PIPELINES = "arn:aws:imagebuilder:us-east-1:123456789012:image-pipeline/"
IMAGE = "arn:aws:imagebuilder:us-east-1:123456789012:image/gpu-fleet-test-0/1.0.0/{}"
HOME, ELSEWHERE = f"{PIPELINES}gpu-fleet-test", f"{PIPELINES}gpu-fleet-test-us-east-1b"
RECIPE = "arn:aws:imagebuilder:us-east-1:123456789012:image-recipe/gpu-fleet-test-0/1.0.0"
AMI = "ami-{:017x}"
RUN = "wf-00000000-0000-0000-0000-000000000000"
IMAGE_KEYS = {"base_id": BUILDING.image.base_id, "payload": BUILDING.image.payload, "mode": "baked"}
IMAGE_KEYS |= {"parameter": "/imagebuilder/gpu-fleet-test/ami", "bundled": True, "scan": True}
SCANNED = stack(image=IMAGE_KEYS)


def ago(**time):
    return format_time(datetime.now(UTC) - timedelta(**time))


def made(number, status, began, **more):
    amis = [{"region": "us-east-1", "image": AMI.format(number)}] if status == "AVAILABLE" else []
    known = {"arn": IMAGE.format(number), "state": {"status": status}, "outputResources": {"amis": amis}}
    return known | {"dateCreated": began} | more


def account(*images, failed="", phase="TEST", scan="COMPLETED", critical=0):
    """Whose newest build failed so, or was scanned so; the other zone has built nothing."""
    parameter = {
        "Name": "/imagebuilder/gpu-fleet-test/ami",
        "Value": AMI.format(1),
        "LastModifiedDate": datetime.now(UTC) - timedelta(days=7),
    }
    listed = {"arn": ELSEWHERE, "name": "gpu-fleet-test-us-east-1b", "dateCreated": ago(days=40)}
    home = {"arn": HOME, "name": "gpu-fleet-test", "dateCreated": ago(days=40), "imageRecipeArn": RECIPE}
    newest = images[-1] | {"scanState": {"status": scan}}
    newest.pop("buildType", None)
    return aws_account.Account(
        {
            "imagebuilder:ListImagePipelines": {"imagePipelineList": [listed, home]},
            "imagebuilder:ListImagePipelineImages": lambda params: {
                "imageSummaryList": list(images) if params["imagePipelineArn"] == HOME else []
            },
            "imagebuilder:GetImage": {"image": newest},
            "imagebuilder:ListWorkflowExecutions": {
                "workflowExecutions": [{"type": phase, "status": "FAILED", "workflowExecutionId": RUN}]
            },
            "imagebuilder:ListWorkflowStepExecutions": {
                "steps": [{"name": "LaunchCanary", "status": "FAILED", "message": failed}]
            },
            "imagebuilder:ListImageScanFindingAggregations": {
                "responses": [{"imageAggregation": {"severityCounts": {"critical": critical}}}]
            },
            "imagebuilder:StartImagePipelineExecution": {"imageBuildVersionArn": IMAGE.format(99)},
            "ssm:GetParameters": {"Parameters": [parameter]},
            "ssm:PutParameter": {"Version": 2},
            "cloudwatch:PutMetricData": {},
        }
    )


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Run the function once with the files that the stack packs beside it."""

    def once(cloud, settings=SCANNED):
        for path, asset in code_of(settings, "builds").assets.items():
            if path.endswith(".json"):
                (tmp_path / path).write_text(asset.text)
        monkeypatch.setenv("GPU_FLEET_POLICY_FILE", str(tmp_path / "policy.json"))
        monkeypatch.setattr(controller, "client", lambda name, _region: cloud.client(name))
        names = ("ec2", "autoscaling", "cloudwatch", "sns", "s3")
        clients = SimpleNamespace(**{name: cloud.client(name) for name in names}, ending=None)
        monkeypatch.setattr(connecting, "clients", lambda _region: clients)
        context = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)
        return controller.handle({}, context)

    return once


def asked(cloud, operation):
    return [params for name, params in cloud.asked if name.endswith(f":{operation}")]


def published(cloud):
    (put,) = asked(cloud, "PutMetricData")
    (datum,) = put["MetricData"]
    assert (put["Namespace"], datum["MetricName"]) == ("GpuFleet/test", METRIC)
    return datum["Value"]


FULL = "InsufficientInstanceCapacity: We currently do not have sufficient g5.xlarge capacity"
RED = "check-image exited with 1"
# The newest build and its cause -> the pipeline that is begun, the image that is promoted, the problem.
NEWEST = {
    "a canary without room": ("FAILED", {"failed": FULL}, [ELSEWHERE], [], ""),
    "a red canary": ("FAILED", {"failed": RED}, [], [], f"test: LaunchCanary: {RED}; nothing is promoted"),
    "failed while it was built": ("FAILED", {"failed": "curl: (28)", "phase": "BUILD"}, [HOME], [], ""),
    "an operator cancelled it": (
        "CANCELLED",
        {"failed": "", "phase": "BUILD"},
        [],
        [],
        "nothing is promoted",
    ),
    "clean": ("AVAILABLE", {}, [], [AMI.format(8)], ""),
    "not clean": ("AVAILABLE", {"critical": 2}, [], [], "2 critical vulnerabilities"),
    "not known to be clean": ("AVAILABLE", {"scan": "PENDING"}, [], [], "its scan is pending"),
}


@pytest.mark.parametrize("case", NEWEST)
def test_what_the_newest_build_leads_to(look, case, capsys):
    status, what, begun, promoted, problem = NEWEST[case]
    cloud = account(made(8, status, ago(hours=1), buildType="SCHEDULED"), **what)

    report = look(cloud)

    assert [params["imagePipelineArn"] for params in asked(cloud, "StartImagePipelineExecution")] == begun
    assert [(one["Name"], one["Value"], one["DataType"]) for one in asked(cloud, "PutParameter")] == [
        ("/imagebuilder/gpu-fleet-test/ami", image, "aws:ec2:image") for image in promoted
    ]
    assert problem in report["problem"]
    assert published(cloud) == bool(problem) == bool(report["problem"])
    assert (what.get("failed") or "") in json.loads(capsys.readouterr().out)["text"]


def test_images_that_were_retired_say_nothing_of_how_builds_go(look):
    cloud = account(made(8, "AVAILABLE", ago(days=1)), made(9, "DEPRECATED", ago(hours=1)))
    cloud.answers["imagebuilder:GetImage"] = {
        "image": made(8, "AVAILABLE", ago(days=1)) | {"scanState": {"status": "COMPLETED"}}
    }

    assert look(cloud)["action"].startswith(f"promoted {AMI.format(8)}")


def test_without_a_pipeline_the_function_fails_so_that_its_alarm_says_so(look):
    cloud = account(made(8, "AVAILABLE", ago(hours=1)))
    cloud.answers["imagebuilder:ListImagePipelines"] = {"imagePipelineList": []}

    with pytest.raises(CloudError, match="no pipeline gpu-fleet-test"):
        look(cloud)


def test_the_command_and_the_controller_begin_the_same_build(look):
    """Both by the same token, which follows from the build before: Image Builder makes one of them."""
    cloud = account(
        made(8, "FAILED", ago(hours=1), buildType="SCHEDULED"), failed="InsufficientInstanceCapacity"
    )
    look(cloud)
    builds = AwsBuilds(SCANNED, Aws(cloud.client))
    builds.start(builds.history()[0])

    by_controller, by_command = asked(cloud, "StartImagePipelineExecution")
    assert by_controller == by_command
    assert by_controller["clientToken"] == token(ELSEWHERE, IMAGE.format(8))


def test_the_archive_has_every_module_that_the_function_imports():
    paths = code_of(SCANNED, "builds").assets

    modules = {f"gpu_fleet_image/controllers/builds/{name}.py" for name in ("aws", "build_controller")}
    assert modules | {"policy.json", "builds.json"} <= set(paths)
    assert not any("alicloud" in path or "gpu_fleet_stacks" in path for path in paths)
    pipelines = json.loads(paths["builds.json"].text)["pipelines"]
    assert pipelines == ["gpu-fleet-test", "gpu-fleet-test-us-east-1b"]
