"""The build controller of a stack's images: a function that retries, promotes and raises alarms."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.aws.functions import ScheduledFunctionArgs, declare_function
from gpu_fleet_stacks.aws.reaper import archive
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import builds_plan, image_files
from gpu_fleet_stacks.settings import Stack

HANDLER = f"{builds_plan.KEEPER}.aws.handle"
EVERY_MINUTES, TIMEOUT_S, LATEST_START_S = 10, 120, 300
HOUR_S, FAILED_LOOKS = 3600, 3
METRIC = "ImageBuildProblems"
# None of these actions supports a resource narrower than the account.
LOOK_ACTIONS = (
    # Systems Manager asks it of who writes an image's id (its guide, "Native parameter support for AMIs")
    "ec2:DescribeImages",
    "imagebuilder:ListImagePipelines",
    "imagebuilder:ListImageScanFindingAggregations",
    "imagebuilder:ListWorkflowStepExecutions",
)


@dataclass(frozen=True)
class ImageBuildsArgs:
    """Inputs of the build controller.

    Attributes:
        pipeline_arns: the pipelines of every zone; a destroy removes the controller before them, so that it
            starts no build that nothing deletes.
        key_arn: encrypts its log.
        topic_arn: the topic of its alarms.
    """

    stack: Stack
    pipeline_arns: list[pulumi.Output[str]]
    key_arn: pulumi.Output[str]
    topic_arn: pulumi.Output[str]


@dataclass(frozen=True)
class _Alarm:
    """A condition of the builds that an operator must look at, counted over an hour.

    Attributes:
        at_least: the value from which it alarms; None to alarm where there is no data at all.
    """

    label: str
    says: str
    namespace: str
    metric: str
    statistic: str
    at_least: int | None


class ImageBuilds(pulumi.ComponentResource):
    """The build controller of one stack."""

    def __init__(self, name: str, args: ImageBuildsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:ImageBuilds", name, None, opts)
        stack, own = args.stack, f"{name}-builds"
        function = declare_function(
            own,
            ScheduledFunctionArgs(
                stack=stack,
                program="the image build controller",
                purpose=f"Controls image builds of gpu-fleet stack {stack.name}",
                handler=HANDLER,
                code=bundle(stack),
                every=f"rate({EVERY_MINUTES} minutes)",
                timeout_s=TIMEOUT_S,
                latest_start_s=LATEST_START_S,
                environment={},
                key_arn=args.key_arn,
                policy=lambda log_arn: role_policy(args, log_arn),
            ),
            self,
        )
        for alarm in _alarms(stack):
            silent = alarm.at_least is None
            aws.cloudwatch.MetricAlarm(
                f"{own}-{alarm.label}",
                name=f"{own}-{alarm.label}",
                alarm_description=alarm.says,
                namespace=alarm.namespace,
                metric_name=alarm.metric,
                dimensions={"FunctionName": function.name} if alarm.namespace == "AWS/Lambda" else {},
                statistic=alarm.statistic,
                comparison_operator="LessThanThreshold" if silent else "GreaterThanOrEqualToThreshold",
                threshold=1 if alarm.at_least is None else alarm.at_least,
                period=HOUR_S,
                evaluation_periods=1,
                treat_missing_data="breaching" if silent else "notBreaching",
                alarm_actions=[args.topic_arn],
                tags=naming.tags(stack.name, stack.owner),
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({})


def _alarms(stack: Stack) -> tuple[_Alarm, ...]:
    """Return every alarm on the builds; each notifies once until it is over."""
    own = naming.metric_namespace(stack.name)
    problem = (
        "No image was built or promoted: a build failed, none had an instance for its test in six hours, "
        "its findings are critical, or none began for a week. See the build controller's log"
    )
    return (
        _Alarm("problem", problem, own, METRIC, "Maximum", 1),
        _Alarm("errors", "The build controller failed", "AWS/Lambda", "Errors", "Sum", FAILED_LOOKS),
        _Alarm("silent", "The build controller did not run", own, METRIC, "SampleCount", None),
    )


def bundle(stack: Stack) -> pulumi.AssetArchive:
    """Return the function's code; equal settings and equal modules give an equal hash."""
    names = [image_files.pipeline_name(stack, zone) for zone in image_files.zones_of_builds(stack)]
    plan = {keys.BUILDS_FILE: builds_plan.plan_text(stack, names)}
    return archive(stack, f"{builds_plan.KEEPER}.aws", plan)


def role_policy(args: ImageBuildsArgs, log_group_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the role's only policy: start the stack's pipelines, write its parameter, touch no instance."""
    stack = args.stack
    arn, own = f"arn:{policies.partition(stack.region)}", f"{stack.region}:{stack.account_id}"
    named = naming.prefixed(stack.name)
    builder = f"{arn}:imagebuilder:{own}"
    parameter = f"{arn}:ssm:{own}:parameter{stack.image.built_parameter(stack.name)}"
    promotes = ["ssm:PutParameter"] if stack.image.scan else []
    return policies.document(
        policies.allow("Look", LOOK_ACTIONS, "*"),
        policies.allow(
            "Pipelines",
            [
                "imagebuilder:GetImagePipeline",
                "imagebuilder:ListImagePipelineImages",
                "imagebuilder:StartImagePipelineExecution",
            ],
            args.pipeline_arns,
        ),
        policies.allow(
            "Builds",
            ["imagebuilder:GetImage", "imagebuilder:ListWorkflowExecutions"],
            f"{builder}:image/{named}-*",
        ),
        policies.allow("Promoted", ["ssm:GetParameters", *promotes], parameter),
        policies.allow(
            "OwnMetrics",
            ["cloudwatch:PutMetricData"],
            "*",
            {"StringEquals": {"cloudwatch:namespace": naming.metric_namespace(stack.name)}},
        ),
        policies.allow(
            "Log",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            pulumi.Output.concat(log_group_arn, ":*"),
        ),
    )
