"""The mover on AWS: changes of Auto Scaling groups, and its Lambda function."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.controllers.mover.mover import log, move
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.capacity import Trouble
from gpu_fleet_image.core.cloud import connect, policy_file
from gpu_fleet_image.providers.aws.session import clients

# Left at the end, to write down what was begun.
RESERVE = timedelta(seconds=15)
NEWEST = 20  # activities of one DescribeScalingActivities, the newest first
# How the description of a launch begins (Auto Scaling user guide, "Verify a scaling activity").
LAUNCHING = "Launching"
FAILED, SUCCESSFUL = frozenset({"Failed", "Cancelled"}), "Successful"


class Groups:
    """Auto Scaling groups; see ``mover.Groups``."""

    def __init__(self, autoscaling: Any, calls: Calls) -> None:
        self._autoscaling, self._calls = autoscaling, calls

    def start(self, group: str, number: int) -> str:
        """Raise a group from its desired capacity of this moment: a sweep may be detaching an instance.

        SetDesiredCapacity has no condition: what a sweep takes between reading and setting is seen right
        after, and taken off again.
        """
        before = self._now(group)
        self._set(group, before["DesiredCapacity"] + number)
        after = self._now(group)
        left = _staying(before) - _staying(after)
        wanted = max(before["DesiredCapacity"] + number - len(left), after["MinSize"])
        if left and wanted < after["DesiredCapacity"]:
            self._set(group, wanted)
        return ""

    def withdraw(self, group: str, number: int) -> None:
        """Lower a group. Members launch protected from scale-in: one that starts at this moment stays."""
        now = self._now(group)
        staying = sum(not instance["LifecycleState"].startswith("Terminat") for instance in now["Instances"])
        least = max(staying, now["MinSize"], now["DesiredCapacity"] - number)
        if least < now["DesiredCapacity"]:
            self._set(group, least)

    def failure(self, group: str, activities: Collection[str] = ()) -> Trouble | None:  # noqa: ARG002 - none is named
        """Return the newest failed launch, of all activities that begin as a launch does."""
        answer = self._calls.read(
            self._autoscaling.describe_scaling_activities, AutoScalingGroupName=group, MaxRecords=NEWEST
        )
        for activity in answer["Activities"]:
            if not activity.get("Description", "").startswith(LAUNCHING):
                continue
            if activity["StatusCode"] == SUCCESSFUL:
                return None
            if activity["StatusCode"] in FAILED:
                return Trouble(
                    activity.get("EndTime") or activity["StartTime"],
                    activity.get("StatusMessage", "no reason given"),
                )
        return None

    def _now(self, group: str) -> dict[str, Any]:
        answer = self._calls.read(
            self._autoscaling.describe_auto_scaling_groups, AutoScalingGroupNames=[group]
        )
        return dict(answer["AutoScalingGroups"][0])

    def _set(self, group: str, desired: int) -> None:
        self._calls.change(
            self._autoscaling.set_desired_capacity,
            AutoScalingGroupName=group,
            DesiredCapacity=desired,
            HonorCooldown=False,
        )


def _staying(group: Mapping[str, Any]) -> set[str]:
    """Return the number of members that nobody detaches."""
    return {
        instance["InstanceId"]
        for instance in group["Instances"]
        if not instance["LifecycleState"].startswith("Detach")
    }


def handle(event: object, context: Any) -> Mapping[str, Any]:  # noqa: ARG001 - every event starts the same pass
    """Run one pass as a Lambda function: each minute, and when a launch failed.

    Raises:
        ReaperError: nothing could be done at all; Lambda counts it as an error, which is an alarm.
    """
    remaining = timedelta(milliseconds=context.get_remaining_time_in_millis())
    return run(datetime.now(UTC) + remaining)


def run(ends_at: datetime, as_of: datetime | None = None) -> Mapping[str, Any]:
    """Run one pass."""
    policy = policies.load(policy_file())
    clock = lambda: as_of or datetime.now(UTC)  # noqa: E731 - a clock
    cloud = connect(policy, clock, deadline=ends_at - RESERVE)
    groups = Groups(clients(policy.region).autoscaling, cloud.calls)
    return log(move(cloud, groups, policy, clock))
