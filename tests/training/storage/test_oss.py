"""Access to OSS inside Alibaba Cloud, with keys of a role: an instance's, its user's, or a pod's."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import pytest

from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.errors import CheckpointError, StoreError
from gpu_fleet.storage import oss
from gpu_fleet.storage.object_store import ObjectStore, patiently
from tests.answering import Answer, Asked, answering
from tests.image.alicloud_api import refused
from tests.image.metadata_server import Server, metadata_server

REGION = "cn-shanghai"
ROLES = "ram/security-credentials/"
KEYS = {
    "AccessKeyId": "STS.id",
    "AccessKeySecret": "secret",
    "SecurityToken": "token",
    "Expiration": "2999-01-01T00:00:00Z",
}
ENDED, NEW = KEYS | {"Expiration": "2020-01-01T00:00:00Z"}, KEYS | {"AccessKeyId": "STS.new"}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch) -> None:
    """Remove the keys and the endpoint of this environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


def keys_of(store: ObjectStore) -> tuple[str, str, str]:
    found = store._client._request_signer._credentials.get_frozen_credentials()
    return found.access_key, found.secret_key, found.token


@pytest.fixture
def instance(tmp_path, monkeypatch) -> Iterator[Server]:
    """Yield the metadata service of an instance."""
    file = tmp_path / "instance.toml"
    file.write_text(f'cloud = "alicloud"\nregion = "{REGION}"\n')
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(file))
    with metadata_server("alicloud") as server:
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", server.base)
        server.says(ROLES, "train-role")
        server.says(f"{ROLES}train-role", json.dumps(KEYS))
        yield server


def test_an_instance_signs_with_its_role_and_asks_inside_the_network(instance):
    store = CheckpointStore("oss://bucket/runs")

    assert store._client.meta.endpoint_url == f"https://s3.oss-{REGION}-internal.aliyuncs.com"
    assert store._client.meta.region_name == REGION
    assert keys_of(store) == ("STS.id", "secret", "token")


def test_keys_of_the_environment_come_before_the_role_s(instance, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    assert keys_of(CheckpointStore("oss://bucket/runs"))[0] == "mine"


def test_a_user_of_an_instance_has_keys_of_their_own_or_hears_why_not(instance, monkeypatch):
    instance.answers["/credentials"] = (503, "AssumeRole: NoPermission")
    instance.open = True
    monkeypatch.setenv("ALIBABA_CLOUD_CREDENTIALS_URI", f"{instance.base}/credentials")

    with pytest.raises(CheckpointError, match="503: AssumeRole: NoPermission"):
        _ = CheckpointStore("oss://bucket/runs")._client
    instance.answers["/credentials"] = (200, json.dumps(KEYS | {"AccessKeyId": "STS.of-ada"}))

    assert keys_of(CheckpointStore("oss://bucket/runs"))[0] == "STS.of-ada"


def test_an_instance_without_a_role_says_so(instance):
    del instance.answers[f"/latest/meta-data/{ROLES}"]

    with pytest.raises(CheckpointError, match="this instance's role has no keys"):
        CheckpointStore("oss://bucket/runs").check_writable()


def test_elsewhere_the_endpoint_must_be_named():
    with pytest.raises(CheckpointError, match=r"checkpoint.endpoint = '': must be the endpoint of OSS"):
        CheckpointStore("oss://bucket/runs")


@dataclass
class Sts:
    """Fake of STS with AssumeRoleWithOIDC, by its documented fields."""

    asked: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    keys: Any = field(default_factory=lambda: KEYS)

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(dict(parse_qsl(asked.body.decode())))
        refused("AssumeRoleWithOIDC", self.asked[-1], {"Credentials": self.keys})
        content = {"Credentials": self.keys} if self.status == 200 else {"Code": "NoPermission"}
        return self.status, {}, json.dumps(content).encode()


@pytest.fixture
def pod(tmp_path, monkeypatch) -> Iterator[Sts]:
    """Set the variables that ACK's webhook gives a pod, and serve an STS for it."""
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
    assert keys_of(store()) == ("STS.id", "secret", "token")
    assert (
        pod.asked[0].items()
        >= {
            "Action": "AssumeRoleWithOIDC",
            "OIDCToken": "the-token",
            "RoleArn": "acs:ram::1:role/trainer",
            "OIDCProviderArn": "acs:ram::1:oidc-provider/ack",
        }.items()
    )


def test_keys_of_a_pod_or_an_instance_are_asked_for_anew_before_they_end(instance, pod):
    pod.keys = ENDED
    instance.says(f"{ROLES}train-role", json.dumps(ENDED))
    credentials = [kind().load() for kind in (oss.PodKeys, oss.RoleKeys)]

    pod.keys = NEW
    instance.says(f"{ROLES}train-role", json.dumps(NEW))

    assert [found.get_frozen_credentials().access_key for found in credentials] == ["STS.new"] * 2


@pytest.mark.parametrize(("status", "for_good"), [(403, True), (503, False)])
def test_a_refusal_is_for_good_and_a_silence_is_not(pod, status, for_good):
    pod.status = status
    message = f"gives no keys for ALIBABA_CLOUD_ROLE_ARN = .*trainer': {status}"

    with pytest.raises(StoreError, match=message) as end:
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
