"""The mover on Alibaba Cloud: changes of scaling groups, and its function in Function Compute."""

import json
import os
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.controllers.mover.mover import log, move
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.capacity import Trouble
from gpu_fleet_image.core.cloud import connect, policy_file
from gpu_fleet_image.core.times import parse_time
from gpu_fleet_image.providers.alicloud.connect import credentials
from gpu_fleet_image.providers.alicloud.session import ENDPOINT, Product, clients

RESERVE = timedelta(seconds=15)
NEWEST = 10  # activities of one page, the newest first (ESS, API DescribeScalingActivities)
# A launch that brought only a part of its instances ends in Warning.
FAILED, SUCCESSFUL = frozenset({"Failed", "Warning", "Rejected"}), "Successful"


class Groups:
    """Scaling groups; see ``mover.Groups``. A group's name is its id here."""

    def __init__(self, ess: Product, calls: Calls) -> None:
        self._ess, self._calls = ess, calls

    def start(self, group: str, number: int) -> str:
        """Raise a group, relative to its size: a group may have no expected number.

        See docs/explanation/clouds.md.
        """
        made = self._calls.change(
            self._ess.action("ScaleWithAdjustment"),
            ScalingGroupId=group,
            AdjustmentType="QuantityChangeInCapacity",
            AdjustmentValue=number,
        )
        return str(made.get("ScalingActivityId", ""))

    def withdraw(self, group: str, number: int) -> None:
        """Lower a group. One without an expected number wants nothing more once its activity failed."""
        page = self._calls.read(self._ess.action("DescribeScalingGroups"), ScalingGroupIds=[group])
        now = page["ScalingGroups"][0]
        if not now.get("EnableDesiredCapacity", True) or now.get("DesiredCapacity") is None:
            return
        least = max(now["TotalCapacity"], now["MinSize"], now["DesiredCapacity"] - number)
        if least < now["DesiredCapacity"]:
            self._calls.change(
                self._ess.action("ModifyScalingGroup"), ScalingGroupId=group, DesiredCapacity=least
            )

    def failure(self, group: str, activities: Collection[str]) -> Trouble | None:
        """Return the newest failed launch. The list names no kind of activity, and a sweep's may fail too."""
        if not activities:
            return None
        page = self._calls.read(
            self._ess.action("DescribeScalingActivities"),
            ScalingGroupId=group,
            ScalingActivityIds=sorted(activities),
            PageNumber=1,
            PageSize=NEWEST,
        )
        for activity in page["ScalingActivities"]:
            if activity["StatusCode"] == SUCCESSFUL:
                return None
            if activity["StatusCode"] in FAILED:
                why = (
                    activity.get("ErrorMessage")
                    or activity.get("StatusMessage")
                    or activity.get("Cause", "no reason given")
                )
                return Trouble(parse_time(activity.get("EndTime") or activity["StartTime"]), why)
        return None


def handle(event: bytes, context: Any) -> str:  # noqa: ARG001 - every event starts the same pass
    """Run one pass as a function, each minute; returns and raises as ``run``."""
    return json.dumps(run(datetime.now(UTC) + timedelta(seconds=context.function.timeout)))


def run(ends_at: datetime, as_of: datetime | None = None) -> Mapping[str, Any]:
    """Run one pass.

    Raises:
        ReaperError: nothing could be done at all; the function counts it as an error.
    """
    policy = policies.load(policy_file())
    clock = lambda: as_of or datetime.now(UTC)  # noqa: E731 - a clock
    cloud = connect(policy, clock, deadline=ends_at - RESERVE)
    own = clients(policy.region, credentials(os.environ), os.environ.get(ENDPOINT, ""))
    return log(move(cloud, Groups(own.ess, cloud.calls), policy, clock))
