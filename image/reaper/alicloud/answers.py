"""From the answers of Alibaba Cloud to the words of this room. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from image.reaper.alicloud.lifecycle import IN_SERVICE, PROTECTED
from image.reaper.model import TAG_POOL, Group, Instance
from image.reaper.times import parse_time

TAG_GROUP = "acs:autoscaling:scalingGroupId"  # set by Auto Scaling on the machines that it starts
# The API tells no time of a stop. The sweep writes down its own; what people stop, it never ends.
TAG_STOPPED_AT = "gpu-fleet:stopped-at"
LAUNCH = "ScaleOut"  # a scaling process
STATES = {
    "Pending": "pending",
    "Starting": "pending",
    "Running": "running",
    "Stopping": "stopping",
    "Stopped": "stopped",
}


def instance_of(raw: Mapping[str, Any]) -> Instance:
    """One machine of DescribeInstances."""
    tags = {tag["TagKey"]: tag["TagValue"] for tag in raw.get("Tags", {}).get("Tag", [])}
    # The cloud tells whole minutes. The end of that minute: nobody may count as older than they are.
    launched_at = parse_time(raw.get("StartTime") or raw["CreationTime"]) + timedelta(minutes=1)
    stopped_at = None
    if raw["Status"] == "Stopped" and TAG_STOPPED_AT in tags:
        noted = _time(tags[TAG_STOPPED_AT])
        stopped_at = noted if noted is not None and noted >= launched_at else None
    return Instance(
        id=raw["InstanceId"],
        type=raw["InstanceType"],
        state=STATES.get(raw["Status"], raw["Status"].lower()),
        launched_at=launched_at,
        tags=tags,
        spot=raw.get("SpotStrategy", "NoSpot") != "NoSpot",
        stopped_at=stopped_at,
        locked=_lock(raw),
    )


def _lock(raw: Mapping[str, Any]) -> str:
    """Why the cloud itself would not let it go, or an empty text."""
    reasons = [one["LockReason"] for one in raw.get("OperationLocks", {}).get("LockReason", [])]
    if reasons:
        return f"locked by the cloud: {', '.join(reasons)}"
    return "deletion protection is on" if raw.get("DeletionProtection") else ""


def _time(text: str) -> datetime | None:
    try:
        return parse_time(text)
    except ValueError:
        return None


def group_of(raw: Mapping[str, Any], members: Mapping[str, str]) -> Group:
    """One group of DescribeScalingGroups, with its members and what each is doing."""
    tags = {tag["TagKey"]: tag["TagValue"] for tag in raw.get("Tags") or []}
    states = {key: IN_SERVICE if state == PROTECTED else state for key, state in members.items()}
    return Group(
        name=raw["ScalingGroupId"],
        min_size=raw["MinSize"],
        desired=raw["DesiredCapacity"] if raw.get("EnableDesiredCapacity", True) else raw["TotalCapacity"],
        members=states,
        max_size=raw["MaxSize"],
        pool=tags.get(TAG_POOL, ""),
        closed=LAUNCH in (raw.get("SuspendedProcesses") or []),
    )
