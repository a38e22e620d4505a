"""The part of the gate's report that reaches the sweep: a definite failure, while the instance is idle."""

import json
from datetime import UTC, datetime

import pytest

from gpu_fleet_image.core import metrics
from gpu_fleet_image.instance.agent import publish
from gpu_fleet_image.instance.agent.idle_detection import Minute
from gpu_fleet_image.instance.agent.publish import heartbeat
from gpu_fleet_image.instance.gate.__main__ import write_report
from gpu_fleet_image.instance.gate.checks import CheckResult
from tests.image.samples import NOON, judgement


@pytest.mark.parametrize("passed", [True, False])
def test_the_agent_reads_what_the_gate_wrote(tmp_path, passed):
    write_report([CheckResult("gpu_count", passed, "as found")], tmp_path / "ready.json", datetime.now(UTC))

    assert publish.passed(tmp_path / "ready.json") is passed


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"ready": "no"}', '{"ready": null}', "\xff"])
def test_what_cannot_be_read_is_no_verdict(tmp_path, content):
    if content is not None:
        (tmp_path / "ready.json").write_bytes(content.encode("latin-1"))

    assert publish.passed(tmp_path / "ready.json") is None


IDLE = judgement()
BLIND_GPUS = judgement(Minute.UNKNOWN, unknown=("gpu: no GPU seen, 8 expected",))


AT_WORK = [
    judgement(Minute.ACTIVE, reasons=("cpu: 1.00 cores",)),
    judgement(Minute.ACTIVE, reasons=("session: ssh ada",), unknown=("gpu: no GPU seen",)),
    judgement(Minute.UNKNOWN, unknown=("instance: /proc/stat: gone",)),
    judgement(Minute.UNKNOWN, unknown=("gpu: no GPU seen", "processes: gone")),
    judgement(Minute.UNKNOWN, unknown=("agent: no sample in this minute",)),
    judgement(Minute.SUSPECT_HUNG, hung=("0",)),
]


def test_an_instance_is_unfit_by_a_failed_report_while_nothing_works_there_and_no_other_sensor_is_blind():
    """The gate reports missing GPUs, for which the agent's own sensor is blind."""
    unfit = [
        (outcome, passed)
        for outcome in (IDLE, BLIND_GPUS, *AT_WORK)
        for passed in (False, True, None)
        if publish.is_unfit(outcome, passed)
    ]

    assert unfit == [(IDLE, False), (BLIND_GPUS, False)]


def values(**options):
    return {datum["MetricName"]: datum["Value"] for datum in heartbeat(BLIND_GPUS, "i-1", "dev", **options)}


def test_the_heartbeat_carries_it_as_a_code_and_no_metric_more():
    fit = [datum["MetricName"] for datum in heartbeat(IDLE, "i-1", "dev")]

    assert values(unfit=True)[metrics.METRIC_SECONDS_SINCE_ACTIVITY] == metrics.CODE_UNFIT
    assert list(values(unfit=True)) == fit


def test_the_report_is_json_for_users_too(tmp_path):
    write_report([CheckResult("xid", ok=False, detail="Xid 79 on 0000:00")], tmp_path / "ready.json", NOON)

    assert json.loads((tmp_path / "ready.json").read_text())["checks"]["xid"]["detail"] == "Xid 79 on 0000:00"
