"""The clients retry reads, but not calls that end instances or confirm a moment."""

from unittest.mock import Mock

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.httpsession import URLLib3Session

from gpu_fleet_image.core import instance_file
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.handshake import Exchange, Reply
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent import cloud as agent_cloud
from gpu_fleet_image.providers.aws import session
from gpu_fleet_image.providers.aws.instances import Instances
from gpu_fleet_image.providers.aws.session import ATTEMPTS, clients
from tests.image.alicloud_server import ENVIRON
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.samples import NOON

CODE = "RequestLimitExceeded"
THROTTLED = f"<Response><Errors><Error><Code>{CODE}</Code></Error></Errors></Response>".encode()


@pytest.fixture
def throttled(monkeypatch):
    """Return the clients of a region that throttles EC2, and the requests that reached it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_context: 0.0)
    made, requests = clients("us-east-1"), []

    def answer(request, **_more):
        requests.append(request)
        return AWSResponse(request.url, 503, {}, Mock(stream=lambda **_: iter([THROTTLED])))

    for client in (made.ec2, made.ending):
        client.meta.events.register("before-send.ec2.*", answer)
    return made, requests


def test_what_ends_instances_is_called_once_and_a_question_that_is_throttled_is_asked_again(throttled):
    made, requests = throttled
    instances = Instances(made, Calls(lambda: NOON), "aws-dev")

    for end in (instances.stop, instances.terminate):
        with pytest.raises(CloudError, match=CODE):
            end(["i-1"])
    assert len(requests) == 2
    with pytest.raises(ClientError, match=CODE):
        made.ec2.describe_instances()

    assert len(requests) == 2 + ATTEMPTS


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_a_reply_that_the_network_holds_up_is_given_up_within_seconds(cloud, monkeypatch, tmp_path):
    """It confirms the check before it; a later check reports processes that began since."""
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    for name, value in (ENVIRON | keys).items():
        monkeypatch.setenv(name, value)
    sent = []

    def hold_up(session, request):
        sent.append(session._timeout.connect_timeout + session._timeout.read_timeout)
        raise ReadTimeoutError(endpoint_url=request.url)

    monkeypatch.setattr(URLLib3Session, "send", hold_up)
    file = tmp_path / "instance.toml"
    file.write_text(INSTANCE_TOML.replace('cloud = "aws"', f'cloud = "{cloud}"'))
    store = agent_cloud.connect(instance_file.load(file), None).store()

    with pytest.raises(CloudError, match="Read timeout"):
        Exchange(store, "caller:i-1", NOON).say(Reply.CLOSED)

    assert [seconds <= 4 for seconds in sent] == [True]


def test_keys_that_a_log_in_rewrites_during_a_command_are_the_ones_of_its_next_call(tmp_path, monkeypatch):
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    form = "[default]\naws_access_key_id = {0}\naws_secret_access_key = s{0}\naws_session_token = t{0}\n"
    file.write_text(form.format("first"))
    found = session._session.__wrapped__().get_credentials()

    keys = []
    for text in (form.format("first"), form.format("second"), "[default]\naws_access_key_id = ha", ""):
        file.write_text(text)
        keys.append(tuple(found.get_frozen_credentials())[:3])

    assert keys == [("first", "sfirst", "tfirst"), *[("second", "ssecond", "tsecond")] * 3]
