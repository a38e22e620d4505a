"""The services that take lines: what is sent, what an answer means, and how much a call takes.

Simple Log Service's signature is held by its documented example, its body by protobuf's own library.
"""

from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import chain, repeat
from unittest.mock import Mock, call

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_fleet_image.core.alicloud_credentials import AccessKey, Credentials
from gpu_fleet_image.instance.logs import alicloud, aws
from gpu_fleet_image.instance.logs.alicloud import SimpleLogService
from gpu_fleet_image.instance.logs.aws import EVENT_BYTES, LIMITS, CloudWatchLogs
from gpu_fleet_image.instance.logs.buffer import LineBuffer, SizedLine
from gpu_fleet_image.instance.logs.lines import Line
from gpu_fleet_image.instance.logs.service import LinesNotTakenError, LinesRefusedError
from tests.image.alicloud_server import ENVIRON
from tests.image.instance.logs.sls_server import LOG_GROUP, sls_server

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


def line(text="step 4", time_us=1_795_622_400_680_593):
    return Line(time_us, "gpu-run@ada.service", "6", "42", text, "i=1")


def logs(create=(), put=(), rejected=None):
    """boto3's client of CloudWatch Logs, with errors that are up next for each operation."""
    answer = {"rejectedLogEventsInfo": rejected} if rejected else {}

    def said(errors):
        codes = (
            ClientError({"Error": {"Code": each}}, "x") if isinstance(each, str) else each for each in errors
        )
        return Mock(side_effect=chain(codes, repeat(answer)))

    return Mock(create_log_stream=said(create), put_log_events=said(put))


def cloudwatch(client):
    return CloudWatchLogs(client, "/gpu-fleet/dev/instances", "spot/i-1")


def sls(url, environ=ENVIRON):
    return SimpleLogService(url, "instances", "spot/i-1", Credentials(environ), lambda: NOW)


def test_a_line_is_an_event_with_its_fields_and_milliseconds():
    client, place = logs(), {"logGroupName": "/gpu-fleet/dev/instances", "logStreamName": "spot/i-1"}

    cloudwatch(client).send([line()])

    fields = '{"unit": "gpu-run@ada.service", "priority": "6", "pid": "42", "message": "step 4"}'
    events = [{"timestamp": 1_795_622_400_680, "message": fields}]
    assert client.method_calls[-1] == call.put_log_events(**place, logEvents=events)


@pytest.mark.parametrize("put", [None, "ResourceNotFoundException"])
def test_the_stream_is_made_once_and_again_where_it_was_deleted(put):
    client = logs(create=["ResourceAlreadyExistsException"], put=[put or {}])  # of an earlier life
    service = cloudwatch(client)

    with pytest.raises(LinesNotTakenError) if put else nullcontext():
        service.send([line()])
    service.send([line()])

    assert (client.create_log_stream.call_count, client.put_log_events.call_count) == (2 if put else 1, 2)


PASSES = [
    *("ThrottlingException", "ServiceUnavailableException", "AccessDeniedException", "ExpiredTokenException"),
    EndpointConnectionError(endpoint_url="https://logs.us-east-1.amazonaws.com"),
]


def test_what_may_pass_at_cloudwatch_is_tried_again_and_what_it_will_never_take_is_not():
    for error in PASSES:
        for operation in ("create", "put"):
            with pytest.raises(LinesNotTakenError):
                cloudwatch(logs(**{operation: [error]})).send([line()])
    with pytest.raises(LinesRefusedError):
        cloudwatch(logs(put=["InvalidParameterException"])).send([line()])


def test_lines_that_are_too_old_or_of_the_future_are_counted():
    rejected = [
        ({}, 0),
        ({"tooOldLogEventEndIndex": 2}, 2),
        ({"expiredLogEventEndIndex": 3, "tooOldLogEventEndIndex": 1}, 3),
        ({"tooNewLogEventStartIndex": 4}, 1),
        ({"tooOldLogEventEndIndex": 1, "tooNewLogEventStartIndex": 4}, 2),
    ]

    counted = [(said, cloudwatch(logs(rejected=said)).send([line()] * 5)) for said, _ in rejected]

    assert counted == rejected


def test_a_request_is_signed_as_in_the_example_of_the_documentation():
    """www.alibabacloud.com/help/en/sls/developer-reference/request-signatures: a PutLogs and its keys."""
    headers = {
        "Date": "Mon, 09 Nov 2015 06:03:03 GMT",
        "x-log-apiversion": "0.6.0",
        "x-log-signaturemethod": "hmac-sha1",
        "x-log-bodyrawsize": "50",
        "Content-MD5": "1DD45FA4A70A9300CC9FE7305AF2C494",
        "Content-Length": "52",
        "Content-Type": "application/x-protobuf",
        "x-log-compresstype": "lz4",
    }

    made = alicloud.signature("POST", "/logstores/test-logstore", headers, "4fdO2fTDDnZPU/L7CHNdemB2Nsk=")

    assert made == "XWLGYHGg2F2hcfxWxMLiNkGki6g="


def test_the_token_of_a_role_is_sent_and_signed_with_the_clock_of_now():
    def made(*words):
        return alicloud.signed_headers("POST", "/logstores/x/shards/lb", b"body", AccessKey(*words), NOW)

    with_token, without = made("LTAI", "secret", "token-of-the-role"), made("LTAI", "secret")

    assert with_token["x-acs-security-token"] == "token-of-the-role"
    assert with_token["Authorization"] != without["Authorization"]
    assert with_token["Date"] == "Wed, 25 Nov 2026 12:00:00 GMT"


def test_lines_arrive_with_their_fields_and_times():
    with sls_server() as server:
        sls(server.url).send([line(), line("step 5", 1_795_622_400_999_999)])

    assert server.refused == []
    assert [(each["message"], each["time_us"]) for each in server.lines] == [
        ("step 4", "1795622400680593"),
        ("step 5", "1795622400999999"),
    ]
    assert server.lines[0].keys() == {"unit", "priority", "pid", "message", "time_us"}
    assert (server.places, server.topics) == (["/logstores/instances/shards/lb"], ["spot/i-1"])


WRONG = ENVIRON | {"ALIBABA_CLOUD_ACCESS_KEY_SECRET": "another"}


@pytest.mark.parametrize(
    ("answer", "environ", "error", "said"),
    [
        ((403, "WriteQuotaExceed"), ENVIRON, LinesNotTakenError, "WriteQuotaExceed"),
        ((503, "ServerBusy"), ENVIRON, LinesNotTakenError, "ServerBusy"),
        ((500, "InternalServerError"), ENVIRON, LinesNotTakenError, "InternalServerError"),
        ((0, ""), WRONG, LinesNotTakenError, "SignatureNotMatch"),
        ((0, ""), {}, LinesNotTakenError, "are missing"),  # without keys yet
        ((400, "PostBodyInvalid"), ENVIRON, LinesRefusedError, "PostBodyInvalid"),
        ((400, "PostBodyTooLarge"), ENVIRON, LinesRefusedError, "PostBodyTooLarge"),
    ],
)
def test_what_may_pass_at_simple_log_service_is_tried_again_and_what_it_will_never_take_is_not(
    answer, environ, error, said
):
    with sls_server() as server:
        server.answers.append(answer)
        with pytest.raises(error, match=said):
            sls(server.url, environ).send([line()])
    with pytest.raises(LinesNotTakenError, match=server.url):
        sls(server.url).send([line()])  # it is not there any more


@given(st.lists(st.tuples(st.text(max_size=300), st.integers(0, 2**32 * 10**6 - 1)), min_size=1, max_size=5))
def test_any_lines_are_read_by_protobufs_own_library_as_they_were(many):
    lines = [line(text, time_us) for text, time_us in many]

    group = LOG_GROUP.FromString(alicloud.encoded_group(lines, "spot/i-1"))

    assert (group.Topic, group.Source) == ("spot/i-1", "spot/i-1")
    read = [
        ({entry.Key: entry.Value for entry in log.Contents}, log.Time * 10**6 + log.Time_ns // 1000)
        for log in group.Logs
    ]
    assert read == [(each.content, each.time_us) for each in lines]


@given(st.lists(st.text(max_size=40).map(lambda text: text * 2500), min_size=1, max_size=40))
@example(["x" * 100_000] * 40)
def test_no_call_takes_more_than_the_service_does(texts):
    def of_aws(lines):
        return sum(len(aws.message(each).encode()) + EVENT_BYTES for each in lines)

    def of_alicloud(lines):
        return len(alicloud.encoded_group(lines, "spot/i-1"))

    for service, size, most_bytes, most_lines in (
        (cloudwatch(logs()), of_aws, 1_048_576, LIMITS.lines),
        (sls(""), of_alicloud, 3 * 10**6, 4096),
    ):
        buffer = LineBuffer(2**30)
        for made in map(line, texts):
            buffer.add(SizedLine(made, service.size(made)))
        while batch := buffer.take(service.limits):
            assert size(batch.lines) <= most_bytes
            assert len(batch.lines) <= most_lines


def test_the_limits_are_those_of_the_api():
    model = boto3.client("logs", region_name="us-east-1").meta.service_model.operation_model("PutLogEvents")

    assert model.input_shape.members["logEvents"].metadata["max"] == LIMITS.lines
