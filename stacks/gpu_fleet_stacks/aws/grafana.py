"""``python -m gpu_fleet_stacks.aws.grafana``: write the Grafana dashboard of ``monitoring/``.

One page serves any stack of a region. CloudWatch has the metrics of agents, sweep and meter; Prometheus has
temperatures and errors. The user chooses the two data sources and the stack at the top of the page.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.aws.dashboard import computing_share, mean_of, sm_activity
from gpu_fleet_stacks.core import files, naming

FILE = Path(__file__).parents[1] / "monitoring" / "gpu-fleet.json"
# Grafana's grid has 24 columns; a row of tiles, then three graphs a row.
COLUMNS, HEIGHT, TILE_HEIGHT = 24, 7, 4
WIDTH = COLUMNS // 3
# Grafana 10 and newer read this version of the schema, and migrate it.
SCHEMA_VERSION = 39
CLOUDWATCH = {"type": "cloudwatch", "uid": "${cloudwatch}"}
PROMETHEUS = {"type": "prometheus", "uid": "${prometheus}"}
OWN = naming.metric_namespace("$stack")
OF_STACK = '{stack="$stack"}'
UP = 'up{job="instance",stack="$stack"}'  # a job of prometheus.yml

Panel = dict[str, Any]
Target = dict[str, Any]


def cloudwatch(metric: str, statistic: str, *, namespace: str = OWN, **dimensions: str) -> Target:
    """Query one metric of CloudWatch; the dimension value ``*`` draws a line for each value."""
    return {
        "datasource": CLOUDWATCH,
        "region": "$region",
        "namespace": namespace,
        "metricName": metric,
        "statistic": statistic,
        "dimensions": dimensions,
        # metrics with other dimensions than the named ones are left out
        "matchExact": True,
        "period": "300",
        "queryMode": "Metrics",
        "metricQueryType": 0,
        "metricEditorMode": 0,
        "label": "${PROP('Dim.Pool')}" if "Pool" in dimensions else metric,
    }


def prometheus(expression: str, legend: str) -> Target:
    """Query Prometheus."""
    return {"datasource": PROMETHEUS, "expr": expression, "legendFormat": legend, "range": True}


def tiles() -> Iterator[tuple[str, str, list[Target]]]:
    """Yield title, unit and queries of every tile, which shows the last value of each query."""
    rested = f"max by (instance) (max_over_time(DCGM_FI_DEV_GPU_UTIL{OF_STACK}[30m])) == 0"
    yield "Instances running", "short", [prometheus(f"sum({UP})", "running")]
    yield (
        "Instances whose GPUs rest for 30 min",
        "short",
        [prometheus(f"count({rested}) or vector(0)", "resting")],
    )
    yield (
        "GPUs",
        "short",
        [
            prometheus(f"sum(DCGM_FI_DEV_GPU_UTIL{OF_STACK}) / 100", "computing"),
            prometheus(f"count(DCGM_FI_DEV_GPU_UTIL{OF_STACK})", "rented"),
        ],
    )
    spent, budget = (
        cloudwatch(name, "Maximum") | {"label": label, "id": label}
        for name, label in (("MonthCost", "spent"), ("MonthBudget", "budget"))
    )
    share = cloudwatch("MonthCost", "Maximum") | {
        "metricEditorMode": 1,
        "expression": "spent / budget",
        "label": "of the budget",
    }
    yield "Month's cost", "short", [spent, budget]
    yield "Month's budget spent", "percentunit", [each | {"hide": True} for each in (spent, budget)] + [share]
    # a point has the time at which its period begins
    yield "Last sweep", "dateTimeFromNow", [cloudwatch("SweepRuns", "Sum") | {"period": "60"}]


def graphs() -> Iterator[tuple[str, str, list[Target]]]:
    """Yield title, unit and queries of every panel, in order."""
    yield "Instances", "short", [prometheus(f"sum by (pool) ({UP})", "{{pool}}")]
    yield "GPUs rented, computing, idle", "short", list(_gpus())
    shares = {
        "instances in use": mean_of(OWN, "ActiveFraction"),
        "GPUs computing": computing_share(OWN),
        "SM activity": sm_activity(OWN),
    }
    by_agents = [
        cloudwatch("ActiveFraction", "Average")
        | {"metricEditorMode": 1, "expression": expression, "label": label}
        for label, expression in shares.items()
    ]
    yield "In use and computing, as agents report", "percentunit", by_agents
    yield "GPU temperature", "celsius", [prometheus(_hottest(), "{{pool}} {{instance}} GPU {{gpu}}")]
    used, free = f"DCGM_FI_DEV_FB_USED{OF_STACK}", f"DCGM_FI_DEV_FB_FREE{OF_STACK}"
    memory = f"max by (pool) ({used} / ({used} + {free}))"
    yield "Memory of the fullest GPU", "percentunit", [prometheus(memory, "{{pool}}")]
    errors = f"max by (instance, gpu) (DCGM_FI_DEV_XID_ERRORS{OF_STACK}) > 0"
    yield "XID errors", "short", [prometheus(errors, "{{instance}} GPU {{gpu}}")]
    month = ("MonthCost", "MonthForecast", "MonthBudget")
    yield "Month's cost against the budget", "short", [cloudwatch(name, "Maximum") for name in month]
    yield "Cost of an hour by pool", "short", [cloudwatch("HourCost", "Maximum", Pool="*")]
    actions = ("SweepMachinesMarked", "SweepMachinesEnded", "SweepMachinesUnknown")
    yield "What the sweep did", "short", [cloudwatch(name, "Sum") for name in actions]
    health = ("SweepRuns", "SweepFailures", "SweepBreakerTrips", "FreezeStage")
    yield "The sweep itself", "short", [cloudwatch(name, "Sum") for name in health]
    rule = f"{naming.prefixed('$stack')}-spot-interruptions"
    events = cloudwatch("TriggeredRules", "Sum", namespace="AWS/Events", RuleName=rule)
    yield "Spot interruptions, whole account", "short", [events]
    disk = 'node_filesystem_avail_bytes{stack="$stack",fstype=~"ext4|xfs"}'
    size = 'node_filesystem_size_bytes{stack="$stack",fstype=~"ext4|xfs"}'
    full = f"1 - min by (pool, mountpoint) ({disk} / {size})"
    yield "Fullest disk", "percentunit", [prometheus(full, "{{pool}} {{mountpoint}}")]


def dashboard() -> dict[str, Any]:
    """Return the whole dashboard in the form of Grafana's provisioning and import."""
    shown = [_tile(index, *tile) for index, tile in enumerate(tiles())]
    shown += [_graph(index, *graph) for index, graph in enumerate(graphs())]
    return {
        "uid": "gpu-fleet",
        "title": "GPU fleet",
        "tags": [naming.PROJECT],
        "schemaVersion": SCHEMA_VERSION,
        "timezone": "browser",
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [{"id": number, **panel} for number, panel in enumerate(shown, 1)],
    }


def _gpus() -> Iterator[Target]:
    """Yield queries of a pool's GPUs: all, those that compute by their mean utilisation, and the rest."""
    rented = f"count by (pool) (DCGM_FI_DEV_GPU_UTIL{OF_STACK})"
    computing = f"sum by (pool) (DCGM_FI_DEV_GPU_UTIL{OF_STACK}) / 100"
    yield prometheus(rented, "{{pool}} rented")
    yield prometheus(computing, "{{pool}} computing")
    yield prometheus(f"{rented} - {computing}", "{{pool}} idle")
    # none of the exporter's default counters; docs/how-to/monitor.md says how to have it
    yield prometheus(f"sum by (pool) (DCGM_FI_PROF_SM_ACTIVE{OF_STACK})", "{{pool}} SM activity")


def _hottest() -> str:
    """Return the query of the ten hottest GPUs; DCGM reports 9.2e18 for an unknown temperature."""
    return f"topk(10, DCGM_FI_DEV_GPU_TEMP{OF_STACK} < 200)"


def _variables() -> list[dict[str, Any]]:
    sources = [
        {"name": kind, "label": kind, "type": "datasource", "query": kind}
        for kind in ("cloudwatch", "prometheus")
    ]
    texts = [
        {"name": name, "type": "textbox", "query": value, "current": {"text": value, "value": value}}
        for name, value in (("stack", "aws-dev"), ("region", "us-east-1"))
    ]
    return [*texts, *sources]


def _tile(index: int, title: str, unit: str, targets: list[Target]) -> Panel:
    width = COLUMNS // len(list(tiles()))
    # of a point of time the tile shows when the last value came
    fields = "/^Time$/" if unit == "dateTimeFromNow" else ""
    panel = _panel(title, unit, targets)
    if unit == "percentunit":
        steps = [("green", None), ("orange", 0.8), ("red", 1)]
        panel["fieldConfig"]["defaults"]["thresholds"] = {
            "mode": "absolute",
            "steps": [{"color": color, "value": value} for color, value in steps],
        }
    return panel | {
        "type": "stat",
        "gridPos": {"x": index * width, "y": 0, "w": width, "h": TILE_HEIGHT},
        "options": {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": fields, "values": False},
            "graphMode": "none",
            "colorMode": "value" if unit == "percentunit" else "none",
            "textMode": "value_and_name" if len(targets) > 1 and unit == "short" else "value",
        },
    }


def _graph(index: int, title: str, unit: str, targets: list[Target]) -> Panel:
    place = {"x": index % 3 * WIDTH, "y": TILE_HEIGHT + index // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT}
    panel = _panel(title, unit, targets) | {"type": "timeseries", "gridPos": place}
    panel["fieldConfig"]["defaults"]["min"] = 0
    return panel | {"options": {"legend": {"displayMode": "list", "placement": "bottom"}}}


def _panel(title: str, unit: str, targets: list[Target]) -> Panel:
    return {
        "title": title,
        "datasource": targets[0]["datasource"],
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + number), **target} for number, target in enumerate(targets)],
    }


def text() -> str:
    """Return the file's content; equal code gives equal bytes."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    files.replace(FILE, text())
