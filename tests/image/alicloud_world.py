"""A ``World`` as Alibaba Cloud's API shows it; and its bucket as OSS shows it to boto3."""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from botocore.exceptions import ClientError

from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.providers.alicloud.instances import TAG_GROUP
from gpu_fleet_image.providers.aws.instances import TAG_GROUP as WORLD_GROUP
from tests.image.alicloud_server import RefusedError
from tests.image.world import SimulatedInstance, World, minima, operation_of
from tests.image.world_clients import _S3, _call

STATES = {"running": "Running", "stopped": "Stopped", "pending": "Starting", "terminated": "Released"}
# What a world says in AWS's words.
CODES = {
    "RequestLimitExceeded": ("Throttling.User", 400),
    "UnauthorizedOperation": ("Forbidden.RAM", 403),
    "InternalError": ("InternalError", 500),
}


def _action(work: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Inject the world's faults before and after an action's work."""
    operation = operation_of(work)

    @wraps(work)
    def act(self: "Actions", ask: dict[str, Any]) -> dict[str, Any]:
        try:
            self.world.before(operation)
            content = work(self, ask)
            self.world.after(operation)
        except ClientError as error:
            raise RefusedError(*CODES[error.response["Error"]["Code"]]) from error
        finally:
            self.world.calls.append(operation)
        return content or {}

    return act


class Actions:
    """The actions that sweep and agent use."""

    def __init__(self, world: World) -> None:
        self.world = world

    # ECS

    @_action
    def describe_instances(self, ask: dict[str, Any]) -> dict[str, Any]:
        found = [instance for instance in self.world.instances.values() if _fits(instance, ask)]
        start, size = int(ask.get("NextToken", 0)), min(int(ask["MaxResults"]), self.world.page)
        page = [_described(instance) for instance in found[start : start + size]]
        if self.world.chance(self.world.faults.duplicated):
            page *= 2
        token = str(start + size) if start + size < len(found) else ""
        return {"Instances": {"Instance": page}, "NextToken": token, "TotalCount": len(found)}

    @_action
    def tag_resources(self, ask: dict[str, Any]) -> None:
        for instance in self._found(ask["ResourceId"]):
            instance.tags |= {tag["Key"]: tag["Value"] for tag in ask["Tag"]}

    @_action
    def untag_resources(self, ask: dict[str, Any]) -> None:
        for instance in self._found(ask["ResourceId"]):
            for key in ask["TagKey"]:
                instance.tags.pop(key, None)

    @_action
    def stop_instances(self, ask: dict[str, Any]) -> None:
        assert (ask["StoppedMode"], ask["BatchOptimization"]) == ("StopCharging", "AllTogether")
        found = self._found(ask["InstanceId"])
        if any(item.state != "running" for item in found):
            raise RefusedError("IncorrectInstanceStatus", 403)
        for instance in found:
            self.world.gone(instance, "stopped")

    @_action
    def delete_instances(self, ask: dict[str, Any]) -> None:
        found = self._found(ask["InstanceId"])
        if ask["Force"] != "true" and any(item.state != "stopped" for item in found):
            raise RefusedError("IncorrectInstanceStatus", 403)
        for instance in found:
            if instance.stubborn or instance.is_locked:  # those listed before it are gone already
                raise RefusedError("OperationDenied", 403)
            self.world.gone(instance, "terminated")

    @_action
    def describe_disks(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"Disks": {"Disk": []}, "NextToken": ""}

    # VPC, STS

    @_action
    def describe_eip_addresses(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"EipAddresses": {"EipAddress": []}, "TotalCount": 0}

    def get_caller_identity(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"AccountId": "1234567890123456", "Arn": "acs:ram::1234567890123456:user/ada"}

    # ESS

    @_action
    def describe_scaling_groups(self, ask: dict[str, Any]) -> dict[str, Any]:
        names = ask.get("ScalingGroupIds", self.world.tagged_groups())
        found = [self._group(name) for name in names if name in self.world.groups]
        return self._numbered("ScalingGroups", found, ask)

    def _group(self, name: str) -> dict[str, Any]:
        """Describe a group; one that is created with 0 never gets an expected number, as in alicloud-dev."""
        group = self.world.groups[name]
        expects = group.get("expects", False)
        return {
            "ScalingGroupId": name,
            "MinSize": group["min"],
            "MaxSize": group["max"],
            "DesiredCapacity": group["desired"] if expects else 0,
            "TotalCapacity": len(group["members"]),
            "EnableDesiredCapacity": expects,
            "SuspendedProcesses": ["ScaleOut"] if "Launch" in group["suspended"] else [],
            "Tags": [{"TagKey": "gpu-fleet:pool", "TagValue": "dev"}],
        }

    @_action
    def describe_scaling_instances(self, ask: dict[str, Any]) -> dict[str, Any]:
        state = self.world.lifecycle.get
        rows = [
            {"ScalingGroupId": name, "InstanceId": key, "LifecycleState": state(key, "InService")}
            for name, group in self.world.groups.items()
            for key in group["members"]
            if self.world.instances[key].state == "running"
            and ask.get("ScalingGroupId", name) == name
            and key in ask.get("InstanceIds", [key])
        ]
        return self._numbered("ScalingInstances", rows, ask)

    @_action
    def detach_instances(self, ask: dict[str, Any]) -> dict[str, Any]:
        decrement = ask["DecreaseDesiredCapacity"] == "true"
        group, ids = self.world.groups[ask["ScalingGroupId"]], ask["InstanceIds"]
        self._idle(group)
        if not set(ids) <= set(group["members"]):
            raise RefusedError("InvalidInstanceId.NotFound", 404)
        if len(group["members"]) - len(ids) < group["min"]:
            raise RefusedError("IncorrectCapacity.MinSize")
        self.world.detach(ask["ScalingGroupId"], ids, decrement=decrement)
        return {"ScalingActivityId": "asa-1"}

    @_action
    def attach_instances(self, ask: dict[str, Any]) -> dict[str, Any]:
        group = self.world.groups[ask["ScalingGroupId"]]
        self._idle(group)
        if len(group["members"]) + len(ask["InstanceIds"]) > group["max"]:
            raise RefusedError("IncorrectCapacity.MaxSize")
        group["desired"] += len(ask["InstanceIds"])
        self.world.attach(ask["ScalingGroupId"], ask["InstanceIds"])
        return {"ScalingActivityId": "asa-2"}

    @_action
    def modify_scaling_group(self, ask: dict[str, Any]) -> None:
        self.world.groups[ask["ScalingGroupId"]]["max"] = int(ask["MaxSize"])

    @_action
    def suspend_processes(self, ask: dict[str, Any]) -> None:
        self.world.groups[ask["ScalingGroupId"]]["suspended"] |= _processes(ask)

    @_action
    def resume_processes(self, ask: dict[str, Any]) -> None:
        self.world.groups[ask["ScalingGroupId"]]["suspended"] -= _processes(ask)

    @staticmethod
    def _idle(group: dict[str, Any]) -> None:
        """Raise unless no scaling activity of the group is in progress."""
        if group.get("busy"):
            raise RefusedError("ScalingActivityInProgress")

    @_action
    def describe_alarms(self, ask: dict[str, Any]) -> dict[str, Any]:
        names = self.world.alarms | (set() if ask.get("State") == "ALARM" else {"quiet"})
        return self._numbered("AlarmList", [{"Name": name} for name in sorted(names)], ask)

    # CloudMonitor

    @_action
    def describe_metric_last(self, ask: dict[str, Any]) -> dict[str, Any]:
        points = [
            _point(key, instance.beats_at[shown - 1], instance.beats[shown - 1])
            for key, instance in self.world.instances.items()
            if (shown := instance.shown(self.world.shown_after))
            if ask["MetricName"].startswith(METRIC_SECONDS_SINCE_ACTIVITY)
        ]
        return self._points(points, ask)

    @_action
    def describe_metric_list(self, ask: dict[str, Any]) -> dict[str, Any]:
        wanted = [one["dimension"].removeprefix("InstanceId=") for one in json.loads(ask["Dimensions"])]
        assert len(wanted) <= 50
        points = [_point(key, at, value) for key in wanted for at, value in self._minima(key, ask)]
        return self._points(points, ask)

    def _minima(self, key: str, ask: dict[str, Any]) -> list[tuple[datetime, float]]:
        instance = self.world.instances.get(key)
        if instance is None or not ask["MetricName"].startswith(METRIC_SECONDS_SINCE_ACTIVITY):
            return []
        start, end = (datetime.fromtimestamp(int(ask[name]) / 1000, UTC) for name in ("StartTime", "EndTime"))
        times = instance.beats_at
        high = min(bisect_right(times, end), instance.shown(self.world.shown_after))
        found = minima(times, instance.beats, range(bisect_right(times, start), high), int(ask["Period"]))
        return found[::-1]

    @_action
    def put_custom_metric(self, ask: dict[str, Any]) -> dict[str, Any]:
        if self.world.chance(self.world.faults.deaf):
            return {"Code": "400", "Message": "deaf"}  # with HTTP 200, as CloudMonitor refuses
        for metric in ask["MetricList"]:
            self.world.published[metric["MetricName"]] += json.loads(metric["Values"])["value"]
        return {"Code": "200"}

    def _points(self, points: list[dict[str, Any]], ask: dict[str, Any]) -> dict[str, Any]:
        start, size = int(ask.get("NextToken", 0)), int(ask["Length"])
        if self.world.chance(self.world.faults.partial):
            size = max(1, len(points) // 2)
        page = points[start : start + size]
        if self.world.chance(self.world.faults.duplicated):
            page *= 2
        more = {"NextToken": str(start + size)} if start + size < len(points) else {}
        return {"Code": "200", "Success": True, "Datapoints": json.dumps(page), **more}

    def _numbered(self, key: str, rows: list[dict[str, Any]], ask: dict[str, Any]) -> dict[str, Any]:
        size = min(int(ask["PageSize"]), self.world.page)
        start = (int(ask["PageNumber"]) - 1) * size
        return {
            key: rows[start : start + size],
            "TotalCount": len(rows),
            "PageNumber": int(ask["PageNumber"]),
        }

    def _found(self, ids: list[str]) -> list[SimulatedInstance]:
        found = self.world.standing(ids)
        if len(found) != len(ids):
            raise RefusedError("InvalidInstanceId.NotFound", 404)
        return found


class Bucket(_S3):
    """OSS as boto3 shows it: a bucket with versions, which cannot refuse to overwrite."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        if not hasattr(world, "versions"):
            world.versions = {}

    @_call
    def put_object(self, Bucket, Key, Body, ContentType, IfNoneMatch=None):  # noqa: N803 - boto3's
        world = self._world
        version = f"v{next(world.versions_made)}"
        world.versions[Key] = [*self._versions(Key), (version, Body)]
        world.objects[Key] = (Body, f'"{version}"')
        world.modified[Key] = world.now
        return {"ETag": f'"{version}"', "VersionId": version}

    def _stored(self, key: str, version: str | None) -> tuple[bytes, str] | None:
        if version is None:
            return super()._stored(key, version)
        bodies = dict(self._versions(key))
        return (bodies[version], version) if version in bodies else None

    @_call
    def list_object_versions(self, Bucket, Prefix, MaxKeys):  # noqa: N803 - boto3's
        keys = sorted(key for key in self._world.objects if key.startswith(Prefix))
        every = [(key, version) for key in keys for version, _ in reversed(self._versions(key))]
        return {"Versions": [{"Key": key, "VersionId": version} for key, version in every[:MaxKeys]]}

    def _versions(self, key: str) -> list[tuple[str, bytes]]:
        """Return the versions, oldest first; an object that a test has put has one version."""
        if key not in self._world.objects:
            return []
        body, version = self._world.objects[key]
        known = self._world.versions.get(key, [])
        return known if known and known[-1][1] == body else [(version, body)]


class RecordedNotifier:
    """Notifier that also records in the world the notices that users get."""

    def __init__(self, world: World, alarm: Any) -> None:
        self._world, self._alarm = world, alarm

    def send(self, subject: str, message: str, users: Sequence[str] = ()) -> None:
        del users
        self._alarm.send(subject, message)
        self._world.hear(message)

    def deaf(self, addresses: Sequence[str]) -> dict[str, str]:
        del addresses


def _processes(ask: dict[str, Any]) -> set[str]:
    """Return the processes of a call in AWS's words."""
    return {"Launch" if name == "ScaleOut" else name for name in ask["Processes"]}


def _fits(instance: SimulatedInstance, ask: dict[str, Any]) -> bool:
    tags = all(instance.tags.get(tag["Key"]) == tag["Value"] for tag in ask.get("Tag", []))
    chosen = instance.id in json.loads(ask["InstanceIds"]) if "InstanceIds" in ask else True
    return tags and chosen and instance.state != "terminated"


def _described(instance: SimulatedInstance) -> dict[str, Any]:
    names = {WORLD_GROUP: TAG_GROUP}
    return {
        "InstanceId": instance.id,
        "InstanceType": "ecs.gn7i-c8g1.2xlarge",
        "Status": STATES[instance.state],
        "CreationTime": f"{instance.launched_at:%Y-%m-%dT%H:%MZ}",
        "StartTime": f"{instance.launched_at:%Y-%m-%dT%H:%MZ}",
        "SpotStrategy": "SpotAsPriceGo" if instance.spot else "NoSpot",
        "Tags": {
            "Tag": [
                {"TagKey": names.get(key, key), "TagValue": value} for key, value in instance.tags.items()
            ]
        },
        "OperationLocks": {"LockReason": []},
        "DeletionProtection": instance.is_locked,
    }


def _point(key: str, at: datetime, value: float) -> dict[str, Any]:
    named = {"userId": "1234567890123456", "groupId": "0", "dimension": f"InstanceId={key}"}
    return (
        named
        | {"timestamp": round(at.timestamp() * 1000)}
        | dict.fromkeys(("Minimum", "Average", "Sum"), value)
    )
