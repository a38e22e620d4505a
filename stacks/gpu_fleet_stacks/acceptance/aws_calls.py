"""Calls of AWS in an acceptance run: documented ones alone, each kept as evidence."""

from typing import Any

from gpu_fleet_image.core.model import TAG_STACK, Instance
from gpu_fleet_image.providers.aws.instances import instance_of
from gpu_fleet_stacks.acceptance.account import NO_ANSWER, Call
from gpu_fleet_stacks.acceptance.clock import RunClock
from gpu_fleet_stacks.clients.aws import Aws, Clients
from gpu_fleet_stacks.clients.errors import CannotCheckError, request_id

_API = "https://docs.aws.amazon.com/{}/latest/{}/API_{}.html"


def _doc(guide: str, operation: str, folder: str = "APIReference") -> str:
    return _API.format(guide, folder, operation)


# Service and boto3's method -> the API's page.
CALLS = {
    "autoscaling.describe_scaling_activities": (
        "https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeScalingActivities.html"
    ),
    "autoscaling.describe_auto_scaling_groups": (
        "https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html"
    ),
    "budgets.describe_budget": _doc("aws-cost-management", "budgets_DescribeBudget"),
    "cloudwatch.describe_alarms": _doc("AmazonCloudWatch", "DescribeAlarms"),
    "cloudwatch.get_metric_statistics": _doc("AmazonCloudWatch", "GetMetricStatistics"),
    "ec2.create_tags": _doc("AWSEC2", "CreateTags"),
    "ec2.delete_tags": _doc("AWSEC2", "DeleteTags"),
    "ec2.describe_addresses": _doc("AWSEC2", "DescribeAddresses"),
    "ec2.describe_instances": _doc("AWSEC2", "DescribeInstances"),
    "ec2.describe_nat_gateways": _doc("AWSEC2", "DescribeNatGateways"),
    "ec2.describe_volumes": _doc("AWSEC2", "DescribeVolumes"),
    "ec2.terminate_instances": _doc("AWSEC2", "TerminateInstances"),
    "fis.create_experiment_template": _doc("fis", "CreateExperimentTemplate"),
    "fis.delete_experiment_template": _doc("fis", "DeleteExperimentTemplate"),
    "fis.get_experiment": _doc("fis", "GetExperiment"),
    "fis.start_experiment": _doc("fis", "StartExperiment"),
    "iam.create_role": _doc("IAM", "CreateRole"),
    "iam.delete_role": _doc("IAM", "DeleteRole"),
    "iam.delete_role_policy": _doc("IAM", "DeleteRolePolicy"),
    "iam.put_role_policy": _doc("IAM", "PutRolePolicy"),
    "kms.describe_key": _doc("kms", "DescribeKey"),
    "kms.schedule_key_deletion": _doc("kms", "ScheduleKeyDeletion"),
    "resourcegroupstaggingapi.get_resources": _doc("resourcegroupstagging", "GetResources"),
    "s3.abort_multipart_upload": _doc("AmazonS3", "AbortMultipartUpload", "API"),
    "s3.delete_objects": _doc("AmazonS3", "DeleteObjects", "API"),
    "s3.get_object": _doc("AmazonS3", "GetObject", "API"),
    "s3.list_multipart_uploads": _doc("AmazonS3", "ListMultipartUploads", "API"),
    "s3.list_object_versions": _doc("AmazonS3", "ListObjectVersions", "API"),
    "s3.list_objects_v2": _doc("AmazonS3", "ListObjectsV2", "API"),
    "scheduler.list_schedules": _doc("scheduler", "ListSchedules"),
    "sns.list_subscriptions_by_topic": _doc("sns", "ListSubscriptionsByTopic", "api"),
    "ssm.get_command_invocation": _doc("systems-manager", "GetCommandInvocation"),
    "ssm.send_command": _doc("systems-manager", "SendCommand"),
    "sts.get_caller_identity": _doc("STS", "GetCallerIdentity"),
}


class RecordedAws(Aws):
    """Client of AWS that makes the calls of ``CALLS`` alone.

    Attributes:
        made: every call so far, in order.
    """

    def __init__(self, clients: Clients, clock: RunClock) -> None:
        super().__init__(clients)
        self.made: list[Call] = []
        self._clock = clock

    def ask(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make one call of ``CALLS`` and keep it as evidence.

        Raises:
            CannotCheckError: the cloud refused the call or did not answer.
            KeyError: the call is not in ``CALLS``: only documented calls are made.
        """
        name = f"{service}.{operation}"
        doc, at = CALLS[name], self._clock.now()
        try:
            answer = super().ask(service, operation, **arguments)
        except CannotCheckError as error:
            self.made.append(Call(at, name, error.request_id, error.code or NO_ANSWER, doc))
            raise
        self.made.append(Call(at, name, request_id(answer), "", doc))
        return answer

    def s3(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make one call of S3; errors as in ``ask``."""
        return self.ask("s3", operation, **arguments)

    def of_stack(self, stack: str) -> list[Instance]:
        """Return every instance with the stack's tag; EC2 forgets terminated ones after about an hour."""
        return [instance_of(raw) for raw in self.instances(own(stack))]


def own(stack: str) -> list[dict[str, Any]]:
    """Return the filter for everything with the stack's tag."""
    return [{"Name": f"tag:{TAG_STACK}", "Values": [stack]}]
