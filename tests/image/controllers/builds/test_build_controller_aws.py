"""The controller on AWS: its function as the stack packs it, against answers of the real API's shapes."""

import io
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
SCANNED = stack(
    image={
        "parameter": "/imagebuilder/gpu-fleet-test/ami",
        "base_id": BUILDING.image.base_id,
        "payload": BUILDING.image.payload,
        "mode": "baked",
        "bundled": True,
        "scan": True,
    }
)


def ago(**time):
    return format_time(datetime.now(UTC) - timedelta(**time))


def made(number, status, began, **more):
    amis = [{"region": "us-east-1", "image": AMI.format(number)}] if status == "AVAILABLE" else []
    return {
        "arn": IMAGE.format(number),
        "state": {"status": status},
        "dateCreated": began,
        "outputResources": {"amis": amis},
        **more,
    }


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


def test_a_canary_without_room_is_built_again_in_the_next_zone(look, capsys):
    full = "InsufficientInstanceCapacity: We currently do not have sufficient g5.xlarge capacity"
    cloud = account(made(8, "FAILED", ago(hours=1), buildType="SCHEDULED"), failed=full)

    look(cloud)

    (started,) = asked(cloud, "StartImagePipelineExecution")
    assert started["imagePipelineArn"] == ELSEWHERE
    assert published(cloud) == 0
    assert "InsufficientInstanceCapacity" in json.loads(capsys.readouterr().out)["text"]


def test_a_red_canary_is_a_problem_and_nothing_is_promoted(look):
    cloud = account(
        made(8, "FAILED", ago(hours=1), buildType="SCHEDULED"), failed="check-image exited with 1"
    )

    report = look(cloud)

    assert "test: LaunchCanary: check-image exited with 1; nothing is promoted" in report["problem"]
    assert published(cloud) == 1
    assert asked(cloud, "StartImagePipelineExecution") == asked(cloud, "PutParameter") == []


def test_what_failed_while_it_was_built_is_built_once_more_but_not_what_an_operator_cancelled(look):
    failed, cancelled = (
        account(made(8, status, ago(hours=1), buildType="SCHEDULED"), failed="curl: (28)", phase="BUILD")
        for status in ("FAILED", "CANCELLED")
    )

    look(failed)

    assert "nothing is promoted" in look(cancelled)["problem"]
    (started,) = asked(failed, "StartImagePipelineExecution")
    assert started["imagePipelineArn"] == HOME
    assert asked(cancelled, "StartImagePipelineExecution") == []


def test_a_clean_build_is_promoted(look):
    cloud = account(made(8, "AVAILABLE", ago(hours=1)))

    look(cloud)

    (written,) = asked(cloud, "PutParameter")
    assert (written["Name"], written["Value"]) == ("/imagebuilder/gpu-fleet-test/ami", AMI.format(8))
    assert written["DataType"] == "aws:ec2:image"
    assert published(cloud) == 0


@pytest.mark.parametrize(
    ("scan", "critical", "says"),
    [("COMPLETED", 2, "2 critical vulnerabilities"), ("PENDING", 0, "its scan is pending")],
)
def test_a_build_that_is_not_known_to_be_clean_stays_unpromoted(look, scan, critical, says):
    cloud = account(made(8, "AVAILABLE", ago(hours=1)), scan=scan, critical=critical)

    assert says in look(cloud)["problem"]
    assert asked(cloud, "PutParameter") == []
    assert published(cloud) == 1


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

    assert {
        "gpu_fleet_image/controllers/builds/aws.py",
        "gpu_fleet_image/controllers/builds/build_controller.py",
        "policy.json",
        "builds.json",
    } <= set(paths)
    assert not any("alicloud" in path or "gpu_fleet_stacks" in path for path in paths)
    assert json.load(io.StringIO(paths["builds.json"].text))["pipelines"] == [
        "gpu-fleet-test",
        "gpu-fleet-test-us-east-1b",
    ]
