"""An AWS account in an acceptance run; ``CALLS`` lists every call with its documentation page."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.core.model import TAG_POOL, TAG_STACK
from gpu_fleet_stacks.acceptance.account import NO_ANSWER, Call, CommandOutput, Kept, Orphan, TestedInstance
from gpu_fleet_stacks.acceptance.clock import RunClock
from gpu_fleet_stacks.acceptance.errors import NotReachableError
from gpu_fleet_stacks.clients import buckets
from gpu_fleet_stacks.clients.aws import Aws, Clients, clients_in
from gpu_fleet_stacks.clients.errors import CannotCheckError, request_id
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Market, Stack

LOG = logging.getLogger(__name__)

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
# docs.aws.amazon.com/systems-manager/latest/userguide/documents-command-ssm-plugin-reference.html
SHELL_DOCUMENT = "AWS-RunShellScript"
SCRIPT_TIMEOUT_S = 900
# InvalidInstanceId: the instance is not registered yet, or terminated; API page of SendCommand, "Errors".
NOT_REGISTERED = frozenset({"InvalidInstanceId"})
# GetCommandInvocation knows an invocation only a moment after SendCommand; its API page, "Errors".
NOT_KNOWN_YET = frozenset({"InvocationDoesNotExist"})
RUNNING = frozenset({"Pending", "InProgress", "Delayed"})
PERIOD_S = 60
# docs.aws.amazon.com/fis/latest/userguide/fis-actions-reference.html#send-spot-instance-interruptions: two
# minutes at least; EC2 gives the instance two minutes' notice.
INTERRUPTION = "aws:ec2:send-spot-instance-interruptions"
NOTICE = "PT2M"
# docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html, "changes are not always immediately visible"
ROLE_PATIENCE = timedelta(minutes=2)
ROLE_EVERY_S = 10
EXPERIMENT_FAILED = frozenset({"failed", "stopped", "cancelled"})
KEY_WAITS_DAYS = 7  # the least that ScheduleKeyDeletion allows
NO_BUCKET = "NoSuchBucket"
PENDING_DELETION = "PendingDeletion"
GATEWAY_GONE = frozenset({"deleted", "deleting"})


class AwsAccount:
    """One stack's part of an AWS account; see ``account.Account``.

    Args:
        clients: service -> boto3 client; by default with the credentials of the environment.
    """

    interrupts_spot = True
    watches = ("alarms", "budgets", "schedules")

    def __init__(self, stack: Stack, clock: RunClock, clients: Clients | None = None) -> None:
        self.calls: list[Call] = []
        self._stack, self._clock = stack, clock
        self._aws = Aws(clients or clients_in(stack.region, stack.endpoint_url))
        self._experiment: str | None = None
        self._role = naming.prefixed(stack.name, "fis")

    def identity(self) -> str:
        """Return the account's id."""
        return str(self._ask("sts.get_caller_identity")["Account"])

    def instances(self) -> list[TestedInstance]:
        """Return every instance with the stack's tag; EC2 forgets terminated ones after about an hour."""
        own = [{"Name": f"tag:{TAG_STACK}", "Values": [self._stack.name]}]
        pages = self._pages("ec2.describe_instances", "Reservations", Filters=own)
        return [_instance(instance) for reservation in pages for instance in reservation["Instances"]]

    def kept(self, groups: Mapping[str, Sequence[str]]) -> list[Kept]:
        """Check that groups on demand launch protected instances and have AZRebalance suspended."""
        names = [
            group
            for pool in self._stack.pools
            if pool.market is not Market.SPOT
            for group in groups[pool.name]
        ]
        answer = self._ask("autoscaling.describe_auto_scaling_groups", AutoScalingGroupNames=names)
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
        activities = self._ask(
            "autoscaling.describe_scaling_activities", AutoScalingGroupName=group, MaxRecords=1
        )["Activities"]
        return (
            str(activities[0].get("StatusMessage") or activities[0].get("Description") or "")
            if activities
            else ""
        )

    def run(self, instance_id: str, script: str) -> str:
        """Start a shell script as root, by Run Command."""
        try:
            sent = self._ask(
                "ssm.send_command",
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
            invocation = self._ask("ssm.get_command_invocation", CommandId=command_id, InstanceId=instance_id)
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
        statistics = self._ask(
            "cloudwatch.get_metric_statistics",
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
        self._ask("ec2.create_tags", Resources=[instance_id], Tags=pairs)

    def untag(self, instance_id: str, keys: Sequence[str]) -> None:
        """Remove tags."""
        self._ask("ec2.delete_tags", Resources=[instance_id], Tags=[{"Key": key} for key in keys])

    def keys(self, uri: str) -> dict[str, datetime]:
        """Return every object below a prefix: key -> time of writing."""
        bucket, prefix = _parted(uri)
        pages = self._pages(
            "s3.list_objects_v2",
            "Contents",
            Bucket=bucket,
            Prefix=prefix,
            token=("NextContinuationToken", "ContinuationToken"),
        )
        return {entry["Key"]: entry["LastModified"] for entry in pages}

    def read(self, uri: str) -> bytes:
        """Return one object."""
        bucket, key = _parted(uri)
        body: bytes = self._ask("s3.get_object", Bucket=bucket, Key=key)["Body"].read()
        return body

    def watched(self, topic: str) -> dict[str, list[str]]:
        """Return alarms and schedules with the stack's prefix, its budget, and the topic's subscriptions."""
        prefix = naming.prefixed(self._stack.name)
        alarms = self._pages("cloudwatch.describe_alarms", "MetricAlarms", AlarmNamePrefix=f"{prefix}-")
        schedules = self._pages("scheduler.list_schedules", "Schedules", NamePrefix=f"{prefix}-")
        budget = self._ask("budgets.describe_budget", AccountId=self._stack.account_id, BudgetName=prefix)
        recipients = self._pages("sns.list_subscriptions_by_topic", "Subscriptions", TopicArn=topic)
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

    def interrupt(self, instance_id: str) -> str:
        """Have Fault Injection Service interrupt a spot instance, with a role for this instance alone."""
        partition = "aws-us-gov" if self._stack.region.startswith("us-gov-") else "aws"
        arn = f"arn:{partition}:ec2:{self._stack.region}:{self._stack.account_id}:instance/{instance_id}"
        role_arn = self._fis_role(arn)
        self._experiment = self._template(arn, role_arn)
        experiment = self._ask("fis.start_experiment", experimentTemplateId=self._experiment)["experiment"]
        self._started(experiment["id"])
        return f"FIS experiment {experiment['id']}: {INTERRUPTION} on {instance_id}"

    def _started(self, experiment_id: str) -> None:
        """Wait until the experiment runs or is done.

        Raises:
            CannotCheckError: the experiment failed or did not start in time; the message holds the reason.
        """
        until = self._clock.now() + ROLE_PATIENCE
        while self._clock.now() < until:
            state = self._ask("fis.get_experiment", id=experiment_id)["experiment"]["state"]
            if state["status"] in EXPERIMENT_FAILED:
                raise CannotCheckError(
                    f"FIS experiment {experiment_id}: {state.get('reason', state['status'])}"
                )
            if state["status"] in ("running", "completed"):
                return
            self._clock.sleep(ROLE_EVERY_S)
        raise CannotCheckError(f"FIS experiment {experiment_id} did not start within {ROLE_PATIENCE}")

    def _fis_role(self, instance_arn: str) -> str:
        """Make a role that may interrupt this one instance; return its ARN.

        Follows docs.aws.amazon.com/fis/latest/userguide/getting-started-iam-service-role.html.
        """
        trust = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "fis.amazonaws.com"},
                    "Action": "sts:AssumeRole",
                    "Condition": {"StringEquals": {"aws:SourceAccount": self._stack.account_id}},
                }
            ],
        }
        allowed = {
            "Version": "2012-10-17",
            "Statement": [
                {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"},
                {"Effect": "Allow", "Action": "ec2:SendSpotInstanceInterruptions", "Resource": instance_arn},
            ],
        }
        boundary = self._stack.aws.permissions_boundary
        made = self._ask(
            "iam.create_role",
            RoleName=self._role,
            AssumeRolePolicyDocument=json.dumps(trust),
            Description=f"Interrupts one spot instance of gpu-fleet stack {self._stack.name}",
            Tags=[
                {"Key": key, "Value": value}
                for key, value in {TAG_STACK: self._stack.name, **self._stack.tags}.items()
            ],
            **({"PermissionsBoundary": boundary} if boundary else {}),
        )
        self._ask(
            "iam.put_role_policy",
            RoleName=self._role,
            PolicyName=self._role,
            PolicyDocument=json.dumps(allowed),
        )
        return str(made["Role"]["Arn"])

    def _template(self, instance_arn: str, role_arn: str) -> str:
        """Make the experiment's template; retry while FIS does not know the role yet."""
        until = self._clock.now() + ROLE_PATIENCE
        while True:
            try:
                made = self._ask(
                    "fis.create_experiment_template",
                    clientToken=f"{self._role}-{self._clock.now():%Y%m%dT%H%M%S}",
                    description=f"gpu-fleet accept {self._stack.name}",
                    stopConditions=[{"source": "none"}],
                    targets={
                        "instance": {
                            "resourceType": "aws:ec2:spot-instance",
                            "resourceArns": [instance_arn],
                            "selectionMode": "ALL",
                        }
                    },
                    actions={
                        "interrupt": {
                            "actionId": INTERRUPTION,
                            "parameters": {"durationBeforeInterruption": NOTICE},
                            "targets": {"SpotInstances": "instance"},
                        }
                    },
                    roleArn=role_arn,
                    tags={TAG_STACK: self._stack.name},
                )
                return str(made["experimentTemplate"]["id"])
            except CannotCheckError as error:
                if error.code != "ValidationException" or self._clock.now() >= until:
                    raise
            self._clock.sleep(ROLE_EVERY_S)

    def forget_interruption(self) -> None:
        """Remove template and role, if they exist."""
        if self._experiment is not None:
            self._gone("fis.delete_experiment_template", "ResourceNotFoundException", id=self._experiment)
            self._experiment = None
        self._gone("iam.delete_role_policy", "NoSuchEntity", RoleName=self._role, PolicyName=self._role)
        self._gone("iam.delete_role", "NoSuchEntity", RoleName=self._role)

    def _gone(self, name: str, absent: str, **arguments: Any) -> None:
        try:
            self._ask(name, **arguments)
        except CannotCheckError as error:
            if error.code != absent:
                raise

    def orphans(self) -> list[Orphan]:
        """List everything that still carries the stack's tag.

        The tagging API also lists deleted resources for a while. Instances, volumes, gateways and addresses
        are paid by the hour, so EC2's own API lists them.
        """
        own = [{"Name": f"tag:{TAG_STACK}", "Values": [self._stack.name]}]
        instances = [instance for instance in self.instances() if not instance.ended]
        volumes = self._pages("ec2.describe_volumes", "Volumes", Filters=own)
        gateways = self._pages("ec2.describe_nat_gateways", "NatGateways", Filter=own)
        addresses = self._ask("ec2.describe_addresses", Filters=own)["Addresses"]
        return [
            *(Orphan("instance", instance.id, instance.state, instance.type) for instance in instances),
            *(
                Orphan("volume", volume["VolumeId"], volume["State"], "disk", Decimal(volume["Size"]))
                for volume in volumes
            ),
            *(
                Orphan("nat gateway", gateway["NatGatewayId"], gateway["State"], "nat_gateway")
                for gateway in gateways
                if gateway["State"] not in GATEWAY_GONE
            ),
            *(
                Orphan("public address", address["AllocationId"], "", "public_address")
                for address in addresses
            ),
            *self._tagged(),
        ]

    def _tagged(self) -> Iterator[Orphan]:
        """Yield everything else that the tagging API lists."""
        listed_by_ec2 = (":instance/", ":volume/", ":natgateway/", ":elastic-ip/")
        for arn in self._arns():
            service = arn.split(":")[2]
            if service == "kms":
                yield self._orphaned_key(arn)
            elif service == "s3":
                yield from self._orphaned_bucket(arn)
            elif not (service == "ec2" and any(kind in arn for kind in listed_by_ec2)):
                note = "may have been deleted already: the tagging API remembers for a while"
                yield Orphan(service, arn, note=note)

    def _orphaned_bucket(self, arn: str) -> Iterator[Orphan]:
        """Yield the bucket if it exists; its objects cost by their size, which is not read."""
        name = arn.rpartition(":")[2]
        try:
            page = self._ask("s3.list_object_versions", Bucket=name, MaxKeys=1)
        except CannotCheckError as error:
            if error.code == NO_BUCKET:
                return
            raise
        holds = bool(page.get("Versions") or page.get("DeleteMarkers"))
        yield Orphan("s3", arn, "holds objects" if holds else "empty", "contents" if holds else "")

    def _arns(self, *types: str) -> list[str]:
        """Return the ARNs with the stack's tag, of the given resource types or of all."""
        pages = self._pages(
            "resourcegroupstaggingapi.get_resources",
            "ResourceTagMappingList",
            TagFilters=[{"Key": TAG_STACK, "Values": [self._stack.name]}],
            token=("PaginationToken", "PaginationToken"),
            **({"ResourceTypeFilters": list(types)} if types else {}),
        )
        return [str(entry["ResourceARN"]) for entry in pages]

    def _orphaned_key(self, arn: str) -> Orphan:
        """Describe a key; it costs until its deletion is scheduled (aws.amazon.com/kms/pricing)."""
        state = self._key_state(arn)
        if state == PENDING_DELETION:
            return Orphan("kms", arn, state, note="deleted after its waiting period, which costs nothing")
        return Orphan("kms", arn, state, "key", note="a key costs by the month")

    def _key_state(self, arn: str) -> str:
        return str(self._ask("kms.describe_key", KeyId=arn)["KeyMetadata"]["KeyState"])

    def let_keys_go(self) -> list[str]:
        """Schedule the deletion of the stack's keys once they encrypt no volume."""
        own = [{"Name": f"tag:{TAG_STACK}", "Values": [self._stack.name]}]
        if list(self._pages("ec2.describe_volumes", "Volumes", Filters=own)):
            return []
        keys = [arn for arn in self._arns("kms:key") if self._key_state(arn) != PENDING_DELETION]
        for arn in keys:
            key_id = arn.rpartition("/")[2]
            self._ask("kms.schedule_key_deletion", KeyId=key_id, PendingWindowInDays=KEY_WAITS_DAYS)
        return keys

    def end_stragglers(self) -> list[str]:
        """Terminate every instance of the stack that still runs; return their ids."""
        running = [instance.id for instance in self.instances() if not instance.ended]
        if running:
            self._ask("ec2.terminate_instances", InstanceIds=running)
        return running

    def empty_buckets(self) -> int:
        """Remove every version of every object from the buckets with the stack's tag and name."""
        own = f"{naming.prefixed(self._stack.name)}-"
        buckets = [arn.rpartition(":")[2] for arn in self._arns("s3")]
        return sum(self._empty(bucket) for bucket in buckets if bucket.startswith(own))

    def _empty(self, bucket: str) -> int:
        """Empty one bucket; return the number of objects, 0 where the bucket does not exist."""
        try:
            return buckets.empty(self._s3, bucket, LOG.info, in_batches=True)
        except CannotCheckError as error:
            if error.code == NO_BUCKET:
                return 0
            raise

    def _s3(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._ask(f"s3.{operation}", **arguments)

    def _ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Make one call of ``CALLS`` and keep it as evidence.

        Raises:
            CannotCheckError: the cloud refused the call or did not answer.
            KeyError: the call is not in ``CALLS``: only documented calls are made.
        """
        doc, at = CALLS[name], self._clock.now()
        service, operation = name.split(".")
        try:
            answer = self._aws.ask(service, operation, **arguments)
        except CannotCheckError as error:
            self.calls.append(Call(at, name, error.request_id, error.code or NO_ANSWER, doc))
            raise
        self.calls.append(Call(at, name, request_id(answer), "", doc))
        return answer

    def _pages(
        self, name: str, key: str, *, token: tuple[str, str] = ("NextToken", "NextToken"), **arguments: Any
    ) -> Iterator[Any]:
        """Yield the items under ``key`` of all pages; errors as in ``_ask``.

        Args:
            token: the names of the next page's token: in the answer, and in the request.
        """
        answered, asked = token
        while True:
            page = self._ask(name, **arguments)
            yield from page.get(key, [])
            if not page.get(answered):
                return
            arguments[asked] = page[answered]


def _kept(raw: Mapping[str, Any]) -> Iterator[Kept]:
    name, suspended = (
        raw["AutoScalingGroupName"],
        [suspended_process["ProcessName"] for suspended_process in raw["SuspendedProcesses"]],
    )
    yield Kept(name, "NewInstancesProtectedFromScaleIn", True, raw["NewInstancesProtectedFromScaleIn"])
    yield Kept(name, "AZRebalance suspended", True, "AZRebalance" in suspended)


def _instance(raw: Mapping[str, Any]) -> TestedInstance:
    tags = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", [])}
    return TestedInstance(
        id=raw["InstanceId"],
        pool=tags.get(TAG_POOL, ""),
        type=raw["InstanceType"],
        state=raw["State"]["Name"],
        spot=raw.get("InstanceLifecycle") == "spot",
        launched_at=raw["LaunchTime"].astimezone(UTC),
        tags=tags,
    )


def _parted(uri: str) -> tuple[str, str]:
    """Split a URI: ``s3://bucket/a/b`` -> (``bucket``, ``a/b``)."""
    bucket, _, rest = uri.removeprefix("s3://").partition("/")
    return bucket, rest
