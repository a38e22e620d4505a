"""No upload to a closed endpoint of OSS: the commands that upload report it before."""

import json
from contextlib import contextmanager
from urllib.parse import urlsplit

import boto3
import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.core.alicloud_credentials import KEY_ID, SECRET
from gpu_fleet_stacks.clients import oss
from gpu_fleet_stacks.core.errors import StacksError
from tests.answering import answering
from tests.stacks.plan_check.test_commands import shell  # noqa: F401 - a fixture

REGION = "cn-shenzhen"
PUBLIC, INNER = f"https://oss-{REGION}.aliyuncs.com", f"https://oss-{REGION}-internal.aliyuncs.com"
LOGGED_IN = {KEY_ID: "made-up", SECRET: "made-up"}
# HTTP status and code of GetObject: www.alibabacloud.com/help/doc-detail/31836.htm and OSS' error codes.
NOT_THERE, SHUT, ELSEWHERE = (404, "NoSuchKey"), (400, "PublicEndpointForbidden"), (403, "AccessDenied")


@contextmanager
def serving(buckets):
    """Fake OSS for an account, bucket -> answer to a read; yield boto3's client and its requests."""
    asked = []

    def answer(request):
        path = urlsplit(request.path).path
        asked.append(path)
        if path == "/":
            rows = "".join(f"<Bucket><Name>{name}</Name></Bucket>" for name in buckets)
            text = f"<ListAllMyBucketsResult><Buckets>{rows}</Buckets></ListAllMyBucketsResult>"
            return 200, {}, text.encode()
        status, code = buckets[path.split("/")[1]]
        return status, {}, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    keys = {"aws_access_key_id": "made-up", "aws_secret_access_key": "made-up"}
    with answering(answer) as url:
        yield boto3.client("s3", region_name=REGION, endpoint_url=url, **keys), asked


def test_a_read_of_nothing_shows_whether_the_public_endpoint_is_shut():
    for buckets, access in (
        ({"ours": NOT_THERE}, oss.Access.ALLOWED),
        ({"ours": SHUT}, oss.Access.FORBIDDEN),
        ({"elsewhere": ELSEWHERE, "ours": SHUT}, oss.Access.FORBIDDEN),
        ({"elsewhere": ELSEWHERE}, oss.Access.UNKNOWN),
        ({}, oss.Access.UNKNOWN),
    ):
        with serving(buckets) as (s3, _):
            assert oss.public_access(s3) is access


def held(buckets, region=REGION, answers=(), **environ):
    """Return the error of `hold_upload`, empty if the upload may begin, and the requests."""
    with serving(buckets) as (s3, asked):
        try:
            oss.hold_upload(region, environ, connect=lambda *_: s3, answers=answers.__contains__)
        except StacksError as error:
            return str(error), asked
    return "", asked


def test_an_account_uploads_through_the_public_endpoint_where_it_may_and_else_is_shown_the_way_inside():
    said, _ = held({"ours": SHUT})

    assert held({"ours": NOT_THERE})[0] == ""
    assert said.startswith(f"OSS refuses this account uploads through oss-{REGION}.aliyuncs.com")
    assert f"run this on an ECS instance of {REGION}, or in Cloud Shell" in said
    assert f"export OSS_ENDPOINT={INNER}" in said


def test_naming_the_public_endpoint_opens_the_way_of_an_account_that_nothing_is_known_of_alone():
    assert "OSS refuses this account" in held({"ours": SHUT}, OSS_ENDPOINT=PUBLIC)[0]
    assert f"export OSS_ENDPOINT={PUBLIC}" in held({})[0]
    assert held({}, OSS_ENDPOINT=PUBLIC)[0] == ""


def test_who_may_not_list_buckets_says_so_too():
    nobody = {"connect": lambda *_: oss.client(REGION, {})}

    with pytest.raises(StacksError, match="no credentials"):
        oss.hold_upload(REGION, {}, **nobody)
    oss.hold_upload(REGION, {"OSS_ENDPOINT": PUBLIC}, **nobody)


def test_inside_the_region_or_outside_of_mainland_china_no_call_is_made():
    host = f"oss-{REGION}-internal.aliyuncs.com"

    assert held({"ours": SHUT}, answers=[host], OSS_ENDPOINT=INNER) == ("", [])
    assert "which does not answer from here" in held({}, OSS_ENDPOINT=INNER)[0]
    for region in ("cn-hongkong", "ap-southeast-1"):
        assert held({"ours": SHUT}, region) == ("", [])


def test_the_client_uses_the_endpoint_of_the_provider():
    for environ, host in (
        ({}, f"oss-{REGION}.aliyuncs.com"),
        ({"OSS_ENDPOINT": INNER}, f"oss-{REGION}-internal.aliyuncs.com"),
    ):
        assert oss.client(REGION, LOGGED_IN | environ).meta.endpoint_url == f"https://s3.{host}"


# through the commands that upload

UPLOAD = {
    "op": "create",
    "urn": "urn:pulumi:d::gpu-fleet::alicloud:oss/bucketObject:BucketObject::payload",
    "newState": {"inputs": {"key": "image/payload/1.tar.gz"}},
}


@pytest.fixture
def at_home(monkeypatch):
    """Set up a laptop with a login; return a context with the test's answers of OSS."""
    for name, value in LOGGED_IN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OSS_ENDPOINT", raising=False)

    @contextmanager
    def answering(buckets):
        with serving(buckets) as (s3, asked), monkeypatch.context() as patch:
            patch.setattr(oss, "bucket_client", lambda *_, **__: s3)
            yield asked

    return answering


@pytest.mark.parametrize(
    ("buckets", "op", "goes_on"),
    [
        ({"ours": SHUT}, "create", False),
        ({}, "create", False),
        ({"ours": NOT_THERE}, "create", True),
        ({"ours": SHUT}, "same", True),
    ],
    ids=["shut", "unknown", "open", "nothing to upload"],
)
def test_up_stops_before_its_first_upload_unless_the_account_may(
    buckets,
    op,
    goes_on,
    shell,  # noqa: F811 - the fixture
    at_home,
):
    plan = json.dumps({"steps": [UPLOAD | {"op": op}]})
    shell.has_cli(f"""case "$*" in preview*--json*) echo '{plan}'; exit 0;; esac""")

    with at_home(buckets) as asked:
        done = CliRunner().invoke(main, ["up", "alicloud-dev"])

    assert done.exit_code == (not goes_on), done.output
    assert ("error: " not in done.output) is goes_on
    assert (f"export OSS_ENDPOINT={INNER}" not in done.output) is goes_on
    assert [call.split()[0] for call in shell.calls].count("up") == goes_on
    assert bool(asked) is (op == "create")


def test_wheels_are_not_fetched_for_a_bucket_that_takes_none(at_home):
    with at_home({"ours": SHUT}):
        done = CliRunner().invoke(main, ["image", "wheels", "alicloud-dev"])

    assert done.exit_code == 1
    assert f"export OSS_ENDPOINT={INNER}" in done.output
