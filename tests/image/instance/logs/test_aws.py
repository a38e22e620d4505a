"""CloudWatch Logs: what is sent, what an answer means, and how much a call takes."""

import json
from contextlib import nullcontext

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.instance.logs import aws
from gpu_fleet_image.instance.logs.aws import EVENT_BYTES, LIMITS, CloudWatchLogs
from gpu_fleet_image.instance.logs.buffer import LineBuffer, SizedLine
from gpu_fleet_image.instance.logs.lines import Line
from gpu_fleet_image.instance.logs.service import LinesNotTakenError, LinesRefusedError

GROUP, STREAM = "/gpu-fleet/dev/instances", "spot/i-1"


def line(text="step 4", time_us=1_795_622_400_680_593):
    return Line(time_us, "gpu-run@ada.service", "6", "42", text, "i=1")


class Logs:
    """boto3's client, with errors that are up next for each operation."""

    def __init__(self, create=(), put=(), rejected=None):
        self.errors = {"CreateLogStream": list(create), "PutLogEvents": list(put)}
        self.calls, self.rejected = [], rejected

    def create_log_stream(self, **asked):
        return self._called("CreateLogStream", asked)

    def put_log_events(self, **asked):
        return self._called("PutLogEvents", asked)

    def _called(self, operation, asked):
        self.calls.append((operation, asked))
        code = self.errors[operation].pop(0) if self.errors[operation] else None
        if isinstance(code, Exception):
            raise code
        if code:
            raise ClientError({"Error": {"Code": code}}, operation)
        return {"rejectedLogEventsInfo": self.rejected} if self.rejected else {}

    @property
    def operations(self):
        return [operation for operation, _ in self.calls]


def sent(logs, *lines):
    return CloudWatchLogs(logs, GROUP, STREAM).send(lines or [line()])


def test_a_line_is_an_event_with_its_fields_and_milliseconds():
    logs = Logs()

    sent(logs)

    operation, asked = logs.calls[-1]
    (event,) = asked.pop("logEvents")
    assert (operation, asked) == ("PutLogEvents", {"logGroupName": GROUP, "logStreamName": STREAM})
    assert event["timestamp"] == 1_795_622_400_680
    assert json.loads(event["message"]) == line().content


@pytest.mark.parametrize("put", [None, "ResourceNotFoundException"])
def test_the_stream_is_made_once_and_again_where_it_was_deleted(put):
    logs = Logs(create=["ResourceAlreadyExistsException"], put=[put])  # of an earlier life
    service = CloudWatchLogs(logs, GROUP, STREAM)

    with pytest.raises(LinesNotTakenError) if put else nullcontext():
        service.send([line()])
    service.send([line()])

    made, sent_again = ["CreateLogStream", "PutLogEvents"], ["PutLogEvents"]
    assert logs.operations == made + (made if put else sent_again)


PASSES = [
    *("ThrottlingException", "ServiceUnavailableException", "AccessDeniedException", "ExpiredTokenException"),
    EndpointConnectionError(endpoint_url="https://logs.us-east-1.amazonaws.com"),
]


def test_what_may_pass_is_tried_again_and_what_the_service_will_never_take_is_not():
    for error in PASSES:
        for operation in ("create", "put"):
            with pytest.raises(LinesNotTakenError):
                sent(Logs(**{operation: [error]}))
    with pytest.raises(LinesRefusedError):
        sent(Logs(put=["InvalidParameterException"]))


def test_lines_that_are_too_old_or_of_the_future_are_counted():
    rejected = [
        ({}, 0),
        ({"tooOldLogEventEndIndex": 2}, 2),
        ({"expiredLogEventEndIndex": 3, "tooOldLogEventEndIndex": 1}, 3),
        ({"tooNewLogEventStartIndex": 4}, 1),
        ({"tooOldLogEventEndIndex": 1, "tooNewLogEventStartIndex": 4}, 2),
    ]

    assert [(said, sent(Logs(rejected=said), *[line()] * 5)) for said, _ in rejected] == rejected


@given(st.lists(st.text(max_size=50).map(lambda text: text * 2000), min_size=1, max_size=30))
def test_no_call_takes_more_than_the_service_does(texts):
    service, buffer = CloudWatchLogs(Logs(), GROUP, STREAM), LineBuffer()
    for text in texts:
        made = line(text)
        buffer.add(SizedLine(made, service.size(made)))

    while batch := buffer.take(LIMITS):
        total = sum(len(aws.message(each).encode()) + EVENT_BYTES for each in batch.lines)
        assert total <= 1_048_576


def test_the_limits_are_those_of_the_api():
    model = boto3.client("logs", region_name="us-east-1").meta.service_model.operation_model("PutLogEvents")
    events = model.input_shape.members["logEvents"]

    assert events.metadata["max"] == LIMITS.lines
