"""What of the gate's report reaches the sweep: a positive report of failure, while nothing works."""

import json
from datetime import UTC, datetime

import pytest

from image.readiness.__main__ import write_report
from image.readiness.checks import CheckResult
from image.reaper import metrics
from image.reaper.agent import publish
from image.reaper.agent.judge import Minute
from image.reaper.agent.publish import heartbeat
from tests.reaper.samples import NOON, judgement


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


@pytest.mark.parametrize("outcome", [IDLE, BLIND_GPUS])
def test_a_failed_instance_on_which_nothing_works_is_unfit(outcome):
    """Missing GPUs are what the gate is for, and what the agent's own sensor cannot see past."""
    assert publish.is_unfit(outcome, gate_passed=False)


@pytest.mark.parametrize("passed", [True, None])
@pytest.mark.parametrize("outcome", [IDLE, BLIND_GPUS])
def test_without_a_failed_report_nothing_is_unfit(outcome, passed):
    assert not publish.is_unfit(outcome, passed)


@pytest.mark.parametrize(
    "outcome",
    [
        judgement(Minute.ACTIVE, reasons=("cpu: 1.00 cores",)),
        judgement(Minute.ACTIVE, reasons=("session: ssh ada",), unknown=("gpu: no GPU seen",)),
        judgement(Minute.UNKNOWN, unknown=("instance: /proc/stat: gone",)),
        judgement(Minute.UNKNOWN, unknown=("gpu: no GPU seen", "processes: gone")),
        judgement(Minute.UNKNOWN, unknown=("agent: no sample in this minute",)),
        judgement(Minute.SUSPECT_HUNG, hung=("0",)),
    ],
)
def test_work_or_a_blind_sensor_keeps_a_failed_instance(outcome):
    assert not publish.is_unfit(outcome, gate_passed=False)


def values(**options):
    return {datum["MetricName"]: datum["Value"] for datum in heartbeat(BLIND_GPUS, "i-1", "dev", **options)}


def test_the_heartbeat_carries_it_as_a_code_and_no_metric_more():
    fit = [datum["MetricName"] for datum in heartbeat(IDLE, "i-1", "dev")]

    assert values(unfit=True)[metrics.METRIC_SECONDS_SINCE_ACTIVITY] == metrics.CODE_UNFIT
    assert list(values(unfit=True)) == fit


def test_the_report_is_json_for_users_too(tmp_path):
    write_report([CheckResult("xid", ok=False, detail="Xid 79 on 0000:00")], tmp_path / "ready.json", NOON)

    assert json.loads((tmp_path / "ready.json").read_text())["checks"]["xid"]["detail"] == "Xid 79 on 0000:00"
