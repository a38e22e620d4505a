"""The boto3 clients of a sweep, which answer from a ``World``."""
# ruff: noqa: N803, PLR0917 - the argument names and their number are boto3's

import bisect
import io
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.core.model import TAG_WITHDRAWN
from gpu_fleet_image.providers.aws.session import Clients
from tests.image.world import SimulatedInstance, World, refusal


def clients(world: World) -> Clients:
    """Return the boto3 clients of a world."""
    ec2 = _Ec2(world)
    return Clients(ec2, _AutoScaling(world), _CloudWatch(world), _Sns(world), _S3(world), ec2)


class _Client:
    """Part of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _find(self, ids: list[str], operation: str) -> list[SimulatedInstance]:
        missing = [key for key in ids if key not in self._world.instances]
        if missing or any(self._world.instances[key].state == "terminated" for key in ids):
            raise refusal("InvalidInstanceID.NotFound", operation)
        return [self._world.instances[key] for key in ids]


class _Ec2(_Client):
    def describe_instances(self, Filters, MaxResults, NextToken="0"):
        world = self._world
        world.before("DescribeInstances")
        wanted = [
            instance
            for instance in world.instances.values()
            if all(_matches(instance, part) for part in Filters)
        ]
        start, size = int(NextToken), min(MaxResults, world.page)
        page = {
            "Reservations": [
                {"Instances": [_describe(instance)]} for instance in wanted[start : start + size]
            ]
        }
        if world.chance(world.faults.duplicated):
            page["Reservations"] *= 2
        if start + size < len(wanted):
            page["NextToken"] = str(start + size)
        return world.answer("DescribeInstances", page)

    def describe_volumes(self, Filters, MaxResults):
        self._world.before("DescribeVolumes")
        return self._world.answer("DescribeVolumes", {"Volumes": []})

    def describe_addresses(self, Filters):
        self._world.before("DescribeAddresses")
        return self._world.answer("DescribeAddresses", {"Addresses": []})

    def describe_spot_price_history(self, InstanceTypes, ProductDescriptions, StartTime, EndTime):
        self._world.before("DescribeSpotPriceHistory")
        assert (ProductDescriptions, StartTime) == (["Linux/UNIX"], EndTime)
        values_of_world = [
            {"InstanceType": kind, "AvailabilityZone": zone, "SpotPrice": str(price)}
            for kind in InstanceTypes
            for zone, price in self._world.spot_prices.get(kind, {}).items()
        ]
        return self._world.answer("DescribeSpotPriceHistory", {"SpotPriceHistory": values_of_world})

    def describe_instance_attribute(self, InstanceId, Attribute):
        self._world.before("DescribeInstanceAttribute")
        (instance,) = self._find([InstanceId], "DescribeInstanceAttribute")
        name = {"disableApiTermination": "DisableApiTermination", "disableApiStop": "DisableApiStop"}[
            Attribute
        ]
        locked = instance.is_locked and Attribute == "disableApiTermination"
        return self._world.answer("DescribeInstanceAttribute", {name: {"Value": locked}})

    def create_tags(self, Resources, Tags):
        self._world.before("CreateTags")
        for instance in self._find(Resources, "CreateTags"):
            instance.tags |= {tag["Key"]: tag["Value"] for tag in Tags}
        self._world.after("CreateTags")
        return self._world.answer("CreateTags", {})

    def delete_tags(self, Resources, Tags):
        self._world.before("DeleteTags")
        for instance in self._find(Resources, "DeleteTags"):
            for tag in Tags:
                instance.tags.pop(tag["Key"], None)
        self._world.after("DeleteTags")
        return self._world.answer("DeleteTags", {})

    def stop_instances(self, InstanceIds):
        return self._end("StopInstances", InstanceIds, "stopped")

    def terminate_instances(self, InstanceIds):
        return self._end("TerminateInstances", InstanceIds, "terminated")

    def _end(self, operation, ids, how):
        self._world.before(operation)
        found = self._find(ids, operation)
        if any(
            TAG_WITHDRAWN in instance.tags for instance in found
        ):  # as the policy of the sweep's role says
            raise refusal("UnauthorizedOperation", operation)
        for instance in found:
            if instance.stubborn or (instance.is_locked and how == "terminated"):
                # those listed before it are gone already
                raise refusal("OperationNotPermitted", operation)
            self._world.gone(instance, how)
        self._world.after(operation)
        return self._world.answer(operation, {})


class _AutoScaling(_Client):
    def describe_auto_scaling_groups(self, MaxRecords, Filters=None, AutoScalingGroupNames=None):
        self._world.before("DescribeAutoScalingGroups")
        names = AutoScalingGroupNames or self._world.tagged_groups()
        groups = [self._describe(name) for name in names if name in self._world.groups]
        return self._world.answer("DescribeAutoScalingGroups", {"AutoScalingGroups": groups})

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

    def update_auto_scaling_group(self, AutoScalingGroupName, MaxSize):
        self._world.before("UpdateAutoScalingGroup")
        group = self._world.groups[AutoScalingGroupName]
        if MaxSize < group["min"]:
            raise refusal("ValidationError", "UpdateAutoScalingGroup")
        group["max"] = MaxSize
        group["desired"] = min(group["desired"], MaxSize)
        self._world.after("UpdateAutoScalingGroup")
        return self._world.answer("UpdateAutoScalingGroup", {})

    def suspend_processes(self, AutoScalingGroupName, ScalingProcesses):
        self._world.before("SuspendProcesses")
        self._world.groups[AutoScalingGroupName]["suspended"] |= set(ScalingProcesses)
        self._world.after("SuspendProcesses")
        return self._world.answer("SuspendProcesses", {})

    def resume_processes(self, AutoScalingGroupName, ScalingProcesses):
        self._world.before("ResumeProcesses")
        self._world.groups[AutoScalingGroupName]["suspended"] -= set(ScalingProcesses)
        self._world.after("ResumeProcesses")
        return self._world.answer("ResumeProcesses", {})

    def detach_instances(self, AutoScalingGroupName, InstanceIds, ShouldDecrementDesiredCapacity):
        self._world.before("DetachInstances")
        group = self._world.groups[AutoScalingGroupName]
        if not set(InstanceIds) <= set(group["members"]) or len(InstanceIds) > 20:  # API DetachInstances
            raise refusal("ValidationError", "DetachInstances")
        if ShouldDecrementDesiredCapacity and group["desired"] - len(InstanceIds) < group["min"]:
            raise refusal("ValidationError", "DetachInstances")
        self._world.detach(AutoScalingGroupName, InstanceIds, decrement=ShouldDecrementDesiredCapacity)
        self._world.after("DetachInstances")
        return self._world.answer("DetachInstances", {})

    def attach_instances(self, AutoScalingGroupName, InstanceIds):
        self._world.before("AttachInstances")
        self._world.groups[AutoScalingGroupName]["desired"] += len(InstanceIds)
        self._world.attach(AutoScalingGroupName, InstanceIds)
        return self._world.answer("AttachInstances", {})


class _CloudWatch(_Client):
    def get_metric_data(self, MetricDataQueries, StartTime, EndTime, ScanBy, MaxDatapoints, NextToken=""):
        world = self._world
        world.before("GetMetricData")
        if not NextToken and world.chance(world.faults.duplicated):
            return world.answer("GetMetricData", {"MetricDataResults": [], "NextToken": "rest"})
        cut = NextToken != "last" and world.chance(world.faults.partial)
        results = [self._result(query, StartTime, EndTime, cut=cut) for query in MetricDataQueries]
        if world.chance(world.faults.duplicated):
            results *= 2
        content = {"MetricDataResults": results}
        if cut and world.chance(world.faults.rest):
            content["NextToken"] = "last"
        return world.answer("GetMetricData", content)

    def _result(self, query, start, end, *, cut):
        stat = query["MetricStat"]
        (dimension,) = stat["Metric"]["Dimensions"]
        values_of_world = self._world.daily.get((dimension["Value"], stat["Metric"]["MetricName"]))
        if stat["Stat"] == "Average":
            step = timedelta(seconds=stat["Period"])
            times = [start + number * step for number in range((end - start) // step)]
            points = [] if values_of_world is None else [(at, values_of_world) for at in times]
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
        low = bisect.bisect_left(instance.beats_at, start)
        high = min(bisect.bisect_left(instance.beats_at, end), instance.shown(self._world.shown_after))
        minima: dict[int, float] = {}
        for index in range(low, high):
            slot = int(instance.beats_at[index].timestamp() // period_s)
            value = instance.beats[index]
            minima[slot] = min(value, minima.get(slot, value))
        return [
            (datetime.fromtimestamp(slot * period_s, UTC), value)
            for slot, value in sorted(minima.items(), reverse=True)
        ]

    def describe_alarms(self, AlarmNames, StateValue):
        self._world.before("DescribeAlarms")
        firing = [{"AlarmName": name} for name in AlarmNames if name in self._world.alarms]
        return self._world.answer("DescribeAlarms", {"MetricAlarms": firing})

    def put_metric_data(self, Namespace, MetricData):
        for datum in MetricData:
            self._world.published[datum["MetricName"]] += datum["Value"]
        return self._world.answer("PutMetricData", {})


class _Sns(_Client):
    def publish(self, TopicArn, Subject, Message):
        world = self._world
        world.before("Publish")
        if world.chance(world.faults.deaf):
            raise refusal("InternalError", "Publish")
        world.hear(Message)
        world.after("Publish")
        return world.answer("Publish", {})


class _S3(_Client):
    def get_object(self, Bucket, Key):
        self._world.before("GetObject")
        if Key not in self._world.objects:
            raise refusal("NoSuchKey", "GetObject")
        body, version = self._world.objects[Key]
        return self._world.answer("GetObject", {"Body": io.BytesIO(body), "ETag": version})

    def put_object(self, Bucket, Key, Body, ContentType, IfNoneMatch=None, IfMatch=None):
        assert ContentType.startswith(("application/json", "text/html"))
        world = self._world
        world.before("PutObject")
        there = world.objects.get(Key)
        if (IfNoneMatch and there) or (IfMatch and (there is None or there[1] != IfMatch)):
            raise refusal("PreconditionFailed", "PutObject")
        version = f'"{next(world.versions_made)}"'
        world.objects[Key] = (Body, version)
        world.modified[Key] = world.now
        world.after("PutObject")
        return world.answer("PutObject", {"ETag": version})

    def list_objects_v2(self, Bucket, Prefix, MaxKeys=1000, ContinuationToken="0", StartAfter=""):
        world = self._world
        world.before("ListObjectsV2")
        keys = sorted(key for key in world.objects if key.startswith(Prefix) and key > StartAfter)
        start, size = int(ContinuationToken), min(MaxKeys, world.page)
        found = [
            {"Key": key, "LastModified": world.modified.get(key, world.now).replace(microsecond=0)}
            for key in keys[start : start + size]
        ]
        cut = start + size < len(keys)
        more = {"NextContinuationToken": str(start + size)} if cut else {}
        answer = world.answer(
            "ListObjectsV2", {"Contents": found, "KeyCount": len(found), "IsTruncated": cut} | more
        )
        world.arrive()
        return answer


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
