"""The build controller of a stack's images: a function that starts one build a week, retries, and alarms."""

from dataclasses import dataclass

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.alarms import alarm
from gpu_fleet_stacks.alicloud.functions import ScheduledFunction, ScheduledFunctionArgs, alarm_of_failures
from gpu_fleet_stacks.alicloud.reaper import HANDLER, archive
from gpu_fleet_stacks.payload import builds_plan, image_files
from gpu_fleet_stacks.settings import Stack

EVERY_MINUTES, TIMEOUT_S = 10, 120
FAILED_LOOKS = 1  # passes are further apart than this metric's periods
METRIC = "ImageBuildProblems"
# None of these actions supports a resource or a condition narrower than the account.
LOOK_ACTIONS = ("ecs:DescribeImagePipelineExecutions", "ecs:DescribeImagePipelines")


@dataclass(frozen=True)
class ImageBuildsArgs:
    """Inputs of the build controller.

    Attributes:
        pipeline_id: the pipeline that it may start.
        key_id: encrypts its log.
        contact_group: the group that its alarms notify.
    """

    stack: Stack
    pipeline_id: pulumi.Output[str]
    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    contact_group: pulumi.Input[str]


class ImageBuilds(pulumi.ComponentResource):
    """The build controller of one stack."""

    def __init__(self, name: str, args: ImageBuildsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:ImageBuilds", name, None, opts)
        stack, own = args.stack, f"{name}-builds"
        controller = ScheduledFunction(
            own,
            ScheduledFunctionArgs(
                stack=stack,
                label="builds",
                purpose=f"Controls image builds of gpu-fleet stack {stack.name}",
                handler=HANDLER,
                files=bundle(stack),
                every_minutes=EVERY_MINUTES,
                timeout_s=TIMEOUT_S,
                statements=role_policy(args),
                key_id=args.key_id,
                key_arn=args.key_arn,
            ),
            pulumi.ResourceOptions(parent=self),
        )
        alarm(
            f"{own}-problem", stack, metric=METRIC, above="0", contact_group=args.contact_group, parent=self
        )
        alarm_of_failures(
            f"{own}-errors",
            stack,
            controller.function_name,
            times=FAILED_LOOKS,
            contact_group=args.contact_group,
            parent=self,
        )
        self.register_outputs({})


def bundle(stack: Stack) -> dict[str, bytes]:
    """Return the function's code with its packages; equal settings and equal modules give equal bytes."""
    plan = builds_plan.plan_text(stack, [image_files.ecs_pipeline_name(stack)])
    return archive(stack, f"{builds_plan.KEEPER}.alicloud", {keys.BUILDS_FILE: plan})


def role_policy(args: ImageBuildsArgs) -> list[policies.Statement]:
    """Return the statements of the role's policy without its log: start this pipeline, touch no instance."""
    pipeline = f"acs:ecs:{args.stack.region}:{args.stack.account_id}:imagepipeline/"
    return [
        policies.allow(LOOK_ACTIONS, "*"),
        policies.allow(["ecs:StartImagePipelineExecution"], pulumi.Output.concat(pipeline, args.pipeline_id)),
        policies.allow(["cms:PutCustomMetric"], "*"),
    ]
