"""Builds by EC2 Image Builder: finds the pipelines of ``gpu_fleet_stacks.aws.image`` by their names."""

import uuid
from functools import cached_property
from typing import Any

from gpu_fleet_stacks.clients.aws import Aws, clients_in
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.images.builds import Build, BuildState, Findings, still_to_do
from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.settings import ImageMode, Stack

SERVICE = "imagebuilder"
# docs.aws.amazon.com/imagebuilder/latest/APIReference/API_ImageState.html
ENDED = {
    "AVAILABLE": BuildState.DONE,
    **dict.fromkeys(("CANCELLED", "FAILED", "DEPRECATED", "DELETED", "DISABLED"), BuildState.FAILED),
}

# docs.aws.amazon.com/imagebuilder/latest/APIReference/API_ImageScanState.html, API_SeverityCounts.html
COMPLETED, SEVERITIES = "completed", ("critical", "high", "medium", "all")


class AwsBuilds:
    """A stack's pipeline; see ``gpu_fleet_stacks.images.builds.Builds``."""

    def __init__(self, stack: Stack, aws: Aws | None = None) -> None:
        self._stack = stack
        self._aws = Aws(clients_in(stack.region)) if aws is None else aws
        self._parameter = stack.image.built_parameter(stack.name)

    @cached_property
    def _pipelines(self) -> list[dict[str, Any]]:
        """The weekly pipeline, then those of the other zones."""
        zones = image_files.zones_of_builds(self._stack)
        names = [image_files.pipeline_name(self._stack, zone) for zone in zones]
        named = [{"name": "name", "values": names}]
        pipelines = self._aws.pages(
            *(SERVICE, "list_image_pipelines", "imagePipelineList"), mark="nextToken", filters=named
        )
        own = {pipeline["name"]: dict(pipeline) for pipeline in pipelines if pipeline["name"] in names}
        if names[0] not in own:
            raise StacksError(
                f"no pipeline {names[0]} in {self._stack.region}: `gpu-fleet up {self._stack.name}` first"
            )
        return [own[name] for name in names if name in own]

    @property
    def _pipeline(self) -> dict[str, Any]:
        return self._pipelines[0]

    def check(self) -> None:
        """Check that the recipe's description names the payload of this gpu-fleet."""
        pipeline = self._pipeline
        recipe = self._ask("get_image_recipe", imageRecipeArn=pipeline["imageRecipeArn"])["imageRecipe"]
        wanted = image_files.recipe(self._stack).sha256
        if wanted not in recipe.get("description", ""):
            raise StacksError(
                f"the pipeline builds another recipe than this gpu-fleet's (sha256 {wanted[:12]}...): "
                f"`gpu-fleet up {self._stack.name}` first"
            )

    def history(self) -> list[Build]:
        """Return the builds of the current recipe: their ARNs hold its name and version."""
        recipe = self._pipeline["imageRecipeArn"].rpartition(":image-recipe/")[2]
        return [build for build in self._all() if f":image/{recipe}/" in build.id]

    def made(self) -> list[Build]:
        """Return the finished builds of every recipe: all recipes share the pipelines."""
        return [build for build in self._all() if build.state is BuildState.DONE and build.image_id]

    def _all(self) -> list[Build]:
        builds = [build for place in range(len(self._pipelines)) for build in self._of(place)]
        return sorted(builds, key=lambda build: build.created, reverse=True)

    def _of(self, place: int) -> list[Build]:
        summaries = self._aws.pages(
            *(SERVICE, "list_image_pipeline_images", "imageSummaryList"),
            mark="nextToken",
            imagePipelineArn=self._pipelines[place]["arn"],
        )
        return list(map(self._build, summaries))

    def start(self, after: Build | None = None) -> Build:
        """Start a build; two callers that start one after the same build get the same build.

        The client token is derived from the newest build.
        """
        newest, place = next(iter(self._all()), None), 0
        if after is not None:
            newest, place = after, (self._place(after) + 1) % len(self._pipelines)
        arn = self._pipelines[place]["arn"]
        answer = self._ask(
            "start_image_pipeline_execution",
            imagePipelineArn=arn,
            clientToken=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{arn} after {newest.id if newest else ''}")),
        )
        return Build(answer["imageBuildVersionArn"], BuildState.RUNNING, "pending")

    def _place(self, build: Build) -> int:
        places = range(len(self._pipelines))
        return next((at for at in places if build.id in {made.id for made in self._of(at)}), 0)

    def look(self, build: Build) -> Build:
        """Read the build again; a failed one also names the step that failed."""
        image = self._ask("get_image", imageBuildVersionArn=build.id)["image"]
        now = self._build(image)
        if now.state is not BuildState.FAILED:
            return now
        said = [now.reason, *self._failed_steps(build.id)]
        return Build(now.id, now.state, now.phase, now.image_id, now.created, "; ".join(filter(None, said)))

    def promoted(self) -> str:
        """Return the parameter's image; the pipeline writes it after the image has passed its tests."""
        answer = self._ask_ssm("get_parameters", Names=[self._parameter])
        return str(next((parameter["Value"] for parameter in answer["Parameters"]), ""))

    def promote(self, image_id: str) -> None:
        """Write the parameter; instances read it at each launch."""
        if image_id != self.promoted():
            self._ask_ssm(
                "put_parameter",
                Name=self._parameter,
                Value=image_id,
                Type="String",
                DataType="aws:ec2:image",
                Overwrite=True,
            )

    def findings(self, build: Build) -> Findings:
        """Return Amazon Inspector's findings, which Image Builder copied while it tested the build."""
        if not self._stack.image.scan:
            raise StacksError(
                f"{self._stack.name}: image.scan = false: true keeps Amazon Inspector's findings"
            )
        image = self._ask("get_image", imageBuildVersionArn=build.id)["image"]
        status = image.get("scanState", {}).get("status", "PENDING").lower()
        if status != COMPLETED:
            return Findings(status)
        of_build = {"name": "imageBuildVersionArn", "values": [build.id]}
        aggregated = self._ask("list_image_scan_finding_aggregations", filter=of_build)["responses"]
        counts = {
            severity: sum(
                part.get("imageAggregation", {}).get("severityCounts", {}).get(severity, 0)
                for part in aggregated
            )
            for severity in SEVERITIES
        }
        critical = {"name": "severity", "values": ["CRITICAL"]}
        findings = self._aws.pages(
            *(SERVICE, "list_image_scan_findings", "findings"), mark="nextToken", filters=[of_build, critical]
        )
        return Findings(status, counts, tuple(map(_line, findings)))

    def left(self, image_id: str) -> str:
        """Return which image is promoted where this one is not, or what to write into the stack file."""
        promoted = self.promoted()
        if image_id != promoted:
            return f"{promoted or 'no image'} is promoted; --again builds a new one"
        image = self._stack.image
        own = image.parameter == self._parameter and image.mode is ImageMode.BAKED
        if image.follows_builds or own:
            return ""
        return still_to_do(self._stack.name, f"parameter: {self._parameter}")

    def _build(self, image: dict[str, Any]) -> Build:
        status = image["state"]["status"]
        amis = image.get("outputResources", {}).get("amis", [])
        own = [ami["image"] for ami in amis if ami.get("region") == self._stack.region and ami.get("image")]
        return Build(
            image["arn"],
            ENDED.get(status, BuildState.RUNNING),
            status.lower(),
            own[0] if own else "",
            image.get("dateCreated", ""),
            image["state"].get("reason", ""),
        )

    def _failed_steps(self, build_id: str) -> list[str]:
        """Return ``phase: step: message`` of each step that failed, and the path of its log."""
        runs = self._ask("list_workflow_executions", imageBuildVersionArn=build_id)["workflowExecutions"]
        failed = [
            f"{run['type'].lower()}: {step['name']}: {step.get('message', step['status'])}"
            for run in runs
            if run["status"] == "FAILED"
            for step in self._ask(
                "list_workflow_step_executions", workflowExecutionId=run["workflowExecutionId"]
            )["steps"]
            if step["status"] == "FAILED"
        ]
        log = self._stack.bucket_name("records")
        return [*failed, f"its log: s3://{log}/image-logs/"]

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._aws.ask(SERVICE, operation, **arguments)

    def _ask_ssm(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._aws.ask("ssm", operation, **arguments)


def _line(finding: dict[str, Any]) -> str:
    """Format a finding: ``CVE-... in openssl 3.0.13, fix available: YES``."""
    details = finding.get("packageVulnerabilityDetails", {})
    packages = ", ".join(
        f"{package.get('name')} {package.get('version')}" for package in details.get("vulnerablePackages", ())
    )
    named = details.get("vulnerabilityId") or finding.get("title", "unnamed")
    fix = finding.get("fixAvailable", "unknown")
    return f"{named} in {packages or 'unnamed packages'}, fix available: {fix}"
