"""An AWS account in an acceptance run."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.core.model import Instance
from gpu_fleet_stacks.acceptance.account import CommandOutput, Kept
from gpu_fleet_stacks.acceptance.aws_calls import RecordedAws
from gpu_fleet_stacks.acceptance.aws_cleanup import AwsCleanup
from gpu_fleet_stacks.acceptance.aws_interruption import AwsInterruption
from gpu_fleet_stacks.acceptance.clock import RunClock
from gpu_fleet_stacks.acceptance.errors import NotReachableError
from gpu_fleet_stacks.clients.aws import Clients, clients_in
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Market, Stack

# docs.aws.amazon.com/systems-manager/latest/userguide/documents-command-ssm-plugin-reference.html
SHELL_DOCUMENT = "AWS-RunShellScript"
SCRIPT_TIMEOUT_S = 900
# InvalidInstanceId: the instance is not registered yet, or terminated; API page of SendCommand, "Errors".
NOT_REGISTERED = frozenset({"InvalidInstanceId"})
# GetCommandInvocation knows an invocation only a moment after SendCommand; its API page, "Errors".
NOT_KNOWN_YET = frozenset({"InvocationDoesNotExist"})
RUNNING = frozenset({"Pending", "InProgress", "Delayed"})
PERIOD_S = 60


class AwsAccount:
    """One stack's part of an AWS account; see ``account.Account``.

    Args:
        clients: service -> boto3 client; by default with the credentials of the environment.
    """

    watches = ("alarms", "budgets", "schedules")

    def __init__(self, stack: Stack, clock: RunClock, clients: Clients | None = None) -> None:
        self._stack, self._clock = stack, clock
        self._aws = RecordedAws(clients or clients_in(stack.region, stack.endpoint_url), clock)
        self.calls = self._aws.made
        self.interruption = AwsInterruption(self._aws, stack, clock)
        self.cleanup = AwsCleanup(self._aws, stack)

    def identity(self) -> str:
        """Return the account's id."""
        return str(self._aws.ask("sts", "get_caller_identity")["Account"])

    def instances(self) -> list[Instance]:
        """Return every instance with the stack's tag."""
        return self._aws.of_stack(self._stack.name)

    def kept(self, groups: Mapping[str, Sequence[str]]) -> list[Kept]:
        """Check that groups on demand launch protected instances and have AZRebalance suspended."""
        names = [
            group
            for pool in self._stack.pools
            if pool.market is not Market.SPOT
            for group in groups[pool.name]
        ]
        answer = self._aws.ask("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=names)
        return [kept for raw in answer["AutoScalingGroups"] for kept in _kept(raw)]

    def raise_empty(self, groups: Mapping[str, Sequence[str]]) -> list[str]:  # noqa: ARG002 - the other cloud's
        """Return nothing: every group has a desired capacity of its own."""
        return []

    def logged(self) -> dict[str, float]:
        """Return nothing: CloudWatch Logs tests the key before it makes a log group
        (docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html).
        """
        return {}

    def why_none(self, group: str) -> str:
        """Return the status message of the group's newest activity."""
        activities = self._aws.ask(
            "autoscaling", "describe_scaling_activities", AutoScalingGroupName=group, MaxRecords=1
        )["Activities"]
        return (
            str(activities[0].get("StatusMessage") or activities[0].get("Description") or "")
            if activities
            else ""
        )

    def run(self, instance_id: str, script: str) -> str:
        """Start a shell script as root, by Run Command."""
        try:
            sent = self._aws.ask(
                "ssm",
                "send_command",
                InstanceIds=[instance_id],
                DocumentName=SHELL_DOCUMENT,
                Comment="gpu-fleet accept",
                Parameters={"commands": script.splitlines(), "executionTimeout": [str(SCRIPT_TIMEOUT_S)]},
            )
        except CannotCheckError as error:
            if error.code in NOT_REGISTERED:
                raise NotReachableError(str(error), error.code) from error
            raise
        return str(sent["Command"]["CommandId"])

    def said(self, command_id: str, instance_id: str) -> CommandOutput | None:
        """Return the script's result; a script that was never delivered has code -1."""
        try:
            invocation = self._aws.ask(
                "ssm", "get_command_invocation", CommandId=command_id, InstanceId=instance_id
            )
        except CannotCheckError as error:
            if error.code in NOT_KNOWN_YET:
                return None
            raise
        if invocation["Status"] in RUNNING:
            return None
        code = int(invocation.get("ResponseCode", -1))
        if invocation["Status"] != "Success" and code == 0:
            code = -1
        return CommandOutput(
            code, invocation.get("StandardOutputContent", ""), invocation.get("StandardErrorContent", "")
        )

    def newest_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        """Return the agent's newest heartbeat since ``since``; None if there was none."""
        return max(self._heartbeats(instance_id, since), default=None)

    def first_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        """Return the agent's first heartbeat since ``since``; None if there was none."""
        return min(self._heartbeats(instance_id, since), default=None)

    def _heartbeats(self, instance_id: str, since: datetime) -> list[datetime]:
        """Return the minutes with a heartbeat; CloudWatch returns at most 1,440 points a call, one day."""
        statistics = self._aws.ask(
            "cloudwatch",
            "get_metric_statistics",
            Namespace=naming.metric_namespace(self._stack.name),
            MetricName=METRIC_SECONDS_SINCE_ACTIVITY,
            Dimensions=[{"Name": "InstanceId", "Value": instance_id}],
            StartTime=since,
            # the cloud's clock may be ahead of this computer's
            EndTime=max(self._clock.now(), since) + timedelta(seconds=PERIOD_S),
            Period=PERIOD_S,
            Statistics=["Minimum"],
        )
        return [point["Timestamp"] for point in statistics["Datapoints"]]

    def tag(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """Set tags."""
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        self._aws.ask("ec2", "create_tags", Resources=[instance_id], Tags=pairs)

    def untag(self, instance_id: str, keys: Sequence[str]) -> None:
        """Remove tags."""
        self._aws.ask("ec2", "delete_tags", Resources=[instance_id], Tags=[{"Key": key} for key in keys])

    def keys(self, uri: str) -> dict[str, datetime]:
        """Return every object below a prefix: key -> time of writing."""
        bucket, prefix = _parted(uri)
        pages = self._aws.pages(
            "s3",
            "list_objects_v2",
            "Contents",
            Bucket=bucket,
            Prefix=prefix,
            mark="NextContinuationToken",
            asked="ContinuationToken",
        )
        return {entry["Key"]: entry["LastModified"] for entry in pages}

    def read(self, uri: str) -> bytes:
        """Return one object."""
        bucket, key = _parted(uri)
        body: bytes = self._aws.ask("s3", "get_object", Bucket=bucket, Key=key)["Body"].read()
        return body

    def watched(self, topic: str) -> dict[str, list[str]]:
        """Return alarms and schedules with the stack's prefix, its budget, and the topic's subscriptions."""
        prefix = naming.prefixed(self._stack.name)
        alarms = self._aws.pages(
            "cloudwatch", "describe_alarms", "MetricAlarms", AlarmNamePrefix=f"{prefix}-"
        )
        schedules = self._aws.pages("scheduler", "list_schedules", "Schedules", NamePrefix=f"{prefix}-")
        budget = self._aws.ask(
            "budgets", "describe_budget", AccountId=self._stack.account_id, BudgetName=prefix
        )
        recipients = self._aws.pages("sns", "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic)
        return {
            "alarms": sorted(alarm["AlarmName"] for alarm in alarms),
            "schedules": sorted(schedule["Name"] for schedule in schedules),
            "budgets": [budget["Budget"]["BudgetName"]],
            # an ARN once confirmed, "PendingConfirmation" until then
            "recipients": [
                "pending" if recipient["SubscriptionArn"] == "PendingConfirmation" else "confirmed"
                for recipient in recipients
            ],
        }


def _kept(raw: Mapping[str, Any]) -> Iterator[Kept]:
    name, suspended = (
        raw["AutoScalingGroupName"],
        [suspended_process["ProcessName"] for suspended_process in raw["SuspendedProcesses"]],
    )
    yield Kept(name, "NewInstancesProtectedFromScaleIn", True, raw["NewInstancesProtectedFromScaleIn"])
    yield Kept(name, "AZRebalance suspended", True, "AZRebalance" in suspended)


def _parted(uri: str) -> tuple[str, str]:
    """Split a URI: ``s3://bucket/a/b`` -> (``bucket``, ``a/b``)."""
    bucket, _, rest = uri.removeprefix("s3://").partition("/")
    return bucket, rest
