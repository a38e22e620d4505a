"""What an agent says of each minute: heartbeats by the contract in metrics.py, and activity.json."""

import json
from datetime import timedelta
from unittest.mock import Mock

import pytest
from botocore.exceptions import EndpointConnectionError

from gpu_fleet_image.core import metrics
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent import activity_file, publish
from gpu_fleet_image.instance.agent.idle_detection import JudgeMemory, Minute
from gpu_fleet_image.instance.agent.publish import MAX_DATA_PER_CALL, Publisher, heartbeat
from tests.image.samples import NOON, judgement

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


def published(outcome, **options):
    data = heartbeat(outcome, "i-1", "dev", **options)
    return {(datum["MetricName"], datum["Dimensions"][0]["Name"]): datum["Value"] for datum in data}


def test_an_idle_instance_says_for_how_long_and_what_its_gpus_report_for_its_pool_too():
    own = {
        (metrics.METRIC_SECONDS_SINCE_ACTIVITY, "InstanceId"): 600.0,
        (metrics.METRIC_ACTIVE_FRACTION, "InstanceId"): 0.0,
    }
    of_gpus = {
        (name, dimension): percent
        for name, percent in ((metrics.METRIC_GPU_MEMORY, 87.5), (metrics.METRIC_GPU_UTILISATION, 12.5))
        for dimension in ("InstanceId", "Pool")
    } | {(metrics.METRIC_GPU_SM_ACTIVITY, "InstanceId"): 1.0}
    percent = {"gpu_memory_used": 87.5, "gpu_utilisation": 12.5, "gpu_sm_activity": 1.0}

    reported = judgement(idle_s=600.0, **{f"{name}_percent": value for name, value in percent.items()})

    assert published(judgement(idle_s=600.0)) == own
    assert published(reported) == own | of_gpus


def test_what_is_not_known_to_be_idle_is_a_code():
    codes = {Minute.UNKNOWN: metrics.CODE_UNKNOWN, Minute.SUSPECT_HUNG: metrics.CODE_HUNG}
    key = metrics.METRIC_SECONDS_SINCE_ACTIVITY, "InstanceId"

    assert {state: published(judgement(state))[key] for state in codes} == codes
    for outcome in (IDLE, BLIND_GPUS):
        assert published(outcome, unfit=True) == published(outcome) | {key: metrics.CODE_UNFIT}


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"ready": "no"}', '{"ready": null}', "\xff"])
def test_a_gates_report_that_cannot_be_read_is_no_verdict(tmp_path, content):
    if content is not None:
        (tmp_path / "ready.json").write_bytes(content.encode("latin-1"))

    assert publish.passed(tmp_path / "ready.json") is None


def test_an_instance_is_unfit_by_a_failed_report_while_nothing_works_there_and_no_other_sensor_is_blind():
    """The gate reports missing GPUs, for which the agent's own sensor is blind."""
    unfit = [
        (outcome, passed)
        for outcome in (IDLE, BLIND_GPUS, *AT_WORK)
        for passed in (False, True, None)
        if publish.is_unfit(outcome, passed)
    ]

    assert unfit == [(IDLE, False), (BLIND_GPUS, False)]


def cloudwatch(*answers):
    return Mock(put_metric_data=Mock(side_effect=answers or None))


def sent(client):
    return [call.kwargs for call in client.put_metric_data.call_args_list]


NO_ANSWER = EndpointConnectionError(endpoint_url="http://127.0.0.1:9")
ONE = tuple(heartbeat(IDLE, "i-1", "dev"))


def test_on_the_wall_s_time_a_heartbeat_is_sent_at_once_without_a_time_and_dropped_if_that_fails(caplog):
    client = cloudwatch(NO_ANSWER, None)
    publisher = Publisher(client, "GpuFleet/x", batched=False)

    for _ in range(2):
        publisher.add(ONE, NOON)

    assert sent(client) == [{"Namespace": "GpuFleet/x", "MetricData": [*ONE]}] * 2
    assert not any("Timestamp" in datum for datum in ONE)
    assert caplog.text.count("event=heartbeat-lost") == 1


def test_a_rehearsal_s_heartbeats_carry_its_time_and_go_in_full_calls():
    client = cloudwatch()
    publisher = Publisher(client, "GpuFleet/x", batched=True)
    minutes = 750

    for passed in range(minutes):
        publisher.add(ONE, NOON + timedelta(minutes=passed))
    publisher.flush()

    sizes = [len(request["MetricData"]) for request in sent(client)]
    assert sizes == [MAX_DATA_PER_CALL, 2 * minutes - MAX_DATA_PER_CALL]
    times = {datum["Timestamp"] for request in sent(client) for datum in request["MetricData"]}
    assert len(times) == minutes


def test_a_batch_that_fails_waits_for_the_next_try():
    client = cloudwatch(NO_ANSWER, None)
    publisher = Publisher(client, "GpuFleet/x", batched=True)
    publisher.add(ONE, NOON)

    with pytest.raises(CloudError, match="PutMetricData in GpuFleet/x: Could not connect"):
        publisher.flush()
    publisher.flush()

    assert len(sent(client)[1]["MetricData"]) == 2


# activity.json: written as a whole, and checked by a restarted agent


@pytest.fixture
def path(tmp_path):
    return tmp_path / "activity.json"


def restored(path, after=timedelta(seconds=60)):
    return activity_file.restore(path, NOON + after, "i-1")


def test_users_find_state_reasons_and_times_in_it(path):
    outcome = judgement(Minute.ACTIVE, idle_s=0.0, reasons=("cpu: 1.00 cores",), active_fraction=0.25)

    activity_file.write(path, outcome, "i-1", "the whole instance")

    content = json.loads(path.read_text())
    said = {"state": "active", "reasons": ["cpu: 1.00 cores"], "active_fraction": 0.25}
    assert content == content | said | {"last_active_at": "2026-11-21T12:00:00+00:00"}


def test_a_quick_restart_continues_the_count_and_after_a_gap_or_the_future_it_begins_anew(path):
    for _ in range(2):
        activity_file.write(path, judgement(idle_s=7200.0), "i-1", "the whole instance")

    assert restored(path) == JudgeMemory(NOON - timedelta(hours=2))
    for after in (timedelta(minutes=3), timedelta(seconds=-30)):
        assert restored(path, after) == JudgeMemory(NOON + after)
    assert [entry.name for entry in path.parent.iterdir()] == ["activity.json"], "nothing else is left behind"


def test_another_instance_s_file_a_damaged_one_or_none_says_nothing(path):
    anew = JudgeMemory(NOON + timedelta(seconds=60))
    missing = restored(path)
    activity_file.write(path, judgement(idle_s=7200.0), "i-2", "the whole instance")
    found = [missing, restored(path)]

    for text in ("", "[]", "{", '{"at": 5}', '{"at": "2026-11-21", "last_active_at": "x"}'):
        path.write_text(text)
        found.append(restored(path))

    assert found == [anew] * 7
