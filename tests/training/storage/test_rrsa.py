"""A pod on Alibaba Cloud reaches OSS with the role of its service account."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

import pytest

from gpu_fleet.core.errors import StoreError
from gpu_fleet.storage import oss
from gpu_fleet.storage.object_store import ObjectStore, patiently
from tests.answering import Answer, Asked, answering

KEYS = {
    "AccessKeyId": "STS.pod",
    "AccessKeySecret": "secret",
    "SecurityToken": "token",
    "Expiration": "2999-01-01T00:00:00Z",
}


@dataclass
class Sts:
    """Fake of STS with AssumeRoleWithOIDC, by its page."""

    asked: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    keys: dict[str, str] = field(default_factory=lambda: KEYS)

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(dict(parse_qsl(asked.body.decode())))
        content = {"Credentials": self.keys} if self.status == 200 else {"Code": "NoPermission"}
        return self.status, {}, json.dumps(content).encode()


@pytest.fixture
def pod(tmp_path, monkeypatch) -> Iterator[Sts]:
    """Set the variables that ACK's webhook gives a pod, and serve an STS for it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("the-token\n")
    monkeypatch.setenv(oss.ROLE, "acs:ram::1:role/trainer")
    monkeypatch.setenv(oss.PROVIDER, "acs:ram::1:oidc-provider/ack")
    monkeypatch.setenv(oss.TOKEN_FILE, str(tmp_path / "token"))
    sts = Sts()
    with answering(sts.answer) as url:
        monkeypatch.setenv(oss.STS_ENDPOINT, url)
        yield sts


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
    credentials = oss.PodKeys().load()

    pod.keys = KEYS | {"AccessKeyId": "STS.new"}

    assert credentials.get_frozen_credentials().access_key == "STS.new"


@pytest.mark.parametrize(("status", "for_good"), [(403, True), (503, False)])
def test_a_refusal_is_for_good_and_a_silence_is_not(pod, status, for_good):
    pod.status = status

    with pytest.raises(
        StoreError, match=f"gives no keys for ALIBABA_CLOUD_ROLE_ARN = .*trainer': {status}"
    ) as end:
        oss.PodKeys().keys()

    assert end.value.for_good is for_good


def test_a_refusal_in_a_run_is_waited_for(pod, monkeypatch):
    """The token of the pod has expired, and the kubelet is about to write a new one."""
    monkeypatch.setattr("gpu_fleet.storage.object_store.FIRST_PAUSE_S", 0.0)
    pod.status = 400

    def renewed() -> None:
        try:
            oss.PodKeys().keys()
        finally:
            pod.status = 200

    patiently(renewed, refused=True)

    assert len(pod.asked) == 2


@pytest.mark.parametrize("keys", [None, [], "none", {}])
def test_an_answer_without_keys_is_one_message(pod, keys):
    pod.keys = keys

    with pytest.raises(StoreError, match="its answer cannot be read"):
        oss.PodKeys().keys()


def test_a_pod_without_the_webhook_asks_for_no_role(pod, monkeypatch):
    monkeypatch.delenv(oss.TOKEN_FILE)

    assert store()._client._request_signer._credentials is None
    assert not pod.asked
