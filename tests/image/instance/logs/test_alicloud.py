"""Simple Log Service: the signature by its documented example, the body by protobuf's own library."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.alicloud_credentials import AccessKey, Credentials
from gpu_fleet_image.instance.logs import alicloud
from gpu_fleet_image.instance.logs.alicloud import SimpleLogService
from gpu_fleet_image.instance.logs.buffer import LineBuffer, SizedLine
from gpu_fleet_image.instance.logs.lines import Line
from gpu_fleet_image.instance.logs.service import LinesNotTakenError, LinesRefusedError
from tests.image.alicloud_server import ENVIRON
from tests.image.instance.logs.sls_server import LOG_GROUP, sls_server

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


def line(text="step 4", time_us=1_795_622_400_680_593):
    return Line(time_us, "gpu-run@ada.service", "6", "42", text, "i=1")


def service(server, environ=ENVIRON):
    return SimpleLogService(server.url, "instances", "spot/i-1", Credentials(environ), lambda: NOW)


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
        service(server).send([line(), line("step 5", 1_795_622_400_999_999)])

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
def test_what_may_pass_is_tried_again_and_what_the_service_will_never_take_is_not(
    answer, environ, error, said
):
    with sls_server() as server:
        server.answers.append(answer)
        with pytest.raises(error, match=said):
            service(server, environ).send([line()])
    with pytest.raises(LinesNotTakenError, match=server.url):
        service(server).send([line()])  # it is not there any more


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


@given(st.lists(st.text(max_size=30).map(lambda text: text * 3000), min_size=1, max_size=60))
def test_no_call_takes_more_than_the_service_does(texts):
    made, buffer = SimpleLogService("", "x", "spot/i-1", Credentials({})), LineBuffer(2**30)
    for text in texts:
        buffer.add(SizedLine(line(text), made.size(line(text))))

    while batch := buffer.take(made.limits):
        assert len(alicloud.encoded_group(batch.lines, "spot/i-1")) <= 3 * 10**6
        assert len(batch.lines) <= 4096
