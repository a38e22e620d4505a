"""Heartbeats reach CloudWatch as the contract in metrics.py has it."""

from datetime import timedelta
from itertools import count

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from moto import mock_aws

from image.reaper import metrics
from image.reaper.agent.judge import Minute
from image.reaper.agent.publish import MAX_DATA_PER_CALL, Publisher, heartbeat
from image.reaper.errors import CloudError
from tests.reaper.samples import NOON, judgement


def published(outcome, **options):
    return {
        (datum["MetricName"], datum["Dimensions"][0]["Name"]): datum["Value"]
        for datum in heartbeat(outcome, "i-1", "dev", **options)
    }


def test_an_idle_instance_says_for_how_long():
    values = published(judgement(idle_s=600.0))

    assert values == {
        (metrics.METRIC_SECONDS_SINCE_ACTIVITY, "InstanceId"): 600.0,
        (metrics.METRIC_ACTIVE_FRACTION, "InstanceId"): 0.0,
    }


@pytest.mark.parametrize(
    ("state", "code"),
    [(Minute.UNKNOWN, metrics.CODE_UNKNOWN), (Minute.SUSPECT_HUNG, metrics.CODE_HUNG)],
)
def test_what_is_not_known_to_be_idle_is_a_code(state, code):
    assert published(judgement(state))[metrics.METRIC_SECONDS_SINCE_ACTIVITY, "InstanceId"] == code


def test_gpu_memory_is_reported_of_the_instance_and_of_its_pool():
    values = published(judgement(gpu_memory_used_percent=87.5))

    assert values[metrics.METRIC_GPU_MEMORY, "InstanceId"] == 87.5
    assert values[metrics.METRIC_GPU_MEMORY, "Pool"] == 87.5


class Calls:
    """A CloudWatch client that keeps what it is given, and fails where it is told to."""

    def __init__(self, failing=()):
        self.sent = []
        self._calls = count()
        self._failing = set(failing)

    def put_metric_data(self, **request):
        if next(self._calls) in self._failing:
            raise EndpointConnectionError(endpoint_url="http://127.0.0.1:9")
        self.sent.append(request)


def test_on_the_wall_s_time_a_heartbeat_is_sent_at_once_without_a_time():
    calls = Calls()

    Publisher(calls, "GpuFleet/x", batched=False).add(heartbeat(judgement(), "i-1", "dev"), NOON)

    (request,) = calls.sent
    assert request["Namespace"] == "GpuFleet/x"
    assert all("Timestamp" not in datum for datum in request["MetricData"])


def test_a_heartbeat_that_fails_is_reported_and_dropped(caplog):
    calls = Calls(failing=[0])
    publisher = Publisher(calls, "GpuFleet/x", batched=False)

    publisher.add(heartbeat(judgement(), "i-1", "dev"), NOON)
    publisher.add(heartbeat(judgement(), "i-1", "dev"), NOON)

    assert len(calls.sent) == 1
    assert "event=heartbeat-lost" in caplog.text


def test_a_rehearsal_s_heartbeats_carry_its_time_and_go_in_full_calls():
    calls = Calls()
    publisher = Publisher(calls, "GpuFleet/x", batched=True)
    minutes = 750

    for passed in range(minutes):
        publisher.add(heartbeat(judgement(), "i-1", "dev"), NOON + timedelta(minutes=passed))
    publisher.flush()

    sizes = [len(request["MetricData"]) for request in calls.sent]
    assert sizes == [MAX_DATA_PER_CALL, 2 * minutes - MAX_DATA_PER_CALL]
    times = {datum["Timestamp"] for request in calls.sent for datum in request["MetricData"]}
    assert len(times) == minutes


def test_a_batch_that_fails_waits_for_the_next_try():
    calls = Calls(failing=[0])
    publisher = Publisher(calls, "GpuFleet/x", batched=True)
    publisher.add(heartbeat(judgement(), "i-1", "dev"), NOON)

    with pytest.raises(CloudError, match="PutMetricData in GpuFleet/x: Could not connect"):
        publisher.flush()
    publisher.flush()

    assert len(calls.sent[0]["MetricData"]) == 2


@mock_aws
def test_cloudwatch_takes_every_datum():
    client = boto3.client("cloudwatch", "us-east-1")
    outcome = judgement(gpu_memory_used_percent=1.0)

    Publisher(client, "GpuFleet/x", batched=False).add(heartbeat(outcome, "i-1", "dev"), NOON)

    listed = client.list_metrics(Namespace="GpuFleet/x")["Metrics"]
    assert len(listed) == 4
