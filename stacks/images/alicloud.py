"""Builds by ECS image pipelines: the one that ``stacks.alicloud.image`` declares, by its name there."""

import uuid
from typing import Any

from stacks.calls.alicloud import Alicloud, listed
from stacks.errors import StacksError
from stacks.images.builds import Build, BuildState, Findings, still_to_do
from stacks.payload import image_files
from stacks.settings import ImageMode, Stack

# www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeimagepipelineexecutions
ENDED = {
    "SUCCESS": BuildState.DONE,
    **dict.fromkeys(("FAILED", "TEST_FAILED", "PARTITION_SUCCESS", "CANCELLED"), BuildState.FAILED),
}

PAGE_SIZE = 100  # the most that DescribeImages gives at once


class AlicloudBuilds:
    """A stack's pipeline; see ``stacks.images.builds.Builds``.

    Args:
        alicloud: asks the account.
    """

    def __init__(self, stack: Stack, alicloud: Alicloud | None = None) -> None:
        self._stack = stack
        self._alicloud = Alicloud(stack.region) if alicloud is None else alicloud

    def check(self) -> None:
        """Its name holds the hash of the payload that it runs."""
        self._pipeline()

    def history(self) -> list[Build]:
        """Another payload is another pipeline."""
        answer = self._ask("DescribeImagePipelineExecutions", ImagePipelineId=self._pipeline())
        builds = [
            _build(execution)
            for execution in listed(answer, "ImagePipelineExecution", "ImagePipelineExecutionSet")
        ]
        return sorted(builds, key=lambda build: build.created, reverse=True)

    def made(self) -> list[Build]:
        """Images by their names, since a pipeline goes with its payload and takes its builds along."""
        prefix = image_files.built_name(self._stack)
        own = self._alicloud.numbered(
            "ecs",
            "DescribeImages",
            "Images",
            "Image",
            size=PAGE_SIZE,
            RegionId=self._stack.region,
            ImageOwnerAlias="self",
        )
        images = [image for image in own if image["ImageName"].startswith(prefix)]
        done = [
            Build(image["ImageId"], BuildState.DONE, "", image["ImageId"], image["CreationTime"])
            for image in images
        ]
        return sorted(done, key=lambda build: build.created, reverse=True)

    def start(self, after: Build | None = None) -> Build:
        """By a token that follows from the newest build: two that begin one at once begin the same."""
        pipeline, newest = self._pipeline(), after or next(iter(self.history()), None)
        said = f"{pipeline} after {newest.id if newest else ''}"
        answer = self._ask(
            "StartImagePipelineExecution",
            ImagePipelineId=pipeline,
            ClientToken=str(uuid.uuid5(uuid.NAMESPACE_URL, said)),
        )
        return Build(answer["ExecutionId"], BuildState.RUNNING, "preparing")

    def look(self, build: Build) -> Build:
        """By its own id."""
        answer = self._ask("DescribeImagePipelineExecutions", ExecutionId=build.id)
        executions = listed(answer, "ImagePipelineExecution", "ImagePipelineExecutionSet")
        if not executions:
            raise StacksError(f"build {build.id} is gone: its pipeline was deleted")
        return _build(executions[0])

    def promoted(self) -> str:
        """What the stack file names, or the newest build where it follows them: templates hold an id."""
        if not self._stack.image.follows_builds:
            return str(self._stack.image.id)
        return next((build.image_id for build in self.made()), "")

    def promote(self, image_id: str) -> None:
        """Nothing: launch templates hold an id, which an ``up`` changes."""

    def findings(self, build: Build) -> Findings:
        """Nobody scans here."""
        raise StacksError(
            f"{build.image_id}: no scanner of the cloud looks at images here: have one read "
            "/usr/share/gpu-fleet/sbom.cdx.json of an instance"
        )

    def left(self, image_id: str) -> str:
        """What to write into the stack file; where it follows its builds, an ``up`` for the newest."""
        image = self._stack.image
        if image.follows_builds and image_id == self.promoted():
            return f"instances boot it once `gpu-fleet up {self._stack.name}` has run"
        if image_id == image.id and image.mode is ImageMode.BAKED:
            return ""
        return still_to_do(self._stack.name, f"id: {image_id}")

    def _pipeline(self) -> str:
        name = image_files.ecs_pipeline_name(self._stack)
        pipelines = listed(
            self._ask("DescribeImagePipelines", Name=name), "ImagePipeline", "ImagePipelineSet"
        )
        ids = [pipeline["ImagePipelineId"] for pipeline in pipelines if pipeline.get("Name") == name]
        if not ids:
            raise StacksError(
                f"no pipeline {name}, which would build this checkout's recipe: "
                f"`gpu-fleet up {self._stack.name}` first"
            )
        return str(ids[0])

    def _ask(self, action: str, **parameters: str) -> dict[str, Any]:
        return self._alicloud.ask("ecs", action, RegionId=self._stack.region, **parameters)


def _build(execution: dict[str, Any]) -> Build:
    status = execution["Status"]
    return Build(
        execution["ExecutionId"],
        ENDED.get(status, BuildState.RUNNING),
        status.lower(),
        execution.get("ImageId", ""),
        execution.get("CreationTime", ""),
        execution.get("Message", "") if status != "SUCCESS" else "",
    )
