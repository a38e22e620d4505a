"""The declared dashboard of a stack, with the metric names that agents and sweep publish."""

import json

import pytest

from gpu_fleet_image.core import metrics
from gpu_fleet_stacks.aws.dashboard import SHARED
from gpu_fleet_stacks.core.naming import metric_namespace, prefixed

PUBLISHED = {value for name, value in vars(metrics).items() if name.startswith("METRIC_")}
# docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-metrics.html and eventbridge/latest/userguide
OF_AWS = {"GroupInServiceInstances", "GroupDesiredCapacity", "TriggeredRules"}


@pytest.fixture
def body(declared):
    (dashboard,) = declared.inputs("aws:cloudwatch/dashboard:Dashboard")
    assert dashboard["dashboardName"] == prefixed(declared.settings.name)
    return json.loads(dashboard["dashboardBody"])


@pytest.fixture
def graphs(body):
    """Return every line of every graph: a metric, or a search."""
    return [row for widget in body["widgets"] for row in widget["properties"]["metrics"]]


@pytest.fixture
def rows(graphs):
    return [[part for part in row if isinstance(part, str)] for row in graphs if isinstance(row[0], str)]


def test_it_shows_size_work_memory_cost_sweep_and_spot(body):
    titles = " ".join(widget["properties"]["title"] for widget in body["widgets"])

    for subject in ("instances", "worked", "memory", "budget", "sweep", "spot", "freeze"):
        assert subject in titles


def test_every_metric_is_one_that_a_user_publishes(rows, declared):
    own = metric_namespace(declared.settings.name)

    assert {row[1] for row in rows if row[0] == own} <= PUBLISHED
    assert {row[1] for row in rows if row[0] != own} <= OF_AWS


def test_shares_in_use_and_computing_are_searched_for_in_the_stacks_own_namespace(graphs, declared):
    own = metric_namespace(declared.settings.name)
    searches = [row[0]["expression"] for row in graphs if isinstance(row[0], dict)]

    def mean(name):
        place = f'{{"{own}",{metrics.DIMENSION_INSTANCE}}}'
        return f"AVG(SEARCH('{place} MetricName=\"{name}\"', 'Average', 300))"

    computing = f"{mean(metrics.METRIC_GPU_UTILISATION)} / 100"
    active = f"{mean(metrics.METRIC_GPU_SM_ACTIVITY)} / 100"
    assert searches == [mean(metrics.METRIC_ACTIVE_FRACTION), computing, active]


def test_every_pool_and_every_group_has_its_lines(rows, declared):
    pools = {pool.name for pool in declared.settings.pools}
    groups = {group.outputs["name"] for group in declared.of_type(declared.words.group)}

    assert {row[3] for row in rows if row[1] == "HourCost"} == pools | {SHARED}
    assert {row[3] for row in rows if row[1] == metrics.METRIC_GPU_MEMORY} == pools
    assert {row[3] for row in rows if row[1] == "GroupDesiredCapacity"} == groups


def test_spot_interruptions_are_counted_by_a_rule_that_is_there(rows, declared):
    ((*_, name),) = [row for row in rows if row[1] == "TriggeredRules"]

    rules = declared.of_type("aws:cloudwatch/eventRule:EventRule")
    (pattern,) = [rule.inputs["eventPattern"] for rule in rules if rule.outputs["name"] == name]
    warning = {"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}
    assert json.loads(pattern) == warning


def test_graphs_lie_side_by_side_and_never_on_one_another(body):
    cells = [
        (x, y)
        for widget in body["widgets"]
        for x in range(widget["x"], widget["x"] + widget["width"])
        for y in range(widget["y"], widget["y"] + widget["height"])
    ]

    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_output_says_where_to_open_it(declared):
    region = declared.settings.region

    assert declared.rehearsed.outputs["dashboard_url"] == (
        f"https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
        f"#dashboards/dashboard/{prefixed(declared.settings.name)}"
    )
