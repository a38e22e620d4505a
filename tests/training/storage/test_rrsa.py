"""A pod on Alibaba Cloud reaches OSS with the role of its service account."""

import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from gpu_fleet.core.errors import StoreError
from gpu_fleet.storage import rrsa
from gpu_fleet.storage.object_store import ObjectStore

KEYS = {
    "AccessKeyId": "STS.pod",
    "AccessKeySecret": "secret",
    "SecurityToken": "token",
    "Expiration": "2999-01-01T00:00:00Z",
}


class Sts(http.server.BaseHTTPRequestHandler):
    """Fake of STS with AssumeRoleWithOIDC, by its page."""

    asked: list[dict[str, str]] = []  # noqa: RUF012 - set anew by every test
    status, keys = 200, KEYS

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(dict(urllib.parse.parse_qsl(text)))
        content = {"Credentials": self.keys} if self.status == 200 else {"Code": "NoPermission"}
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_args: object) -> None:
        """Log nothing, to keep the test's output clean."""


@pytest.fixture
def pod(tmp_path, monkeypatch) -> Iterator[type[Sts]]:
    """Set the variables that ACK's webhook gives a pod, and serve an STS for it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("the-token\n")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sts)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv(rrsa.ROLE, "acs:ram::1:role/trainer")
    monkeypatch.setenv(rrsa.PROVIDER, "acs:ram::1:oidc-provider/ack")
    monkeypatch.setenv(rrsa.TOKEN_FILE, str(tmp_path / "token"))
    monkeypatch.setenv(rrsa.ENDPOINT, f"http://127.0.0.1:{server.server_port}")
    Sts.asked, Sts.status, Sts.keys = [], 200, KEYS
    yield Sts
    server.shutdown()
    server.server_close()


def store() -> ObjectStore:
    return ObjectStore("oss://bucket/runs", "https://s3.oss-cn-beijing-internal.aliyuncs.com")


def test_a_pod_signs_with_the_role_of_its_service_account(pod):
    keys = store()._client._request_signer._credentials.get_frozen_credentials()

    assert (keys.access_key, keys.secret_key, keys.token) == ("STS.pod", "secret", "token")
    asked = pod.asked[0]
    assert (asked["Action"], asked["OIDCToken"], asked["RoleArn"], asked["OIDCProviderArn"]) == (
        "AssumeRoleWithOIDC",
        "the-token",
        "acs:ram::1:role/trainer",
        "acs:ram::1:oidc-provider/ack",
    )


def test_keys_of_a_pod_are_asked_for_anew_before_they_end(pod):
    pod.keys = KEYS | {"Expiration": "2020-01-01T00:00:00Z"}
    credentials = rrsa.PodKeys().load()

    pod.keys = KEYS | {"AccessKeyId": "STS.new"}

    assert credentials.get_frozen_credentials().access_key == "STS.new"


@pytest.mark.parametrize(("status", "for_good"), [(403, True), (503, False)])
def test_a_refusal_is_for_good_and_a_silence_is_not(pod, status, for_good):
    pod.status = status

    with pytest.raises(
        StoreError, match=f"gives no keys for ALIBABA_CLOUD_ROLE_ARN = .*trainer': {status}"
    ) as end:
        rrsa.role_keys()

    assert end.value.for_good is for_good


def test_a_pod_without_the_webhook_has_no_such_role(monkeypatch):
    for name in rrsa.VARIABLES:
        monkeypatch.delenv(name, raising=False)

    assert not rrsa.is_given({})
    assert rrsa.is_given(dict.fromkeys(rrsa.VARIABLES, "x"))
