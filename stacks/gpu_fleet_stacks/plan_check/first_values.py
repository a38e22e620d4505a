"""Report a metric to CloudMonitor before Auto Scaling is asked to watch it."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpu_fleet_stacks.alicloud.first_pass import FirstValue
from gpu_fleet_stacks.plan_check.errors import PlanError

# API PutCustomMetric: a reported value can be read after a minute or two.
LOOK_EVERY_S, LOOKS = 10, 30
RAW = "0"
PERIOD_S = 60


class AlicloudCalls(Protocol):
    """Client of the cloud (``gpu_fleet_stacks.clients.alicloud.Alicloud``)."""

    def ask(self, product: str, action: str, **parameters: str) -> dict[str, Any]: ...


def report(
    cloud: AlicloudCalls,
    group: str,
    account: str,
    values: Sequence[FirstValue],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Report a zero of each metric into the application group, and wait until CloudMonitor shows it.

    A zero starts nothing: the alarms react to high values, and the agents' own values follow.

    Args:
        cloud: with the credentials of the operator who runs ``up``.
        group: the application group's id.
        account: the account's id, part of the namespace.

    Raises:
        CannotCheckError: a call was refused or not answered.
        PlanError: CloudMonitor does not show a value after five minutes.
    """
    for first in values:
        cloud.ask("cms", "PutCustomMetric", **_reported(first, group))
    for awaited in values:
        _await(cloud, account, awaited.metric, group, wait)


def _reported(first: FirstValue, group: str) -> dict[str, str]:
    return {
        "MetricList.1.MetricName": first.metric,
        "MetricList.1.GroupId": group,
        "MetricList.1.Type": RAW,
        "MetricList.1.Dimensions": json.dumps(dict(sorted(first.dimensions.items()))),
        "MetricList.1.Values": json.dumps({"value": 0}),
    }


def _await(
    cloud: AlicloudCalls, account: str, metric: str, group: str, wait: Callable[[float], None]
) -> None:
    for _ in range(LOOKS):
        answer = cloud.ask(
            "cms",
            "DescribeMetricLast",
            Namespace=f"acs_customMetric_{account}",
            MetricName=metric,
            Period=str(PERIOD_S),
        )
        points = json.loads(answer.get("Datapoints") or "[]")
        if any(str(point.get("groupId")) == group for point in points):
            return
        wait(LOOK_EVERY_S)
    raise PlanError(
        f"CloudMonitor took {metric} into group {group} and does not show it: run `gpu-fleet up` again"
    )
