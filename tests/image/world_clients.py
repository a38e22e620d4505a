"""The boto3 clients of a sweep, which answer from a ``World``."""
# ruff: noqa: N803, PLR0917 - the argument names and their number are boto3's

import io
from bisect import bisect_left
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

from gpu_fleet_image.core.model import TAG_WITHDRAWN
from gpu_fleet_image.providers.aws.session import Clients
from tests.image.world import SimulatedInstance, World, minima, operation_of, refusal


def clients(world: World) -> Clients:
    ec2 = _Ec2(world)
    return Clients(ec2, _AutoScaling(world), _CloudWatch(world), _Sns(world), _S3(world), ec2)


def _call(work: Callable[..., Any]) -> Callable[..., Any]:
    """Inject the world's faults before a call's work, and after a change; wrap its answer."""
    operation = operation_of(work)
    reads = operation.startswith(("Describe", "Get", "List"))

    @wraps(work)
    def call(self: "_Client", *arguments: Any, **named: Any) -> dict[str, Any]:
        self._world.before(operation)
        content = work(self, *arguments, **named) or {}
        if not reads:
            self._world.after(operation)
        answer = self._world.answer(operation, content)
        if operation == "ListObjectsV2" and self._world.way_back is not None:  # it is long on its way
            self._world.pass_seconds(self._world.way_back())
        return answer

    return call


class _Client:
    """Part of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _find(self, ids: list[str]) -> list[SimulatedInstance]:
        found = self._world.standing(ids)
        if len(found) != len(ids):
            raise refusal("InvalidInstanceID.NotFound")
        return found


class _Ec2(_Client):
    @_call
    def describe_instances(self, Filters, MaxResults, NextToken="0"):
        world = self._world
        wanted = [one for one in world.instances.values() if all(_matches(one, part) for part in Filters)]
        start, size = int(NextToken), min(MaxResults, world.page)
        page = {"Reservations": [{"Instances": [_describe(one)]} for one in wanted[start : start + size]]}
        if world.chance(world.faults.duplicated):
            page["Reservations"] *= 2
        if start + size < len(wanted):
            page["NextToken"] = str(start + size)
        return page

    @_call
    def describe_volumes(self, Filters, MaxResults):
        return {"Volumes": []}

    @_call
    def describe_addresses(self, Filters):
        return {"Addresses": []}

    @_call
    def describe_spot_price_history(self, InstanceTypes, ProductDescriptions, StartTime, EndTime):
        assert (ProductDescriptions, StartTime) == (["Linux/UNIX"], EndTime)
        return {
            "SpotPriceHistory": [
                {"InstanceType": kind, "AvailabilityZone": zone, "SpotPrice": str(price)}
                for kind in InstanceTypes
                for zone, price in self._world.spot_prices.get(kind, {}).items()
            ]
        }

    @_call
    def describe_instance_attribute(self, InstanceId, Attribute):
        (instance,) = self._find([InstanceId])
        locked = instance.is_locked and Attribute == "disableApiTermination"
        return {f"{Attribute[0].upper()}{Attribute[1:]}": {"Value": locked}}

    @_call
    def create_tags(self, Resources, Tags):
        for instance in self._find(Resources):
            instance.tags |= {tag["Key"]: tag["Value"] for tag in Tags}

    @_call
    def delete_tags(self, Resources, Tags):
        for instance in self._find(Resources):
            for tag in Tags:
                instance.tags.pop(tag["Key"], None)

    @_call
    def stop_instances(self, InstanceIds):
        self._end(InstanceIds, "stopped")

    @_call
    def terminate_instances(self, InstanceIds):
        self._end(InstanceIds, "terminated")

    def _end(self, ids, how):
        found = self._find(ids)
        # as the policy of the sweep's role says
        if any(TAG_WITHDRAWN in instance.tags for instance in found):
            raise refusal("UnauthorizedOperation")
        for instance in found:
            if instance.stubborn or (instance.is_locked and how == "terminated"):
                raise refusal("OperationNotPermitted")  # those listed before it are gone already
            self._world.gone(instance, how)


class _AutoScaling(_Client):
    @_call
    def describe_auto_scaling_groups(self, MaxRecords, Filters=None, AutoScalingGroupNames=None):
        names = AutoScalingGroupNames or self._world.tagged_groups()
        groups = [self._describe(name) for name in names if name in self._world.groups]
        return {"AutoScalingGroups": groups}

    def _describe(self, name):
        group = self._world.groups[name]
        members = [
            {"InstanceId": key, "LifecycleState": self._world.lifecycle.get(key, "InService")}
            for key in group["members"]
            if self._world.instances[key].state == "running"
        ]
        return {
            "AutoScalingGroupName": name,
            "MinSize": group["min"],
            "MaxSize": group["max"],
            "DesiredCapacity": group["desired"],
            "Instances": members,
            "Tags": [{"Key": key, "Value": value} for key, value in group["tags"].items()],
            "SuspendedProcesses": [{"ProcessName": name} for name in sorted(group["suspended"])],
        }

    @_call
    def update_auto_scaling_group(self, AutoScalingGroupName, MaxSize):
        group = self._world.groups[AutoScalingGroupName]
        if MaxSize < group["min"]:
            raise refusal("ValidationError")
        group["max"] = MaxSize
        group["desired"] = min(group["desired"], MaxSize)

    @_call
    def suspend_processes(self, AutoScalingGroupName, ScalingProcesses):
        self._world.groups[AutoScalingGroupName]["suspended"] |= set(ScalingProcesses)

    @_call
    def resume_processes(self, AutoScalingGroupName, ScalingProcesses):
        self._world.groups[AutoScalingGroupName]["suspended"] -= set(ScalingProcesses)

    @_call
    def detach_instances(self, AutoScalingGroupName, InstanceIds, ShouldDecrementDesiredCapacity):
        group = self._world.groups[AutoScalingGroupName]
        if not set(InstanceIds) <= set(group["members"]) or len(InstanceIds) > 20:  # API DetachInstances
            raise refusal("ValidationError")
        if ShouldDecrementDesiredCapacity and group["desired"] - len(InstanceIds) < group["min"]:
            raise refusal("ValidationError")
        self._world.detach(AutoScalingGroupName, InstanceIds, decrement=ShouldDecrementDesiredCapacity)

    @_call
    def attach_instances(self, AutoScalingGroupName, InstanceIds):
        self._world.groups[AutoScalingGroupName]["desired"] += len(InstanceIds)
        self._world.attach(AutoScalingGroupName, InstanceIds)


class _CloudWatch(_Client):
    @_call
    def get_metric_data(self, MetricDataQueries, StartTime, EndTime, ScanBy, MaxDatapoints, NextToken=""):
        world = self._world
        if not NextToken and world.chance(world.faults.duplicated):
            return {"MetricDataResults": [], "NextToken": "rest"}
        cut = NextToken != "last" and world.chance(world.faults.partial)
        results = [self._result(query, StartTime, EndTime, cut=cut) for query in MetricDataQueries]
        if world.chance(world.faults.duplicated):
            results *= 2
        content = {"MetricDataResults": results}
        if cut and world.chance(world.faults.rest):
            content["NextToken"] = "last"
        return content

    def _result(self, query, start, end, *, cut):
        stat = query["MetricStat"]
        (dimension,) = stat["Metric"]["Dimensions"]
        if stat["Stat"] == "Average":
            daily = self._world.daily.get((dimension["Value"], stat["Metric"]["MetricName"]))
            step = timedelta(seconds=stat["Period"])
            times = [start + number * step for number in range((end - start) // step)]
            points = [] if daily is None else [(at, daily) for at in times]
        else:
            points = self._minima(dimension["Value"], start, end, stat["Period"])
        if cut:
            points = points[self._world.faults.kept]
        return {
            "Id": query["Id"],
            "Timestamps": [at for at, _ in points],
            "Values": [value for _, value in points],
            "StatusCode": "PartialData" if cut else "Complete",
        }

    def _minima(self, key, start, end, period_s):
        instance = self._world.instances.get(key)
        if instance is None:
            return []
        times = instance.beats_at
        high = min(bisect_left(times, end), instance.shown(self._world.shown_after))
        return minima(times, instance.beats, range(bisect_left(times, start), high), period_s)

    @_call
    def describe_alarms(self, AlarmNames, StateValue):
        return {"MetricAlarms": [{"AlarmName": name} for name in AlarmNames if name in self._world.alarms]}

    def put_metric_data(self, Namespace, MetricData):
        for datum in MetricData:
            self._world.published[datum["MetricName"]] += datum["Value"]
        return self._world.answer("PutMetricData", {})


class _Sns(_Client):
    @_call
    def publish(self, TopicArn, Subject, Message):
        if self._world.chance(self._world.faults.deaf):
            raise refusal("InternalError")
        self._world.hear(Message)


class _S3(_Client):
    @_call
    def get_object(self, Bucket, Key, VersionId=None):
        if (stored := self._stored(Key, VersionId)) is None:
            raise refusal("NoSuchKey")
        return {"Body": io.BytesIO(stored[0]), "ETag": stored[1], "LastModified": self._written(Key)}

    def _written(self, key: str) -> datetime:
        return self._world.modified.get(key, self._world.now).replace(microsecond=0)

    def _stored(self, key: str, version: str | None) -> tuple[bytes, str] | None:
        return self._world.objects.get(key)

    @_call
    def put_object(self, Bucket, Key, Body, ContentType, IfNoneMatch=None, IfMatch=None):
        assert ContentType.startswith(("application/json", "text/html"))
        world = self._world
        there = world.objects.get(Key)
        if (IfNoneMatch and there) or (IfMatch and (there is None or there[1] != IfMatch)):
            raise refusal("PreconditionFailed")
        version = f'"{next(world.versions_made)}"'
        world.objects[Key] = (Body, version)
        world.modified[Key] = world.now
        return {"ETag": version}

    @_call
    def list_objects_v2(self, Bucket, Prefix, MaxKeys=1000, ContinuationToken="0", StartAfter=""):
        world = self._world
        keys = sorted(key for key in world.objects if key.startswith(Prefix) and key > StartAfter)
        start, size = int(ContinuationToken), min(MaxKeys, world.page)
        found = [{"Key": key, "LastModified": self._written(key)} for key in keys[start : start + size]]
        cut = start + size < len(keys)
        more = {"NextContinuationToken": str(start + size)} if cut else {}
        return {"Contents": found, "KeyCount": len(found), "IsTruncated": cut} | more


def _matches(instance: SimulatedInstance, part: dict[str, Any]) -> bool:
    name, values = part["Name"], part["Values"]
    if name.startswith("tag:"):
        return instance.tags.get(name.removeprefix("tag:")) in values
    if name == "instance-state-name":
        return instance.state in values
    assert name == "instance-id"
    return instance.id in values


def _describe(instance: SimulatedInstance) -> dict[str, Any]:
    described = {
        "InstanceId": instance.id,
        "InstanceType": "g5.xlarge",
        "State": {"Name": instance.state},
        "LaunchTime": instance.launched_at,
        "Tags": [{"Key": key, "Value": value} for key, value in instance.tags.items()],
    }
    if instance.spot:
        described["InstanceLifecycle"] = "spot"
    if instance.stopped_at is not None:
        described["StateTransitionReason"] = f"User initiated ({instance.stopped_at:%Y-%m-%d %H:%M:%S} GMT)"
    return described
