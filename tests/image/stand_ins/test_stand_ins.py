"""What stands in for a cloud around the virtual machine: endpoints, metadata service, passing hours."""

import http.client
import socket
import ssl
from contextlib import nullcontext

import boto3
import pytest
from moto import mock_aws

from gpu_fleet_stacks.settings import stack_files
from tests.answering import answering
from tests.image.stand_ins import aws, ec2_metadata
from tests.image.stand_ins.https_front import Forward, RefusedError, Request, https_front
from tests.image.stand_ins.signatures import Keys
from tests.stacks.registrations import stood

USER_TAG = "aws:PrincipalTag/SSMSessionRunAs"
NAME = "records.s3.us-east-1.amazonaws.com"
INSTANCE = {
    "ami-id": "ami-1",
    "instance-id": "i-1",
    "instance-type": "g5.xlarge",
    "placement/availability-zone": "us-east-1a",
    "placement/region": "us-east-1",
}


@pytest.fixture
def front(tmp_path):
    """A front of a service that answers with what it was asked."""

    def route(request):
        if request.target == "/secret":
            raise RefusedError("not for you")
        return Forward(endpoint, f"/{request.host.partition('.')[0]}{request.target}")

    echo = answering(lambda asked: (200, {}, f"{asked.path} {asked.body.decode()}".encode()))
    with echo as endpoint, https_front(tmp_path, [NAME], route) as front:
        yield front


def put(front, target, name=NAME, **options):
    """PUT as a client does that trusts the front's authority and looks for a name."""
    context = ssl.create_default_context(cadata=front.authority)
    connection = http.client.HTTPSConnection("127.0.0.1", front.port, context=context, timeout=120)
    connection.sock = context.wrap_socket(
        socket.create_connection(("127.0.0.1", front.port)), server_hostname=name
    )
    connection.request("PUT", target, headers={"Host": name}, **options)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_request_to_a_real_name_reaches_what_stands_in_for_it_also_in_chunks(front):
    for body in (b"content", iter([b"con", b"tent"])):
        assert put(front, "/key", body=body, encode_chunked=body != b"content") == (
            200,
            "/records/key content",
        )
    assert front.hosts() == {NAME}


def test_what_is_refused_is_noted_with_its_reason(front):
    assert put(front, "/secret", body=b"") == (403, "not for you")
    assert front.refused == [(NAME, "not for you")]
    assert front.handled == []


def test_a_name_that_the_certificate_is_not_for_is_no_service(front):
    with pytest.raises(ssl.SSLCertVerificationError):
        put(front, "/key", name="elsewhere.example", body=b"")
    assert front.handled == []


def test_every_version_of_the_metadata_lists_and_answers_what_is_there_and_nothing_else():
    answers = {
        "/2021-03-23/meta-data/instance-id": "i-1",
        "/2009-04-04/user-data": "#cloud-config\n",
        "/latest/meta-data/placement/": "availability-zone\nregion",
        "/latest/meta-data/iam/security-credentials/": "role",
        "/latest/meta-data/": "ami-id\niam/\ninstance-id\ninstance-type\nplacement/",
        "/latest/meta-data/spot/instance-action": None,
        "/latest/meta-data/inst": None,
    }

    tree = ec2_metadata.tree(INSTANCE, "#cloud-config\n", "role", Keys("ASIA", "secret", "token"))

    assert {path: tree.get(path) for path in answers} == answers


@pytest.mark.parametrize(
    ("action", "changed", "tag", "may"),
    [
        ("CreateTags", "i-1", "gpu-fleet:withdrawn", True),
        ("DeleteTags", "i-1", "gpu-fleet:withdrawn", True),
        ("CreateTags", "i-2", "gpu-fleet:withdrawn", False),
        ("CreateTags", "i-1", "gpu-fleet:pool", False),
        ("TerminateInstances", "i-1", "", False),
    ],
)
def test_an_agent_withdraws_by_a_tag_of_its_own_instance_and_asks_ec2_for_nothing_else(
    action, changed, tag, may
):
    rights = aws.Rights(stood(stack_files.settings_of(aws.STACK)))
    rights.instance_id = "i-1"
    body = f"Action={action}&ResourceId.1={changed}&Tag.1.Key={tag}&Tag.1.Value=now".encode()
    request = Request("ec2.us-east-1.amazonaws.com", "POST", "/", {}, body)

    with nullcontext() if may else pytest.raises(RefusedError):
        rights.hold(request, "ec2", aws.signer_of({}, "i-1"))


def test_a_request_with_a_users_keys_is_judged_as_that_users():
    with mock_aws():
        sts = boto3.client("sts", "us-east-1", aws_access_key_id="role", aws_secret_access_key="secret")
        given = sts.assume_role(RoleArn="arn:aws:iam::123456789012:role/dev-user", RoleSessionName="ada@i-1")
        keys = given["Credentials"]

        theirs, own = (
            aws.signer_of({"authorization": f"AWS4-HMAC-SHA256 Credential={key_id}/20261126/..."}, "i-1")
            for key_id in (keys["AccessKeyId"], aws.KEYS.id)
        )

    assert theirs.keys == Keys(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"])
    assert (theirs.role, theirs.context[USER_TAG]) == (f"{aws.POOL}-user", "ada")
    assert (own.keys, own.role, USER_TAG in own.context) == (aws.KEYS, f"{aws.POOL}-instance", False)
