"""Prometheus and Grafana files are valid by promtool, and use only published metrics."""

import json
import re
import shutil
from itertools import product
from pathlib import Path

import pytest
import yaml

import gpu_fleet_stacks
from gpu_fleet_image.controllers.meter import meter
from gpu_fleet_image.core import metrics
from gpu_fleet_image.core.metrics import METRIC_SWEEP_RUNS
from gpu_fleet_stacks.aws import dashboard as aws_dashboard
from gpu_fleet_stacks.core import naming
from tests.ran import ran
from tests.stacks.monitoring.dcgm_counters import DEFAULT_COUNTERS

FOLDER = Path(gpu_fleet_stacks.__file__).parent / "monitoring"
PANELS = json.loads((FOLDER / "gpu-fleet.json").read_text())["panels"]
VARIABLES = json.loads((FOLDER / "gpu-fleet.json").read_text())["templating"]["list"]
RULES = yaml.safe_load((FOLDER / "gpu-fleet.rules.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in RULES for rule in group["rules"]}
JOBS = {
    job["job_name"]: job for job in yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
}
# queries of Prometheus, with the variables filled in
QUERIES = [
    target["expr"].replace("$stack", "aws-dev")
    for panel in PANELS
    for target in panel["targets"]
    if target["datasource"]["type"] == "prometheus"
]
ASKED = [*(rule["expr"] for rule in ALERTS.values()), *QUERIES]
PUBLISHED = {value for name, value in vars(metrics).items() if name.startswith("METRIC_")}
# Of node exporter and of Prometheus itself.
KNOWN_ELSEWHERE = {"node_filesystem_avail_bytes", "node_filesystem_size_bytes", "up"}
# docs/how-to/monitor.md says how to have it published
OPTIONAL = {"DCGM_FI_PROF_SM_ACTIVE"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus"
)


def promtool(*arguments: str) -> str:
    """Run promtool beside the files."""
    done = ran(["promtool", *arguments], cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_takes_the_configuration_its_rules_and_every_query_of_the_dashboard(tmp_path):
    recorded = [{"record": f"panel:{index}", "expr": query} for index, query in enumerate(QUERIES)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))

    assert "SUCCESS: 1 rule files found" in promtool("check", "config", "prometheus.yml")
    assert f"SUCCESS: {len(recorded)} rules found" in promtool("check", "rules", str(file))


@needs_promtool
def test_every_rule_fires_when_it_should_and_only_then():
    assert "SUCCESS" in promtool("test", "rules", "gpu-fleet.rules_test.yml")


def test_a_rule_says_how_bad_it_is_and_what_to_do_and_is_tried():
    tried = yaml.safe_load((FOLDER / "gpu-fleet.rules_test.yml").read_text())["tests"]
    fired = {alert["alertname"] for test in tried for alert in test["alert_rule_test"] if alert["exp_alerts"]}

    assert {"GpuHot", "GpuXid", "GpuIdle", "DiskFull", "NoHeartbeat"} <= ALERTS.keys() <= fired
    assert {rule["labels"]["severity"] for rule in ALERTS.values()} <= {"info", "warning", "critical"}
    assert [name for name, rule in ALERTS.items() if len(rule["annotations"]["remedy"]) <= 10] == []


def test_queries_ask_for_counters_that_an_exporter_publishes_of_jobs_that_prometheus_has():
    for expression in ASKED:
        named = set(re.findall(r"\b(?:DCGM_\w+|node_\w+|up)\b", expression))
        assert named, expression
        assert named <= DEFAULT_COUNTERS | KNOWN_ELSEWHERE | OPTIONAL, expression
        for asked in re.findall(r'job=~?"([^"]*)"', expression):
            assert set(asked.split("|")) <= JOBS.keys(), expression


def test_instances_are_found_by_the_tags_that_stacks_give_them():
    found = {name: job["ec2_sd_configs"][0] for name, job in JOBS.items()}
    labels = {part["source_labels"][0] for job in JOBS.values() for part in job["relabel_configs"]}
    managed = {"name": f"tag:{naming.PROJECT}:managed", "values": ["true"]}

    assert {name: each["port"] for name, each in found.items()} == {"gpu": 9400, "instance": 9100}
    assert all(managed in each["filters"] for each in found.values())
    for tag in ("stack", "pool", "owner"):
        assert "__meta_ec2_tag_" + re.sub(r"\W", "_", f"{naming.PROJECT}:{tag}") in labels


def test_grafana_computes_shares_as_the_page_of_cloudwatch_does():
    (panel,) = [panel for panel in PANELS if panel["title"] == "In use and computing, as agents report"]
    own = naming.metric_namespace("$stack")

    assert [target["expression"] for target in panel["targets"]] == [
        aws_dashboard.mean_of(own, "ActiveFraction"),
        aws_dashboard.computing_share(own),
        aws_dashboard.sm_activity(own),
    ]
    assert aws_dashboard.SHARED == meter.SHARED


def cells(place):
    """Return the cells of a panel on the grid."""
    return product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))


def test_panels_have_their_own_ids_and_places_and_known_data_sources():
    provided = yaml.safe_load((FOLDER / "provisioning/datasources/gpu-fleet.yaml").read_text())
    places = [cell for panel in PANELS for cell in cells(panel["gridPos"])]

    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert len(set(places)) == len(places)
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${cloudwatch}", "${prometheus}"}
    assert {entry["name"] for entry in VARIABLES} == {"cloudwatch", "prometheus", "stack", "region"}
    assert {source["type"] for source in provided["datasources"]} == {"cloudwatch", "prometheus"}
    # what the page of CloudWatch cannot show
    titles = {panel["title"] for panel in PANELS}
    assert {"GPU temperature", "XID errors", "Fullest disk", "Month's cost against the budget"} <= titles


def test_every_metric_of_cloudwatch_is_one_that_agents_sweep_and_meter_publish():
    targets = [target for panel in PANELS for target in panel["targets"]]
    of_cloudwatch = [target for target in targets if target["datasource"]["type"] == "cloudwatch"]
    own = {each["metricName"] for each in of_cloudwatch if each["namespace"].startswith("GpuFleet/")}

    assert own
    assert own <= PUBLISHED


def test_tiles_say_the_last_value_of_instances_gpus_budget_and_sweep():
    tiles = {panel["title"]: panel for panel in PANELS if panel["type"] == "stat"}
    last, running = tiles["Last sweep"], tiles["Instances running"]["targets"]
    share = tiles["Month's budget spent"]["targets"]

    assert len(tiles) == 6
    assert sum(panel["gridPos"]["w"] for panel in tiles.values()) == 24  # columns of Grafana's grid
    assert {panel["options"]["reduceOptions"]["calcs"][0] for panel in tiles.values()} == {"lastNotNull"}
    assert [target["expr"] for target in running] == ['sum(up{job="instance",stack="$stack"})']
    assert [target.get("hide", False) for target in share] == [True, True, False]
    assert share[2]["expression"] == f"{share[0]['id']} / {share[1]['id']}"
    assert last["options"]["reduceOptions"]["fields"] == "/^Time$/"
    assert last["fieldConfig"]["defaults"] == {"unit": "dateTimeFromNow"}
    (runs,) = last["targets"]  # published by each sweep without a dimension; a period says when it began
    assert (runs["metricName"], runs["dimensions"], runs["period"]) == (METRIC_SWEEP_RUNS, {}, "60")
