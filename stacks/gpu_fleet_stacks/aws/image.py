"""Image of the instances, built by the cloud: EC2 Image Builder runs the recipe's payload on Ubuntu 24.04."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import first_image, image_roles, policies
from gpu_fleet_stacks.aws.image_documents import canary_content, component_content, tests_content
from gpu_fleet_stacks.aws.launch import ROOT_DEVICE, VOLUME_THROUGHPUT_MB_PER_S
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.quantities import KEPT_IMAGE_WEEKS, VOLUME_IOPS, canary_types

# docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-launch-template.html: read at each launch
RESOLVED = "resolve:ssm:"
# A build needs no GPU: the driver's modules are precompiled for the base image's kernel.
BUILDER_TYPES = ("c7i.2xlarge", "c6i.2xlarge")
# Sunday, before anybody's working week; in the time zone of the stack's quiet hours.
SCHEDULE = "cron(0 3 ? * sun *)"
TEST_MINUTES = 60  # the least that the API takes; the canary's steps have limits of their own
# The last three builds are kept at any age, and so are images that started an instance within a month.
KEPT_BUILDS, KEPT_AFTER_LAUNCH_WEEKS = 3, 4


@dataclass(frozen=True)
class ImageArgs:
    """Inputs of the image.

    Attributes:
        subnet_ids: zone -> private subnet; the builder runs in the first zone.
        group_id: security group that lets the builder out and nothing in; None where nothing is built.
        records_bucket_arn: the bucket of payload, outside files and the builder's log.
        topic_arn: notified when a build has succeeded or failed.
    """

    stack: Stack
    key_arn: pulumi.Output[str]
    subnet_ids: dict[str, pulumi.Output[str]]
    group_id: pulumi.Output[str] | None
    records_bucket_arn: pulumi.Output[str]
    topic_arn: pulumi.Output[str]


class Image(pulumi.ComponentResource):
    """A weekly build where the settings name a base image.

    Attributes:
        image_id: the image in launch templates: an AMI, or ``resolve:ssm:``, which each launch reads again.
        pipeline_id: to start a build; empty where nothing is built.
        pipeline_arns: the pipelines of all zones, that one first.
        parameter: the SSM parameter to which each build writes its image's id; empty where nothing is built.
    """

    image_id: pulumi.Output[str]
    pipeline_id: pulumi.Output[str]
    pipeline_arns: list[pulumi.Output[str]]
    parameter: str

    def __init__(self, name: str, args: ImageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Image", name, None, opts)
        self._name, self._args, self._stack = name, args, args.stack
        self._child = pulumi.ResourceOptions(parent=self)
        self._tags = args.stack.tags | naming.tags(args.stack.name, args.stack.owner)
        image = args.stack.image
        self.image_id = self._image_id()
        self.pipeline_id, self.pipeline_arns, self.parameter = pulumi.Output.from_input(""), [], ""
        if image.base_id is not None:
            payload = image_files.recipe(args.stack)
            self.parameter = image.built_parameter(args.stack.name)
            self.pipeline_arns = self._pipelines(image.base_id, payload)
            self.pipeline_id = self.pipeline_arns[0]
        self.register_outputs({"image_id": self.image_id, "pipeline_id": self.pipeline_id})

    def _image_id(self) -> pulumi.Output[str]:
        image = self._stack.image
        if image.follows_builds:
            stands = first_image.parameter(f"{self._name}-ami", self._stack, self)
            return pulumi.Output.concat(RESOLVED, stands)
        named = image.id if image.id is not None else f"{RESOLVED}{image.parameter}"
        return pulumi.Output.from_input(named)

    def _pipelines(self, base_id: str, payload: image_files.ImageFile) -> list[pulumi.Output[str]]:
        """Declare one pipeline for each zone; return their ARNs.

        A canary that finds no capacity in one zone is tried in the next. All pipelines have the same recipe,
        and only the first has a schedule.
        """
        stack = self._stack
        recipe, distribution, workflows = (
            self._recipe(base_id, payload),
            self._distribution(),
            self._workflows(),
        )
        profile = image_roles.builder_profile(
            f"{self._name}-builder", stack, self._args.key_arn, self._args.records_bucket_arn, self
        )
        zones = image_files.zones_of_builds(stack) if canary_types(stack) else [stack.network.home_zone]
        pipelines = [self._pipeline_in(zone, recipe, distribution, workflows, profile) for zone in zones]
        self._lifecycle(recipe)
        return [pipeline.arn for pipeline in pipelines]

    def _pipeline_in(
        self,
        zone: str,
        recipe: aws.imagebuilder.ImageRecipe,
        distribution: aws.imagebuilder.DistributionConfiguration,
        workflows: list[aws.imagebuilder.ImagePipelineWorkflowArgs],
        profile: pulumi.Output[str],
    ) -> aws.imagebuilder.ImagePipeline:
        stack, first = self._stack, zone == self._stack.network.home_zone
        return aws.imagebuilder.ImagePipeline(
            f"{self._name}-image" if first else f"{self._name}-image-{zone}",
            name=image_files.pipeline_name(stack, zone),
            description=f"Builds what gpu-fleet stack {stack.name} boots",
            image_recipe_arn=recipe.arn,
            infrastructure_configuration_arn=self._infrastructure(zone, profile).arn,
            distribution_configuration_arn=distribution.arn,
            enhanced_image_metadata_enabled=True,
            image_tests_configuration={"image_tests_enabled": True, "timeout_minutes": TEST_MINUTES},
            image_scanning_configuration={"image_scanning_enabled": True} if stack.image.scan else None,
            # build also without changes in the archive: rebuilds bring security updates to the instances
            execution_role=image_roles.execution_role(stack),
            workflows=workflows,
            schedule={
                "schedule_expression": SCHEDULE,
                "timezone": stack.reaper.time_zone,
                "pipeline_execution_start_condition": "EXPRESSION_MATCH_ONLY",
            }
            if first
            else None,
            status="ENABLED",
            tags=self._tags,
            opts=self._child,
        )

    def _workflows(self) -> list[aws.imagebuilder.ImagePipelineWorkflowArgs]:
        """Return Image Builder's own build, and the test on a GPU, or else Image Builder's own test."""
        stack = self._stack
        managed = f"arn:{policies.partition(stack.region)}:imagebuilder:{stack.region}:aws:workflow"
        types = canary_types(stack)
        test: pulumi.Input[str] = f"{managed}/test/test-image/x.x.x"
        if types:
            content = canary_content(types)
            digest = image_files.digest(content)
            test = aws.imagebuilder.Workflow(
                f"{self._name}-canary",
                name=naming.prefixed(stack.name, "canary", digest[:12]),
                version=image_files.semantic_version(digest),
                type="TEST",
                description=f"Tries images of gpu-fleet stack {stack.name} on a GPU",
                data=content,
                kms_key_id=self._args.key_arn,
                tags=self._tags,
                opts=self._child,
            ).arn
        # only Image Builder's own test collects Inspector's findings; it runs without a GPU, since
        # Inspector takes its time
        scans = [f"{managed}/test/test-image/x.x.x"] if stack.image.scan and types else []
        return [
            aws.imagebuilder.ImagePipelineWorkflowArgs(workflow_arn=f"{managed}/build/build-image/x.x.x"),
            *(
                aws.imagebuilder.ImagePipelineWorkflowArgs(workflow_arn=arn, on_failure="ABORT")
                for arn in (*scans, test)
            ),
        ]

    def _component(
        self, label: str, content: str, after: list[pulumi.Resource]
    ) -> aws.imagebuilder.Component:
        """Declare a component; it is immutable, so its name and version follow from its content."""
        stack = self._stack
        digest = image_files.digest(content)
        return aws.imagebuilder.Component(
            f"{self._name}-{label}",
            name=naming.prefixed(stack.name, label, digest[:12]),
            version=image_files.semantic_version(digest),
            platform="Linux",
            supported_os_versions=["Ubuntu 24"],
            description=f"{label} of gpu-fleet stack {stack.name}",
            data=content,
            kms_key_id=self._args.key_arn,
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=after),
        )

    def _recipe(self, base_id: str, payload: image_files.ImageFile) -> aws.imagebuilder.ImageRecipe:
        """Declare the recipe; a change makes a new one, and the old one is deleted after the update."""
        stack = self._stack
        stored = aws.s3.BucketObjectv2(
            f"{self._name}-payload",
            # by the ARN, so that it is stored after the bucket exists and deleted before the bucket
            bucket=self._args.records_bucket_arn.apply(lambda arn: arn.rpartition(":")[2]),
            key=payload.object_key,
            source=pulumi.FileAsset(str(payload.path)),
            source_hash=payload.sha256,
            server_side_encryption="aws:kms",
            kms_key_id=self._args.key_arn,
            tags=self._tags,
            opts=self._child,
        )
        built, tested = component_content(stack, payload), tests_content()
        digest = image_files.digest(base_id, built, tested, str(stack.image.size_gib))
        components = [
            self._component("recipe", built, [stored]),
            self._component("tests", tested, []),
        ]
        return aws.imagebuilder.ImageRecipe(
            f"{self._name}-image",
            name=naming.prefixed(stack.name, digest[:12]),
            version=image_files.semantic_version(digest),
            description=f"The recipe of gpu-fleet, sha256 {payload.sha256}",
            parent_image=base_id,
            components=[{"component_arn": component.arn} for component in components],
            block_device_mappings=[
                {
                    "device_name": ROOT_DEVICE,
                    "ebs": {
                        "volume_type": "gp3",
                        "volume_size": stack.image.size_gib,
                        "iops": VOLUME_IOPS,
                        "throughput": VOLUME_THROUGHPUT_MB_PER_S,
                        "encrypted": "true",
                        "kms_key_id": self._args.key_arn,
                        "delete_on_termination": "true",
                    },
                }
            ],
            # users log in by Session Manager, which is this agent
            systems_manager_agent={"uninstall_after_build": False},
            working_directory="/tmp",  # noqa: S108 - of a builder that lives for an hour
            tags=self._tags,
            opts=self._child,
        )

    def _infrastructure(
        self, zone: str, profile: pulumi.Output[str]
    ) -> aws.imagebuilder.InfrastructureConfiguration:
        stack, args, first = self._stack, self._args, zone == self._stack.network.home_zone
        return aws.imagebuilder.InfrastructureConfiguration(
            f"{self._name}-image" if first else f"{self._name}-image-{zone}",
            name=image_files.pipeline_name(stack, zone),
            description=f"Where gpu-fleet stack {stack.name} builds its image",
            instance_profile_name=profile,
            instance_types=list(BUILDER_TYPES),
            subnet_id=args.subnet_ids[zone],
            security_group_ids=[] if args.group_id is None else [args.group_id],
            instance_metadata_options={"http_tokens": "required", "http_put_response_hop_limit": 1},
            logging={
                "s3_logs": {
                    "s3_bucket_name": stack.bucket_name("records"),
                    "s3_key_prefix": image_roles.LOG_PREFIX,
                }
            },
            sns_topic_arn=args.topic_arn,
            terminate_instance_on_failure=True,
            resource_tags=self._tags,
            tags=self._tags,
            opts=self._child,
        )

    def _distribution(self) -> aws.imagebuilder.DistributionConfiguration:
        """Declare where images are stored; with scans the build controller promotes instead.

        A pipeline does not wait for Inspector's findings.
        """
        stack = self._stack
        promoted = aws.imagebuilder.DistributionConfigurationDistributionSsmParameterConfigurationArgsDict(
            parameter_name=self.parameter, data_type="aws:ec2:image"
        )
        return aws.imagebuilder.DistributionConfiguration(
            f"{self._name}-image",
            name=naming.prefixed(stack.name),
            description=f"Where the images of gpu-fleet stack {stack.name} go",
            distributions=[
                aws.imagebuilder.DistributionConfigurationDistributionArgsDict(
                    region=stack.region,
                    ami_distribution_configuration={
                        "name": f"{naming.prefixed(stack.name)}-{{{{ imagebuilder:buildDate }}}}",
                        "description": f"What gpu-fleet stack {stack.name} boots",
                        "kms_key_id": self._args.key_arn,
                        "ami_tags": self._tags,
                    },
                    ssm_parameter_configurations=[] if stack.image.scan else [promoted],
                )
            ],
            tags=self._tags,
            opts=self._child,
        )

    def _lifecycle(self, recipe: aws.imagebuilder.ImageRecipe) -> None:
        """Declare the deletion of old images and snapshots: by recipe, since a pipeline tags no images."""
        stack = self._stack
        aws.imagebuilder.LifecyclePolicy(
            f"{self._name}-image",
            name=naming.prefixed(stack.name),
            description=f"Old images of gpu-fleet stack {stack.name}",
            resource_type="AMI_IMAGE",
            execution_role=image_roles.lifecycle_role(f"{self._name}-images", stack, self),
            policy_details=[
                {
                    "action": {"type": "DELETE", "include_resources": {"amis": True, "snapshots": True}},
                    "filter": {
                        "type": "AGE",
                        "unit": "WEEKS",
                        "value": KEPT_IMAGE_WEEKS,
                        "retain_at_least": KEPT_BUILDS,
                    },
                    "exclusion_rules": {
                        "amis": {"last_launched": {"unit": "WEEKS", "value": KEPT_AFTER_LAUNCH_WEEKS}}
                    },
                }
            ],
            resource_selection={"recipes": [{"name": recipe.name, "semantic_version": recipe.version}]},
            status="ENABLED",
            tags=self._tags,
            opts=self._child,
        )
