"""An Alibaba Cloud account in an acceptance run.

The cloud lacks two abilities of AWS, and the evidence says so: it interrupts no spot instance on request, and
its functions use another protocol. So only the sweep's mark proves that its schedule works.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.core.model import Instance
from gpu_fleet_image.providers.alicloud.instances import instance_of
from gpu_fleet_stacks.acceptance.account import CommandOutput, Kept
from gpu_fleet_stacks.acceptance.alicloud_calls import PAGE, RecordedAlicloud, own
from gpu_fleet_stacks.acceptance.alicloud_cleanup import AlicloudCleanup
from gpu_fleet_stacks.acceptance.clock import RunClock
from gpu_fleet_stacks.acceptance.errors import NotReachableError
from gpu_fleet_stacks.clients import oss
from gpu_fleet_stacks.clients.alicloud import Alicloud, expects_a_number, listed
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Market, Pool, Stack

# Values of DescribeInvocationResults' InvocationStatus of a command that has not ended.
RUNNING = frozenset({"Pending", "Scheduled", "Running", "Stopping"})
SCRIPT_TIMEOUT_S = 900
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


class AlicloudAccount:
    """One stack's part of an Alibaba Cloud account; see ``account.Account``.

    Args:
        cloud: calls the products; by default with the credentials of the environment.
        connect: makes boto3's client for OSS.
    """

    interruption = None
    watches = ("alarms",)

    def __init__(
        self,
        stack: Stack,
        clock: RunClock,
        cloud: Alicloud | None = None,
        connect: Callable[[str], Any] = oss.client,
    ) -> None:
        self._stack, self._clock = stack, clock
        self._calls = RecordedAlicloud(cloud or Alicloud(stack.region), stack.region, clock, connect)
        self.calls = self._calls.made
        self.cleanup = AlicloudCleanup(self._calls, stack, self.instances)
        self._known: dict[str, Instance] = {}

    def identity(self) -> str:
        """Return the account's id."""
        return str(self._calls.ask("sts.GetCallerIdentity")["AccountId"])

    def instances(self) -> list[Instance]:
        """Return every instance with the stack's tag; a released one that was seen before is terminated."""
        path = ("Instances", "Instance")
        raws = self._calls.rows("ecs.DescribeInstances", path, own(self._stack.name), MaxResults=str(PAGE))
        there = {raw["InstanceId"]: instance_of(raw) for raw in raws}
        gone = {
            key: replace(each, state="terminated") for key, each in self._known.items() if key not in there
        }
        self._known |= there | gone
        return list(self._known.values())

    def kept(self, groups: Mapping[str, Sequence[str]]) -> list[Kept]:
        """Compare settings that no schema describes: a desired size of 0, spot options, health checks."""
        settings: list[Kept] = []
        for pool in self._stack.pools:
            for group in groups[pool.name]:
                answer = self._calls.ask("ess.DescribeScalingGroups", **{"ScalingGroupIds.1": group})
                settings += _kept(pool, group, listed(answer, "ScalingGroups")[0])
                if pool.erdma:
                    settings.append(self._interface(group))
        return settings

    def _interface(self, group: str) -> Kept:
        """Return the setting of the eRDMA interface, which the second pass of ``gpu-fleet up`` adds."""
        answer = self._calls.ask("ess.DescribeScalingConfigurations", ScalingGroupId=group)
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
            self._calls.ask(
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
        answer = self._calls.ask(
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
        answer = self._calls.ask("ess.DescribeScalingActivities", ScalingGroupId=group, PageSize="1")
        activities = listed(answer, "ScalingActivities")
        return (
            str(activities[0].get("StatusMessage") or activities[0].get("Description") or "")
            if activities
            else ""
        )

    def run(self, instance_id: str, script: str) -> str:
        """Start a shell script as root, by Cloud Assistant."""
        status = self._calls.ask("ecs.DescribeCloudAssistantStatus", **{"InstanceId.1": instance_id})
        rows = listed(status, "InstanceCloudAssistantStatusSet", "InstanceCloudAssistantStatus")
        if not any(row.get("CloudAssistantStatus") == "true" for row in rows):
            raise NotReachableError(f"{instance_id}: Cloud Assistant does not answer yet", "NotReady")
        sent = self._calls.ask(
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
        answer = self._calls.ask("ecs.DescribeInvocationResults", InvokeId=command_id, InstanceId=instance_id)
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
        answer = self._calls.ask(
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
        self._calls.ask("ecs.TagResources", ResourceType="instance", **{"ResourceId.1": instance_id}, **pairs)

    def untag(self, instance_id: str, keys: Sequence[str]) -> None:
        """Remove tags."""
        names = {f"TagKey.{number}": key for number, key in enumerate(keys, 1)}
        self._calls.ask(
            "ecs.UntagResources", ResourceType="instance", **{"ResourceId.1": instance_id}, **names
        )

    def keys(self, uri: str) -> dict[str, datetime]:
        """Return every object below a prefix: key -> time of writing."""
        bucket, prefix = _parted(uri)
        modified: dict[str, datetime] = {}
        more: dict[str, str] = {}
        while True:
            page = self._calls.oss("list_objects_v2", Bucket=bucket, Prefix=prefix, **more)
            modified |= {entry["Key"]: entry["LastModified"] for entry in page.get("Contents", [])}
            if not page.get("NextContinuationToken"):
                return modified
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, uri: str) -> bytes:
        """Return one object."""
        bucket, key = _parted(uri)
        body: bytes = self._calls.oss("get_object", Bucket=bucket, Key=key)["Body"].read()
        return body

    def watched(self, topic: str) -> dict[str, list[str]]:
        """Return the stack's alarms, those of its meter among them; ``topic`` is its contact group."""
        rules = self._calls.ask(
            "cms.DescribeMetricRuleList", RuleName=naming.prefixed(self._stack.name), PageSize="100"
        )
        alarms = listed(rules, "Alarms", "Alarm")
        return {
            "alarms": sorted(str(alarm["RuleName"]) for alarm in alarms),
            "recipients": [f"group {topic}"],
        }


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


def _parted(uri: str) -> tuple[str, str]:
    """Split a URI: ``oss://bucket/a/b`` -> (``bucket``, ``a/b``)."""
    bucket, _, rest = uri.partition("://")[2].partition("/")
    return bucket, rest


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
