"""Builds by an ECS image pipeline, and the controller in Function Compute, which also starts them."""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from gpu_fleet_image.controllers.builds.build_controller import (
    METRIC,
    NO_ROOM,
    PLAN_FILE,
    BuildFailure,
    BuildsPlan,
    BuildStage,
    Cause,
    PipelineBuild,
    Promoted,
    Report,
    load,
    log,
    reconcile,
    token,
)
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import connect, policy_file
from gpu_fleet_image.core.metrics import Figure
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import parse_time
from gpu_fleet_image.providers.alicloud.connect import credentials
from gpu_fleet_image.providers.alicloud.session import ENDPOINT, Product, clients

RESERVE = timedelta(seconds=15)
# ECS, API DescribeImagePipelineExecutions: Status
STATES = {
    "SUCCESS": BuildStage.DONE,
    **dict.fromkeys(("FAILED", "TEST_FAILED", "PARTITION_SUCCESS", "CANCELLED"), BuildStage.FAILED),
}
NEWEST = 100  # executions in one call; another payload has another pipeline


class ImagePipeline:
    """See ``Pipelines``. Launch templates hold an image id, so only ``up`` promotes an image."""

    def __init__(self, ecs: Product, calls: Calls, plan: BuildsPlan) -> None:
        self._ecs, self._calls, self._plan = ecs, calls, plan

    @cached_property
    def _pipeline(self) -> Mapping[str, Any]:
        (name,) = self._plan.pipelines
        page = self._calls.read(self._ecs.action("DescribeImagePipelines"), Name=name)
        for pipeline in page["ImagePipeline"]["ImagePipelineSet"]:
            if pipeline.get("Name") == name:
                return dict(pipeline)
        raise CloudError(f"no pipeline {name}")

    def declared(self) -> datetime:
        """See ``Pipelines``."""
        return parse_time(self._pipeline["CreationTime"])

    def history(self) -> Sequence[PipelineBuild]:
        """See ``Pipelines``."""
        builds = [
            PipelineBuild(
                execution["ExecutionId"],
                STATES.get(execution["Status"], BuildStage.RUNNING),
                parse_time(execution["CreationTime"]),
                execution.get("ImageId", ""),
            )
            for execution in self._executions(
                ImagePipelineId=self._pipeline["ImagePipelineId"], MaxResults=NEWEST
            )
        ]
        return sorted(builds, key=lambda build: build.began, reverse=True)

    def failure(self, build: PipelineBuild) -> BuildFailure:
        """See ``Pipelines``; the execution's message gives the cause."""
        (execution,) = self._executions(ExecutionId=build.id)
        reason = execution.get("Message") or execution["Status"].lower()
        if NO_ROOM.search(reason):
            return BuildFailure(Cause.NO_ROOM, reason)
        building = execution["Status"] == "FAILED"
        return BuildFailure(Cause.BUILDING if building else Cause.TESTING, reason)

    def start(self, place: int, after: str) -> str:  # noqa: ARG002 - one pipeline, in one zone
        """See ``Pipelines``."""
        pipeline = str(self._pipeline["ImagePipelineId"])
        answer = self._calls.change(
            self._ecs.action("StartImagePipelineExecution"),
            ImagePipelineId=pipeline,
            ClientToken=token(pipeline, after),
        )
        return str(answer["ExecutionId"])

    def promoted(self) -> Promoted:
        """See ``Pipelines``; return nothing: only an ``up`` promotes an image here."""
        return Promoted("", None)

    def promote(self, image_id: str) -> None:
        """Do nothing."""

    def unfit(self, build: PipelineBuild) -> str:  # noqa: ARG002 - this cloud does not scan
        """See ``Pipelines``; return an empty text: this cloud scans no images."""
        return ""

    def _executions(self, **which: Any) -> list[Mapping[str, Any]]:
        page = self._calls.read(self._ecs.action("DescribeImagePipelineExecutions"), **which)
        return list(page["ImagePipelineExecution"]["ImagePipelineExecutionSet"])


def handle(event: bytes, context: Any) -> str:  # noqa: ARG001 - every event starts the same pass
    """Run one pass as a function, whatever the event; errors as in ``run``."""
    return json.dumps(log(run(datetime.now(UTC) + timedelta(seconds=context.function.timeout))))


def run(ends_at: datetime) -> Report:
    """Run one pass.

    Raises:
        ReaperError: the cloud gave no answer; the function counts it as an error, which raises an alarm.
    """
    policy, plan = policies.load(policy_file()), load(policy_file().with_name(PLAN_FILE))
    cloud = connect(policy, lambda: datetime.now(UTC), deadline=ends_at - RESERVE)
    own = clients(policy.region, credentials(os.environ), os.environ.get(ENDPOINT, ""))
    report = reconcile(ImagePipeline(own.ecs, cloud.calls, plan), plan, policy.time_zone, datetime.now(UTC))
    cloud.heartbeats.publish([Figure(METRIC, float(bool(report.problem)))])
    return report
