"""An Alibaba Cloud account in an acceptance run; ``CALLS`` lists every call with its documentation page.

Products answer by their RPC interface, OSS by its S3 interface. The cloud lacks two abilities of AWS, and the
evidence says so: it interrupts no spot instance on request, and its functions use another protocol. So only
the sweep's mark proves that its schedule works.
"""

import base64
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.core.model import TAG_POOL, TAG_STACK
from gpu_fleet_image.providers.alicloud.session import PRODUCTS
from gpu_fleet_stacks.acceptance.account import NO_ANSWER, Call, CommandOutput, Kept, Orphan, TestedInstance
from gpu_fleet_stacks.acceptance.clock import RunClock
from gpu_fleet_stacks.acceptance.errors import NotReachableError
from gpu_fleet_stacks.clients import buckets, oss
from gpu_fleet_stacks.clients.alicloud import Alicloud, expects_a_number, listed
from gpu_fleet_stacks.clients.errors import CannotCheckError, request_id
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Market, Pool, Stack

LOG = logging.getLogger(__name__)

OSS_PAGE = "https://www.alibabacloud.com/help/en/oss/developer-reference/compatibility-with-amazon-s3"


def _doc(product: str, action: str) -> str:
    name = product.capitalize()
    return f"https://api.alibabacloud.com/document/{name}/{PRODUCTS[name][0]}/{action}"


ACTIONS = {
    "cms": ("DescribeMetricLast", "DescribeMetricList", "DescribeMetricRuleList"),
    "ecs": (
        "DeleteInstances",
        "DescribeCloudAssistantStatus",
        "DescribeDisks",
        "DescribeInstances",
        "DescribeInvocationResults",
        "RunCommand",
        "TagResources",
        "UntagResources",
    ),
    "ess": (
        "DescribeScalingActivities",
        "DescribeScalingConfigurations",
        "DescribeScalingGroups",
        "ScaleWithAdjustment",
    ),
    "kms": ("DescribeKey", "ScheduleKeyDeletion"),
    "sts": ("GetCallerIdentity",),
    "tag": ("ListTagResources",),
    "vpc": ("DescribeEipAddresses", "DescribeNatGateways"),
}
CALLS = {f"{product}.{name}": _doc(product, name) for product, names in ACTIONS.items() for name in names} | {
    f"oss.{name}": OSS_PAGE
    for name in (
        *("abort_multipart_upload", "delete_object", "get_object", "list_multipart_uploads"),
        *("list_object_versions", "list_objects_v2"),
    )
}
# Values of DescribeInstances' Status, mapped to the state names that both clouds share here.
STATES = {"Pending": "pending", "Starting": "pending"}
# Values of DescribeInvocationResults' InvocationStatus of a command that has not ended.
RUNNING = frozenset({"Pending", "Scheduled", "Running", "Stopping"})
SCRIPT_TIMEOUT_S = 900
PAGE = 100  # DescribeInstances, DescribeDisks, DescribeEipAddresses
NAT_PAGE = 50
PERIOD_S, MOST_POINTS = 60, 1440  # DescribeMetricList
NO_GROUP = "0"
# Labels of the stores (stacks/gpu_fleet_stacks/alicloud/logs.py): the flow log, and the sweep's.
LOG_STORES = ("flow", "reaper")
LOGGED_LATELY = timedelta(hours=3)
STATISTICS = (
    "Average",
    "Maximum",
    "Sum",
    "Value",
)  # DescribeMetricMetaList lists those that a metric has
TAGGED_PAGE = 1000  # ListTagResources
KEY_WAITS_DAYS = 7
PENDING_DELETION = "PendingDeletion"


class AlicloudAccount:
    """One stack's part of an Alibaba Cloud account; see ``account.Account``.

    Args:
        cloud: calls the products; by default with the credentials of the environment.
        connect: makes boto3's client for OSS.
    """

    interrupts_spot = False
    watches = ("alarms",)

    def __init__(
        self,
        stack: Stack,
        clock: RunClock,
        cloud: Alicloud | None = None,
        connect: Callable[[str], Any] = oss.client,
    ) -> None:
        self.calls: list[Call] = []
        self._stack, self._clock = stack, clock
        self._cloud = cloud or Alicloud(stack.region)
        self._connect = connect
        self._s3: Any = None
        self._known: dict[str, TestedInstance] = {}

    def identity(self) -> str:
        """Return the account's id."""
        return str(self._ask("sts.GetCallerIdentity")["AccountId"])

    def instances(self) -> list[TestedInstance]:
        """Return every instance with the stack's tag; a released one that was seen before is terminated."""
        pages = self._tokens(
            "ecs.DescribeInstances", ("Instances", "Instance"), self._own(), MaxResults=str(PAGE)
        )
        there = {raw["InstanceId"]: _instance(raw) for raw in pages}
        gone = {key: _ended(known) for key, known in self._known.items() if key not in there}
        self._known |= there | gone
        return list(self._known.values())

    def kept(self, groups: Mapping[str, Sequence[str]]) -> list[Kept]:
        """Compare settings that no schema describes: a desired size of 0, spot options, health checks."""
        settings: list[Kept] = []
        for pool in self._stack.pools:
            for group in groups[pool.name]:
                answer = self._ask("ess.DescribeScalingGroups", **{"ScalingGroupIds.1": group})
                settings += _kept(pool, group, listed(answer, "ScalingGroups")[0])
                if pool.erdma:
                    settings.append(self._interface(group))
        return settings

    def _interface(self, group: str) -> Kept:
        """Return the setting of the eRDMA interface, which the second pass of ``gpu-fleet up`` adds."""
        answer = self._ask("ess.DescribeScalingConfigurations", ScalingGroupId=group)
        modes = {
            interface.get("NetworkInterfaceTrafficMode")
            for configuration in listed(answer, "ScalingConfigurations")
            for interface in listed(configuration, "NetworkInterfaces")
        }
        return Kept(group, "NetworkInterfaceTrafficMode", ["HighPerformance"], sorted(map(str, modes)))

    def raise_empty(self, groups: Mapping[str, Sequence[str]]) -> list[str]:
        """Raise each group made with 0 by ``ScaleWithAdjustment``: it has no expected number."""
        made_empty = [groups[pool.name][0] for pool in self._stack.pools if pool.size.desired == 0]
        for group in made_empty:
            self._ask(
                "ess.ScaleWithAdjustment",
                ScalingGroupId=group,
                AdjustmentType="QuantityChangeInCapacity",
                AdjustmentValue="1",
            )
        return made_empty

    def logged(self) -> dict[str, float]:
        """Return CloudMonitor's inflow of the stack's log stores.

        Simple Log Service has its own request signature, which the official SDK's core lacks. Its own SDK
        needs protobuf, lz4 and elasticsearch. CloudMonitor reports the inflow as well.
        """
        return {label: self._inflow(label) for label in LOG_STORES}

    def _inflow(self, label: str) -> float:
        place = {
            "project": naming.prefixed(self._stack.name, label, self._stack.account_id),
            "logstore": label,
        }
        answer = self._ask(
            "cms.DescribeMetricLast",
            Namespace="acs_sls_dashboard",
            MetricName="LogInflow",
            Dimensions=json.dumps([place]),
            StartTime=str(_milliseconds(self._clock.now() - LOGGED_LATELY)),
        )
        points = json.loads(answer.get("Datapoints") or "[]")
        return max((float(point.get(key) or 0) for point in points for key in STATISTICS), default=0.0)

    def why_none(self, group: str) -> str:
        """Return the message of the newest activity; ``group`` is the scaling group's id."""
        answer = self._ask("ess.DescribeScalingActivities", ScalingGroupId=group, PageSize="1")
        activities = listed(answer, "ScalingActivities")
        return (
            str(activities[0].get("StatusMessage") or activities[0].get("Description") or "")
            if activities
            else ""
        )

    def run(self, instance_id: str, script: str) -> str:
        """Start a shell script as root, by Cloud Assistant."""
        status = self._ask("ecs.DescribeCloudAssistantStatus", **{"InstanceId.1": instance_id})
        rows = listed(status, "InstanceCloudAssistantStatusSet", "InstanceCloudAssistantStatus")
        if not any(row.get("CloudAssistantStatus") == "true" for row in rows):
            raise NotReachableError(f"{instance_id}: Cloud Assistant does not answer yet", "NotReady")
        sent = self._ask(
            "ecs.RunCommand",
            Type="RunShellScript",
            CommandContent=base64.b64encode(script.encode()).decode(),
            ContentEncoding="Base64",
            Name="gpu-fleet-accept",
            Timeout=str(SCRIPT_TIMEOUT_S),
            KeepCommand="false",
            **{"InstanceId.1": instance_id},
        )
        return str(sent["InvokeId"])

    def said(self, command_id: str, instance_id: str) -> CommandOutput | None:
        """Return the script's result; a script that was never delivered has code -1."""
        answer = self._ask("ecs.DescribeInvocationResults", InvokeId=command_id, InstanceId=instance_id)
        rows = listed(answer.get("Invocation") or {}, "InvocationResults", "InvocationResult")
        if not rows or rows[0].get("InvocationStatus") in RUNNING:
            return None
        row = rows[0]
        output = base64.b64decode(row.get("Output") or "").decode(errors="replace")
        delivered = "ExitCode" in row and row.get("InvocationStatus") in ("Success", "Failed")
        return CommandOutput(
            int(row["ExitCode"]) if delivered else -1, output, str(row.get("ErrorInfo") or "")
        )

    def newest_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        """Return the agent's newest heartbeat since ``since``; None if there was none."""
        return max(self._heartbeats(instance_id, since), default=None)

    def first_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        """Return the agent's first heartbeat since ``since``; None if there was none."""
        return min(self._heartbeats(instance_id, since), default=None)

    def _heartbeats(self, instance_id: str, since: datetime) -> list[datetime]:
        """Return the minutes with a heartbeat.

        ``image/gpu_fleet_image/providers/alicloud/metrics.py`` defines the metric's name.
        """
        stack = "".join(letter if letter.isalnum() else "_" for letter in self._stack.name)
        answer = self._ask(
            "cms.DescribeMetricList",
            Namespace=f"acs_customMetric_{self._stack.account_id}",
            MetricName=f"{METRIC_SECONDS_SINCE_ACTIVITY}_{stack}",
            Dimensions=json.dumps([{"groupId": NO_GROUP, "dimension": f"InstanceId={instance_id}"}]),
            StartTime=str(_milliseconds(since) - 1),
            EndTime=str(_milliseconds(max(self._clock.now(), since) + timedelta(seconds=PERIOD_S))),
            Period=str(PERIOD_S),
            Length=str(MOST_POINTS),
        )
        points = json.loads(answer.get("Datapoints") or "[]")
        return [datetime.fromtimestamp(point["timestamp"] / 1000, UTC) for point in points]

    def tag(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """Set tags."""
        pairs = {
            f"Tag.{number}.{part}": text
            for number, pair in enumerate(tags.items(), 1)
            for part, text in zip(("Key", "Value"), pair, strict=True)
        }
        self._ask("ecs.TagResources", ResourceType="instance", **{"ResourceId.1": instance_id}, **pairs)

    def untag(self, instance_id: str, keys: Sequence[str]) -> None:
        """Remove tags."""
        names = {f"TagKey.{number}": key for number, key in enumerate(keys, 1)}
        self._ask("ecs.UntagResources", ResourceType="instance", **{"ResourceId.1": instance_id}, **names)

    def keys(self, uri: str) -> dict[str, datetime]:
        """Return every object below a prefix: key -> time of writing."""
        bucket, prefix = _parted(uri)
        modified: dict[str, datetime] = {}
        more: dict[str, str] = {}
        while True:
            page = self._oss("list_objects_v2", Bucket=bucket, Prefix=prefix, **more)
            modified |= {entry["Key"]: entry["LastModified"] for entry in page.get("Contents", [])}
            if not page.get("NextContinuationToken"):
                return modified
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, uri: str) -> bytes:
        """Return one object."""
        bucket, key = _parted(uri)
        body: bytes = self._oss("get_object", Bucket=bucket, Key=key)["Body"].read()
        return body

    def watched(self, topic: str) -> dict[str, list[str]]:
        """Return the stack's alarms, those of its meter among them; ``topic`` is its contact group."""
        rules = self._ask(
            "cms.DescribeMetricRuleList", RuleName=naming.prefixed(self._stack.name), PageSize="100"
        )
        alarms = listed(rules, "Alarms", "Alarm")
        return {
            "alarms": sorted(str(alarm["RuleName"]) for alarm in alarms),
            "recipients": [f"group {topic}"],
        }

    def interrupt(self, instance_id: str) -> str:
        """Refuse: the cloud offers no such call."""
        raise CannotCheckError(f"{instance_id}: Alibaba Cloud interrupts no spot instance on request")

    def forget_interruption(self) -> None:
        """Do nothing: ``interrupt`` makes nothing here."""

    def orphans(self) -> list[Orphan]:
        """List everything that still carries the stack's tag.

        Each product's own API lists what is paid by the hour; the tag service lists the rest.
        """
        own = self._own()
        disks = self._tokens("ecs.DescribeDisks", ("Disks", "Disk"), own, MaxResults=str(PAGE))
        gateways = self._ask("vpc.DescribeNatGateways", PageSize=str(NAT_PAGE), **own)
        addresses = self._ask("vpc.DescribeEipAddresses", PageSize=str(PAGE), **own)
        return [
            *(
                Orphan("instance", instance.id, instance.state, instance.type)
                for instance in self.instances()
                if not instance.ended
            ),
            *(Orphan("disk", raw["DiskId"], raw["Status"], "disk", Decimal(raw["Size"])) for raw in disks),
            *(
                Orphan("nat gateway", raw["NatGatewayId"], raw["Status"], "nat_gateway")
                for raw in listed(gateways, "NatGateways", "NatGateway")
            ),
            *(
                Orphan("public address", raw["AllocationId"], raw["Status"], "public_address")
                for raw in listed(addresses, "EipAddresses", "EipAddress")
            ),
            *self._tagged(),
        ]

    def _tagged(self) -> Iterator[Orphan]:
        """Yield everything else that the tag service lists."""
        listed_kinds = (":instance/", ":disk/", ":natgateway/", ":eip/")
        for arn in self._arns():
            service = arn.split(":")[2]
            if service == "kms":
                state = self._key_state(arn)
                yield Orphan("kms", arn, state, "" if state == PENDING_DELETION else "key")
            elif service == "oss":
                yield from self._orphaned_bucket(arn)
            elif not any(kind in arn for kind in listed_kinds):
                yield Orphan(service, arn, note="may have been deleted already")

    def _orphaned_bucket(self, arn: str) -> Iterator[Orphan]:
        try:
            page = self._oss("list_object_versions", Bucket=_last(arn), MaxKeys=1)
        except CannotCheckError as error:
            if error.code == oss.NO_BUCKET:
                return
            raise
        holds = bool(page.get("Versions") or page.get("DeleteMarkers"))
        yield Orphan("oss", arn, "holds objects" if holds else "empty", "contents" if holds else "")

    def _arns(self) -> list[str]:
        tags = json.dumps({TAG_STACK: self._stack.name})
        rows = self._tokens(
            "tag.ListTagResources", ("TagResources",), {}, Tags=tags, PageSize=str(TAGGED_PAGE)
        )
        return [str(row["ResourceARN"]) for row in rows]

    def _key_state(self, arn: str) -> str:
        return str(self._ask("kms.DescribeKey", KeyId=_last(arn))["KeyMetadata"]["KeyState"])

    def let_keys_go(self) -> list[str]:
        """Schedule the deletion of the stack's keys once they encrypt no disk."""
        if list(self._tokens("ecs.DescribeDisks", ("Disks", "Disk"), self._own(), MaxResults=str(PAGE))):
            return []
        keys = [arn for arn in self._arns() if ":kms:" in arn and self._key_state(arn) != PENDING_DELETION]
        for arn in keys:
            self._ask("kms.ScheduleKeyDeletion", KeyId=_last(arn), PendingWindowInDays=str(KEY_WAITS_DAYS))
        return keys

    def end_stragglers(self) -> list[str]:
        """Release every instance of the stack that still runs; return their ids."""
        running = [instance.id for instance in self.instances() if not instance.ended]
        if running:
            ids = {f"InstanceId.{number}": instance_id for number, instance_id in enumerate(running, 1)}
            self._ask("ecs.DeleteInstances", Force="true", **ids)
        return running

    def empty_buckets(self) -> int:
        """Remove every version of every object from the buckets with the stack's tag and name."""
        own = f"{naming.prefixed(self._stack.name)}-"
        buckets = [_last(arn) for arn in self._arns() if ":oss:" in arn]
        return sum(self._empty(bucket) for bucket in buckets if bucket.startswith(own))

    def _empty(self, bucket: str) -> int:
        """Empty one bucket; return the number of objects, 0 where the bucket does not exist."""
        try:
            return buckets.empty(self._oss, bucket, LOG.info, in_batches=False)
        except CannotCheckError as error:
            if error.code == oss.NO_BUCKET:
                return 0
            raise

    def _own(self) -> dict[str, str]:
        return {"Tag.1.Key": TAG_STACK, "Tag.1.Value": self._stack.name}

    def _tokens(
        self, name: str, path: tuple[str, ...], chosen: Mapping[str, str], **parameters: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of all pages of a call with ``NextToken``."""
        token: dict[str, str] = {}
        while True:
            page = self._ask(name, **chosen, **parameters, **token)
            yield from listed(page, *path)
            if not page.get("NextToken"):
                return
            token = {"NextToken": page["NextToken"]}

    def _ask(self, name: str, **parameters: str) -> dict[str, Any]:
        """Make one call of ``CALLS`` and keep it as evidence.

        Raises:
            CannotCheckError: the cloud refused the call or did not answer.
            KeyError: the call is not in ``CALLS``.
        """
        doc, at = CALLS[name], self._clock.now()
        product, action = name.split(".")
        try:
            answer = self._cloud.ask(product, action, RegionId=self._stack.region, **parameters)
        except CannotCheckError as error:
            self.calls.append(Call(at, name, error.request_id, error.code or NO_ANSWER, doc))
            raise
        self.calls.append(Call(at, name, request_id(answer), "", doc))
        return answer

    def _oss(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make one call of OSS; errors as in ``_ask``."""
        name = f"oss.{operation}"
        doc, at = CALLS[name], self._clock.now()
        self._s3 = self._s3 or self._connect(self._stack.region)
        try:
            answer = oss.ask(self._s3, operation, **arguments)
        except CannotCheckError as error:
            self.calls.append(Call(at, name, error.request_id, error.code or NO_ANSWER, doc))
            raise
        self.calls.append(Call(at, name, request_id(answer), "", doc))
        return answer


def _kept(pool: Pool, group: str, raw: Mapping[str, Any]) -> Iterator[Kept]:
    """Yield the settings of a group that only a real account can show, with DescribeScalingGroups' names."""
    options = raw.get("CapacityOptions") or {}
    yield Kept(group, "LifecycleState", "Active", raw.get("LifecycleState"))
    yield Kept(group, "EnableDesiredCapacity", pool.size.desired > 0, expects_a_number(raw))
    if pool.market is Market.SPOT:
        replaced = bool(options.get("SpotAutoReplaceOnDemand"))
        yield Kept(group, "SpotAutoReplaceOnDemand", False, replaced)
        yield Kept(group, "SpotInstanceRemedy", True, raw.get("SpotInstanceRemedy"))
    else:
        suspended = raw.get("SuspendedProcesses") or []
        yield Kept(group, "HealthCheck suspended", True, "HealthCheck" in suspended)


def _instance(raw: Mapping[str, Any]) -> TestedInstance:
    tags = {tag["TagKey"]: tag["TagValue"] for tag in listed(dict(raw), "Tags", "Tag")}
    launched = str(raw.get("StartTime") or raw["CreationTime"])
    status = str(raw["Status"])
    return TestedInstance(
        id=raw["InstanceId"],
        pool=tags.get(TAG_POOL, ""),
        type=raw["InstanceType"],
        state=STATES.get(status, status.lower()),
        spot=raw.get("SpotStrategy", "NoSpot") != "NoSpot",
        launched_at=datetime.strptime(launched, "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC),
        tags=tags,
    )


def _ended(instance: TestedInstance) -> TestedInstance:
    return TestedInstance(
        instance.id,
        instance.pool,
        instance.type,
        "terminated",
        instance.spot,
        instance.launched_at,
        instance.tags,
    )


def _last(arn: str) -> str:
    """Return the last part of an ARN: ``arn:acs:kms:cn-shenzhen:1:key/abc`` -> ``abc``."""
    return arn.rpartition("/")[2].rpartition(":")[2]


def _parted(uri: str) -> tuple[str, str]:
    """Split a URI: ``oss://bucket/a/b`` -> (``bucket``, ``a/b``)."""
    bucket, _, rest = uri.partition("://")[2].partition("/")
    return bucket, rest


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
