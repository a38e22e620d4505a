"""What the mover does to scaling groups, in each cloud's own calls."""

from datetime import UTC, datetime

import pytest

from gpu_fleet_image.controllers.mover import alicloud, aws
from gpu_fleet_image.core.calls import Calls
from tests.image.alicloud_server import clients, serving
from tests.stacks.aws_account import Account

AT = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)
NO_ROOM = "no room in this zone"


def calls():
    return Calls(lambda: AT)


class GroupOnAws:
    """An Auto Scaling group, from which a sweep may detach one right before a call."""

    def __init__(self, desired=2, members=2, before_call=0):
        self.desired, self.members = desired, [f"i-{number}" for number in range(members)]
        self._before_call, self._calls, self.wanted = before_call, 0, []

    def _count(self):
        self._calls += 1
        if self._calls == self._before_call:
            self.members.pop()
            self.desired -= 1

    def describe_auto_scaling_groups(self, AutoScalingGroupNames):  # noqa: N803 - boto3's
        self._count()
        instances = [{"InstanceId": member, "LifecycleState": "InService"} for member in self.members]
        group = {"DesiredCapacity": self.desired, "MinSize": 0, "Instances": instances}
        return {"AutoScalingGroups": [group]}

    def set_desired_capacity(self, DesiredCapacity, **_):  # noqa: N803 - boto3's
        self._count()
        self.desired = DesiredCapacity
        self.wanted.append(DesiredCapacity)
        return {}


@pytest.mark.parametrize(
    ("before_call", "number", "desired", "members"),
    [*((call, 1, 2, ["i-0"]) for call in (1, 2, 3)), (0, 2, 4, ["i-0", "i-1"])],
)
def test_a_sweep_that_detaches_while_a_group_is_raised_costs_no_instance_more(
    before_call, number, desired, members
):
    """Before the group is read, before it is set, before it is read again, and never."""
    group = GroupOnAws(before_call=before_call)

    aws.Groups(group, calls()).start("g", number)

    assert (group.desired, group.members) == (desired, members)


@pytest.mark.parametrize(("desired", "members", "after"), [(2, 0, [1]), (2, 1, [1]), (2, 2, []), (1, 1, [])])
def test_what_is_revoked_terminates_no_member(desired, members, after):
    group = GroupOnAws(desired, members)

    aws.Groups(group, calls()).withdraw("g", 1)

    assert group.wanted == after


def activity(status, description="Launching a new EC2 instance: i-1"):
    known = {"ActivityId": "a", "AutoScalingGroupName": "g", "Cause": "a user request", "StartTime": AT}
    return known | {"Description": description, "StatusCode": status, "StatusMessage": NO_ROOM}


@pytest.mark.parametrize(
    ("activities", "why"),
    [
        ([activity("Failed")], NO_ROOM),
        ([activity("Successful"), activity("Failed")], None),
        ([activity("InProgress"), activity("Failed")], NO_ROOM),
        ([activity("Failed", "Terminating EC2 instance: i-1")], None),
        ([], None),
    ],
)
def test_a_launch_that_failed_counts_until_another_succeeds(activities, why):
    account = Account({"autoscaling:DescribeScalingActivities": {"Activities": activities}})

    found = aws.Groups(account.client("autoscaling"), calls()).failure("g")

    assert (found.why if found else None) == why


class Ess:
    """One scaling group of Alibaba Cloud; every call that changes it is kept."""

    def __init__(self, **group):
        self.group = {"ScalingGroupId": "asg-1", "MinSize": 0, "TotalCapacity": 0} | group
        self.activities = []
        self.changes = []

    def describe_scaling_groups(self, _):
        return {"ScalingGroups": [self.group], "TotalCount": 1}

    def describe_scaling_activities(self, ask):
        found = [one for one in self.activities if one["ScalingActivityId"] in ask["ScalingActivityIds"]]
        return {"ScalingActivities": found, "TotalCount": len(found)}

    def scale_with_adjustment(self, ask):
        self.changes.append((ask["AdjustmentType"], ask["AdjustmentValue"]))
        return {"ScalingActivityId": "asa-1"}

    def modify_scaling_group(self, ask):
        self.changes.append(("DesiredCapacity", ask["DesiredCapacity"]))
        return {}


def test_alibaba_cloud_is_asked_for_more_by_an_adjustment():
    ess = Ess()
    with serving(ess) as server:
        activity = alicloud.Groups(clients(server).ess, calls()).start("asg-1", 2)

    assert activity == "asa-1"
    assert ess.changes == [("QuantityChangeInCapacity", "2")]


@pytest.mark.parametrize(
    ("group", "changes"),
    [
        ({"DesiredCapacity": 2, "TotalCapacity": 1}, [("DesiredCapacity", "1")]),
        ({"DesiredCapacity": 2, "TotalCapacity": 2}, []),
        ({"EnableDesiredCapacity": False, "DesiredCapacity": 0}, []),
    ],
)
def test_alibaba_cloud_takes_back_only_what_never_started(group, changes):
    ess = Ess(**group)
    with serving(ess) as server:
        alicloud.Groups(clients(server).ess, calls()).withdraw("asg-1", 1)

    assert ess.changes == changes


@pytest.mark.parametrize("status", ["Failed", "Warning", "Rejected"])
def test_an_activity_of_alibaba_cloud_that_failed_says_why(status):
    ess, failed = Ess(), {"ScalingActivityId": "asa-1", "StatusCode": status, "ErrorMessage": NO_ROOM}
    ess.activities = [failed | {"StartTime": "2026-11-22T10:00Z", "Cause": "asked"}]
    with serving(ess) as server:
        groups = alicloud.Groups(clients(server).ess, calls())
        found, of_another = groups.failure("asg-1", ["asa-1"]), groups.failure("asg-1", ["asa-2"])

    assert of_another is None
    assert groups.failure("asg-1", []) is None
    assert (found.at, found.why) == (AT, NO_ROOM)
