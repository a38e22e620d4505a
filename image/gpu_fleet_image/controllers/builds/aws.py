"""Builds by EC2 Image Builder, and the controller's Lambda function."""

from collections.abc import Iterator, Mapping, Sequence
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
from gpu_fleet_image.providers.aws.session import client

RESERVE = timedelta(seconds=15)
# docs.aws.amazon.com/imagebuilder/latest/APIReference/API_ImageState.html; images that were retired later
# (DEPRECATED, DISABLED, DELETED) show nothing about builds.
STATES = {"AVAILABLE": BuildStage.DONE, "FAILED": BuildStage.FAILED, "CANCELLED": BuildStage.FAILED}
_RETIRED = frozenset({"DEPRECATED", "DISABLED", "DELETED"})
COMPLETED = "COMPLETED"  # API_ImageScanState.html


class ImageBuilder:
    """See ``Pipelines``."""

    def __init__(self, imagebuilder: Any, ssm: Any, calls: Calls, plan: BuildsPlan) -> None:
        self._imagebuilder, self._ssm = imagebuilder, ssm
        self._calls, self._plan = calls, plan

    @cached_property
    def _pipelines(self) -> list[Mapping[str, Any]]:
        wanted = [{"name": "name", "values": list(self._plan.pipelines)}]
        listed = self._pages(self._imagebuilder.list_image_pipelines, "imagePipelineList", filters=wanted)
        known = {pipeline["name"]: pipeline for pipeline in listed}
        if self._plan.pipelines[0] not in known:
            raise CloudError(f"no pipeline {self._plan.pipelines[0]}")
        return [known[name] for name in self._plan.pipelines if name in known]

    def declared(self) -> datetime:
        """See ``Pipelines``."""
        return parse_time(self._pipelines[0]["dateCreated"])

    def history(self) -> Sequence[PipelineBuild]:
        """See ``Pipelines``."""
        builds = [
            _build(image, place)
            for place, pipeline in enumerate(self._pipelines)
            for image in self._pages(
                self._imagebuilder.list_image_pipeline_images,
                "imageSummaryList",
                imagePipelineArn=pipeline["arn"],
            )
            if image["state"]["status"] not in _RETIRED
        ]
        return sorted(builds, key=lambda build: build.began, reverse=True)

    def failure(self, build: PipelineBuild) -> BuildFailure:
        """See ``Pipelines``; the failed steps give the cause."""
        image = self._calls.read(self._imagebuilder.get_image, imageBuildVersionArn=build.id)["image"]
        runs = self._pages(
            self._imagebuilder.list_workflow_executions, "workflowExecutions", imageBuildVersionArn=build.id
        )
        failed = [run for run in runs if run["status"] == "FAILED"]
        steps = [
            f"{run['type'].lower()}: {step['name']}: {step.get('message', step['status'])}"
            for run in failed
            for step in self._pages(
                self._imagebuilder.list_workflow_step_executions,
                "steps",
                workflowExecutionId=run["workflowExecutionId"],
            )
            if step["status"] == "FAILED"
        ]
        state = image["state"]
        reason = "; ".join(filter(None, (state.get("reason", ""), *steps))) or state["status"].lower()
        if NO_ROOM.search(reason):
            return BuildFailure(Cause.NO_ROOM, reason)
        # a build that an operator cancelled, or that failed a test, is not started again automatically
        building = state["status"] == "FAILED" and all(run["type"] == "BUILD" for run in failed)
        return BuildFailure(Cause.BUILDING if building else Cause.TESTING, reason)

    def start(self, place: int, after: str) -> str:
        """See ``Pipelines``."""
        arn = self._pipelines[place % len(self._pipelines)]["arn"]
        answer = self._calls.change(
            self._imagebuilder.start_image_pipeline_execution,
            imagePipelineArn=arn,
            clientToken=token(arn, after),
        )
        return str(answer["imageBuildVersionArn"])

    def promoted(self) -> Promoted:
        """See ``Pipelines``; the parameter names the image."""
        answer = self._calls.read(self._ssm.get_parameters, Names=[self._plan.parameter])
        for parameter in answer["Parameters"]:
            return Promoted(parameter["Value"], parameter.get("LastModifiedDate"))
        return Promoted("", None)

    def promote(self, image_id: str) -> None:
        """See ``Pipelines``; instances read the parameter at each launch."""
        self._calls.change(
            self._ssm.put_parameter,
            Name=self._plan.parameter,
            Value=image_id,
            Type="String",
            DataType="aws:ec2:image",
            Overwrite=True,
        )

    def unfit(self, build: PipelineBuild) -> str:
        """See ``Pipelines``; Image Builder copied Amazon Inspector's findings while it tested."""
        image = self._calls.read(self._imagebuilder.get_image, imageBuildVersionArn=build.id)["image"]
        status = image.get("scanState", {}).get("status", "PENDING")
        if status != COMPLETED:
            return f"its scan is {status.lower()}, nothing is known of its vulnerabilities"
        counted = self._pages(
            self._imagebuilder.list_image_scan_finding_aggregations,
            "responses",
            filter={"name": "imageBuildVersionArn", "values": [build.id]},
        )
        critical = sum(
            part.get("imageAggregation", {}).get("severityCounts", {}).get("critical", 0) for part in counted
        )
        return (
            f"{critical} critical vulnerabilities (`gpu-fleet image scan {self._plan.stack}`)"
            if critical
            else ""
        )

    def _pages(self, method: Any, items: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        while True:
            page = self._calls.read(method, **arguments)
            yield from page.get(items, ())
            if not page.get("nextToken"):
                return
            arguments["nextToken"] = page["nextToken"]


def _build(image: Mapping[str, Any], place: int) -> PipelineBuild:
    made = image.get("outputResources", {}).get("amis", [])
    return PipelineBuild(
        image["arn"],
        STATES.get(image["state"]["status"], BuildStage.RUNNING),
        parse_time(image["dateCreated"]),
        next((ami["image"] for ami in made if ami.get("image")), ""),
        place,
        image.get("buildType") == "SCHEDULED",
    )


def handle(event: object, context: Any) -> Mapping[str, str]:  # noqa: ARG001 - every event starts the same pass
    """Run one pass as a Lambda function, whatever the event.

    Raises:
        ReaperError: the cloud gave no answer; Lambda counts it as an error, which raises an alarm.
    """
    remaining = timedelta(milliseconds=context.get_remaining_time_in_millis())
    return log(run(datetime.now(UTC) + remaining))


def run(ends_at: datetime) -> Report:
    """Run one pass."""
    policy, plan = policies.load(policy_file()), load(policy_file().with_name(PLAN_FILE))
    cloud = connect(policy, lambda: datetime.now(UTC), deadline=ends_at - RESERVE)
    imagebuilder, ssm = client("imagebuilder", policy.region), client("ssm", policy.region)
    own = ImageBuilder(imagebuilder, ssm, cloud.calls, plan)
    report = reconcile(own, plan, policy.time_zone, datetime.now(UTC))
    cloud.heartbeats.publish([Figure(METRIC, float(bool(report.problem)))])
    return report
