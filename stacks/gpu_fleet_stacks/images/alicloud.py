"""Builds by ECS image pipelines: finds the pipeline of ``gpu_fleet_stacks.alicloud.image`` by its name."""

import uuid
from typing import Any

from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.images.builds import Build, BuildState, Findings, still_to_do
from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.settings import ImageMode, Stack

# www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeimagepipelineexecutions
ENDED = {
    "SUCCESS": BuildState.DONE,
    **dict.fromkeys(("FAILED", "TEST_FAILED", "PARTITION_SUCCESS", "CANCELLED"), BuildState.FAILED),
}

PAGE_SIZE = 100  # the largest page of DescribeImages


class AlicloudBuilds:
    """A stack's pipeline; see ``gpu_fleet_stacks.images.builds.Builds``."""

    def __init__(self, stack: Stack, alicloud: Alicloud | None = None) -> None:
        self._stack = stack
        self._alicloud = Alicloud(stack.region) if alicloud is None else alicloud

    def check(self) -> None:
        """Check that the pipeline exists: its name holds the hash of its payload."""
        self._pipeline()

    def history(self) -> list[Build]:
        """Return the builds of this payload, the newest first: another payload has another pipeline."""
        answer = self._ask("DescribeImagePipelineExecutions", ImagePipelineId=self._pipeline())
        builds = [
            _build(execution)
            for execution in listed(answer, "ImagePipelineExecution", "ImagePipelineExecutionSet")
        ]
        return sorted(builds, key=lambda build: build.created, reverse=True)

    def made(self) -> list[Build]:
        """Return builds by the images' names: a replaced pipeline is deleted with its list of builds."""
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
        """Start a build; two callers that start one after the same build get the same build.

        The client token is derived from the newest build.
        """
        pipeline, newest = self._pipeline(), after or next(iter(self.history()), None)
        said = f"{pipeline} after {newest.id if newest else ''}"
        answer = self._ask(
            "StartImagePipelineExecution",
            ImagePipelineId=pipeline,
            ClientToken=str(uuid.uuid5(uuid.NAMESPACE_URL, said)),
        )
        return Build(answer["ExecutionId"], BuildState.RUNNING, "preparing")

    def look(self, build: Build) -> Build:
        """Read the build again by its id."""
        answer = self._ask("DescribeImagePipelineExecutions", ExecutionId=build.id)
        executions = listed(answer, "ImagePipelineExecution", "ImagePipelineExecutionSet")
        if not executions:
            raise StacksError(f"build {build.id} is gone: its pipeline was deleted")
        return _build(executions[0])

    def promoted(self) -> str:
        """Return the image of the stack file, or the newest build where the stack follows its builds."""
        if not self._stack.image.follows_builds:
            return str(self._stack.image.id)
        return next((build.image_id for build in self.made()), "")

    def promote(self, image_id: str) -> None:
        """Do nothing: launch templates hold an image id, which an ``up`` changes."""

    def findings(self, build: Build) -> Findings:
        """Raise ``StacksError``: this cloud scans no images."""
        raise StacksError(
            f"{build.image_id}: no scanner of the cloud looks at images here: have one read "
            "/usr/share/gpu-fleet/sbom.cdx.json of an instance"
        )

    def left(self, image_id: str) -> str:
        """Return what to write into the stack file; where the stack follows its builds, to run ``up``."""
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
                f"no pipeline {name}, which would build this gpu-fleet's recipe: "
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
