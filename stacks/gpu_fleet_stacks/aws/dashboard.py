"""One page that shows the stack: number and load of instances, their cost, and results of the sweep.

Of the GPUs it shows only the metrics that agents publish. Temperatures and errors come from NVIDIA's exporter
through Prometheus (``stacks/gpu_fleet_stacks/monitoring``).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core.metrics import (
    METRIC_GPU_MEMORY,
    METRIC_GPU_SM_ACTIVITY,
    METRIC_GPU_UTILISATION,
    METRIC_MONTH_COST,
    METRIC_MONTH_FORECAST,
)
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

PERIOD_S = 300
# A row of CloudWatch's grid has 24 columns.
COLUMNS, HEIGHT = 24, 6
# The meter's name for the cost that all pools share.
SHARED = "_shared"
SPOT_WARNING = "EC2 Spot Instance Interruption Warning"

Name = pulumi.Input[str]
Widget = dict[str, Any]


@dataclass(frozen=True)
class DashboardArgs:
    """Inputs of the dashboard.

    Attributes:
        group_names: pool -> its Auto Scaling groups.
    """

    stack: Stack
    group_names: Mapping[str, Sequence[Name]]


class Dashboard(pulumi.ComponentResource):
    """The dashboard, and the rule that counts spot interruptions for it."""

    url: str

    def __init__(self, name: str, args: DashboardArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Dashboard", name, None, opts)
        stack, child = args.stack, pulumi.ResourceOptions(parent=self)
        # The rule has no target: EventBridge counts the events that it matches, and only that count is
        # needed.
        interruptions = aws.cloudwatch.EventRule(
            f"{name}-spot-interruptions",
            name=f"{name}-spot-interruptions",
            description="Counts spot interruptions, for the dashboard",
            event_pattern=json.dumps({"source": ["aws.ec2"], "detail-type": [SPOT_WARNING]}),
            tags=naming.tags(stack.name, stack.owner),
            opts=child,
        )
        listed = widgets(stack, args.group_names, interruptions.name)
        aws.cloudwatch.Dashboard(
            name,
            dashboard_name=name,
            dashboard_body=pulumi.Output.json_dumps({"start": "-P7D", "widgets": listed}),
            opts=child,
        )
        self.url = url(stack, name)
        self.register_outputs({"url": self.url})


def widgets(stack: Stack, group_names: Mapping[str, Sequence[Name]], spot_rule: Name) -> list[Widget]:
    """Return all widgets of the page, three graphs a row. Pure.

    Args:
        group_names: pool -> its Auto Scaling groups.
    """
    width = COLUMNS // 3
    return [
        {
            "type": "metric",
            "x": index % 3 * width,
            "y": index // 3 * HEIGHT,
            "width": width,
            "height": HEIGHT,
            "properties": graph,
        }
        for index, graph in enumerate(_graphs(stack, group_names, spot_rule))
    ]


def _graphs(stack: Stack, group_names: Mapping[str, Sequence[Name]], spot_rule: Name) -> Iterator[Widget]:
    own, currency = naming.metric_namespace(stack.name), stack.budget.currency
    busy = {"expression": mean_of(own, "ActiveFraction"), "label": "instances in use", "id": "busy"}
    computing = {"expression": computing_share(own), "label": "GPUs computing", "id": "computing"}
    active = {"expression": sm_activity(own), "label": "SM activity", "id": "active"}
    memory = _by_pool(stack, own, METRIC_GPU_MEMORY)
    hour = _by_pool(stack, own, "HourCost", SHARED)
    taken_back = ["AWS/Events", "TriggeredRules", "RuleName", spot_rule, {"label": "interrupted"}]
    freeze = [own, "FreezeStage"]
    yield _graph("instances in service", stack, _sizes(group_names), "Average")
    yield _graph(
        "share of instances that worked, of GPUs that computed",
        stack,
        [[busy], [computing], [active]],
        "Average",
        top=1,
    )
    yield _graph("memory of the fullest GPU, %", stack, memory, "Maximum")
    yield _graph(f"month's cost against the budget, {currency}", stack, _month(own), "Maximum")
    yield _graph(f"cost of an hour by pool, {currency}", stack, hour, "Maximum")
    yield _graph("sweep: marked, terminated or stopped, unknown", stack, _sweep(own), "Sum")
    yield _graph("sweep: runs, failures, breaker", stack, _health(own), "Sum")
    yield _graph(f"spot interruptions of the account in {stack.region}", stack, [taken_back], "Sum")
    yield _graph("pools that freeze: 0 open, 1 capped, 2 closed", stack, [freeze], "Maximum", top=2)


def mean_of(namespace: str, metric: str) -> str:
    """Return the mean of a metric over all instances; a search includes new ones automatically."""
    search = f"SEARCH('{{\"{namespace}\",InstanceId}} MetricName=\"{metric}\"', 'Average', {PERIOD_S})"
    return f"AVG({search})"


def computing_share(namespace: str) -> str:
    """Return the share of the instances' GPUs that computed."""
    return f"{mean_of(namespace, METRIC_GPU_UTILISATION)} / 100"


def sm_activity(namespace: str) -> str:
    """Return the mean SM activity of the GPUs that report it, 0 to 1."""
    return f"{mean_of(namespace, METRIC_GPU_SM_ACTIVITY)} / 100"


def url(stack: Stack, name: str) -> str:
    """Return the address of a dashboard in the console."""
    suffix = "amazonaws-us-gov.com" if stack.region.startswith("us-gov-") else "aws.amazon.com"
    return f"https://{stack.region}.console.{suffix}/cloudwatch/home?region={stack.region}#dashboards/dashboard/{name}"


def _graph(
    title: str, stack: Stack, metrics: list[list[Any]], statistic: str, top: int | None = None
) -> Widget:
    axis: dict[str, Any] = {"min": 0} if top is None else {"min": 0, "max": top}
    return {
        "title": title,
        "view": "timeSeries",
        "region": stack.region,
        "period": PERIOD_S,
        "stat": statistic,
        "metrics": metrics,
        "yAxis": {"left": axis},
    }


def _sizes(group_names: Mapping[str, Sequence[Name]]) -> list[list[Any]]:
    """Return the running and the wanted size of each group."""
    return [
        ["AWS/AutoScaling", metric, "AutoScalingGroupName", group, {"label": f"{pool} {word}"}]
        for pool, groups in group_names.items()
        for group in groups
        for metric, word in (("GroupInServiceInstances", "running"), ("GroupDesiredCapacity", "wanted"))
    ]


def _by_pool(stack: Stack, own: str, metric: str, *more: str) -> list[list[Any]]:
    pools = (*(pool.name for pool in stack.pools), *more)
    return [[own, metric, "Pool", pool, {"label": pool.strip("_")}] for pool in pools]


def _month(own: str) -> list[list[Any]]:
    return [
        [own, metric, {"label": label}]
        for metric, label in (
            (METRIC_MONTH_COST, "so far"),
            (METRIC_MONTH_FORECAST, "at this pace"),
            ("MonthBudget", "budget"),
        )
    ]


def _sweep(own: str) -> list[list[Any]]:
    return [[own, f"SweepMachines{what}", {"label": what.lower()}] for what in ("Marked", "Ended", "Unknown")]


def _health(own: str) -> list[list[Any]]:
    return [[own, f"Sweep{what}"] for what in ("Runs", "Failures", "BreakerTrips")]
