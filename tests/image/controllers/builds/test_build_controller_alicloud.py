"""The build controller on Alibaba Cloud: the function with its packed files, against answers of ECS."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from gpu_fleet_image.controllers.builds import alicloud as controller
from gpu_fleet_image.controllers.builds import build_controller as rules
from gpu_fleet_image.controllers.builds.build_controller import METRIC, token
from gpu_fleet_stacks.images.alicloud import AlicloudBuilds
from gpu_fleet_stacks.payload import image_files
from tests.stacks import alicloud_account, alicloud_examples
from tests.stacks.clouds import code_of

PACKAGES = "image/gpu_fleet_image/recipe/packages.toml"
STACK = alicloud_examples.stack(image={"id": "m-1", "base_id": "m-2", "payload": PACKAGES, "mode": "baked"})
NAME = image_files.ecs_pipeline_name(STACK)
BEGAN = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%MZ")  # as ECS writes times


class Ecs:
    """Answers by the action's name, with every call that was made."""

    def __init__(self, *executions):
        self.asked, self.executions = [], list(executions)

    def action(self, name):
        def call(**parameters):
            self.asked.append((name, parameters))
            return getattr(self, name)(parameters)

        call.__name__ = name
        return call

    def DescribeImagePipelines(self, _parameters):  # noqa: N802 - ECS's own name
        names = {"ip-x": f"{NAME}-b", "ip-1": NAME}
        pipelines = [{"ImagePipelineId": key, "Name": names[key], "CreationTime": BEGAN} for key in names]
        return {"ImagePipeline": {"ImagePipelineSet": pipelines}}

    def DescribeImagePipelineExecutions(self, parameters):  # noqa: N802 - as above
        wanted = parameters.get("ExecutionId")
        listed = [made for made in self.executions if wanted in (None, made["ExecutionId"])]
        return {"ImagePipelineExecution": {"ImagePipelineExecutionSet": listed}}

    def StartImagePipelineExecution(self, _parameters):  # noqa: N802 - as above
        return {"ExecutionId": "exec-new"}

    def started(self):
        return [parameters for name, parameters in self.asked if name == "StartImagePipelineExecution"]


def execution(status, message=""):
    return {"ExecutionId": "exec-1", "Status": status, "CreationTime": BEGAN, "Message": message}


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Run the function once with the files that the stack packs beside it; gives what it published."""

    def once(ecs):
        for path, content in code_of(STACK, "builds").items():
            if path in ("policy.json", "builds.json"):
                (tmp_path / path).write_bytes(content)
        figures = []
        monkeypatch.setenv("GPU_FLEET_POLICY_FILE", str(tmp_path / "policy.json"))
        monkeypatch.setattr(controller, "clients", lambda *_: SimpleNamespace(ecs=ecs))
        monkeypatch.setattr(controller, "credentials", lambda _environ: None)
        calls = controller.Calls(lambda: datetime.now(UTC))
        cloud = SimpleNamespace(calls=calls, heartbeats=SimpleNamespace(publish=figures.extend))
        monkeypatch.setattr(controller, "connect", lambda *_, **__: cloud)
        report = json.loads(controller.handle(b"{}", SimpleNamespace(function=SimpleNamespace(timeout=60))))
        (figure,) = figures
        assert figure.name == METRIC
        return report, figure.value

    return once


@pytest.mark.parametrize("status", ["TEST_FAILED", "PARTITION_SUCCESS", "CANCELLED"])
def test_a_build_that_failed_its_test_calls_an_operator(look, status):
    ecs = Ecs(execution(status, "check-image exited with 1"))

    report, value = look(ecs)

    assert report["problem"] == "build exec-1 failed: check-image exited with 1; nothing is promoted"
    assert value == 1
    assert ecs.started() == []


@pytest.mark.parametrize(
    ("made", "begun"),
    [
        (execution("FAILED", "OperationDenied.NoStock: ecs.c7.2xlarge"), [token("ip-1", "exec-1")]),
        (execution("SUCCESS"), []),
    ],
)
def test_a_builder_without_stock_is_tried_again_and_a_build_that_succeeded_is_no_problem(look, made, begun):
    ecs = Ecs(made)

    report, value = look(ecs)

    assert ecs.started() == [{"ImagePipelineId": "ip-1", "ClientToken": given} for given in begun]
    assert (report["problem"], value) == ("", 0)


def test_on_sunday_morning_the_build_of_the_week_is_begun(look, monkeypatch):
    due = datetime.now(UTC) - timedelta(minutes=5)
    monkeypatch.setattr(rules, "last_due", lambda _now, _zone: due)

    report, _ = look(Ecs(execution("SUCCESS")))

    assert report["action"] == "began build exec-new of the week"


def test_the_command_and_the_controller_begin_the_same_build(look):
    ecs = Ecs(execution("FAILED", "OperationDenied.NoStock"))
    look(ecs)
    account = alicloud_account.Account(
        {
            "DescribeImagePipelines": ecs.DescribeImagePipelines({}),
            "DescribeImagePipelineExecutions": ecs.DescribeImagePipelineExecutions({}),
            "StartImagePipelineExecution": {"ExecutionId": "exec-new"},
        }
    )
    with alicloud_account.serving(account) as alicloud:
        AlicloudBuilds(STACK, alicloud).start()

    (by_command,) = [parameters for name, parameters in account.asked if name.startswith("Start")]
    assert ecs.started()[0].items() <= by_command.items()
