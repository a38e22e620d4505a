"""Access of an Alibaba Cloud instance to OSS: by the internal endpoint, with the keys of its role."""

import json
from collections.abc import Iterator

import pytest

from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.errors import CheckpointError
from gpu_fleet.storage import oss
from tests.image.metadata_server import Server, metadata_server

REGION = "cn-shanghai"
ROLES = "ram/security-credentials/"
KEYS = {
    "AccessKeyId": "STS.id",
    "AccessKeySecret": "secret",
    "SecurityToken": "token",
    "Expiration": "2999-01-01T00:00:00Z",
}


@pytest.fixture
def instance(tmp_path, monkeypatch) -> Iterator[Server]:
    """Yield the metadata service of an instance whose environment has no keys and no endpoint."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "instance.toml"
    file.write_text(f'cloud = "alicloud"\nregion = "{REGION}"\n')
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(file))
    with metadata_server("alicloud") as server:
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", server.base)
        server.says(ROLES, "train-role")
        server.says(f"{ROLES}train-role", json.dumps(KEYS))
        yield server


def test_an_instance_signs_with_its_role_and_asks_inside_the_network(instance):
    client = CheckpointStore("oss://bucket/runs")._client

    keys = client._request_signer._credentials.get_frozen_credentials()
    assert client.meta.endpoint_url == f"https://s3.oss-{REGION}-internal.aliyuncs.com"
    assert client.meta.region_name == REGION
    assert (keys.access_key, keys.secret_key, keys.token) == ("STS.id", "secret", "token")


def test_keys_of_the_environment_come_before_the_role_s(instance, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    client = CheckpointStore("oss://bucket/runs")._client

    assert client._request_signer._credentials.access_key == "mine"


def test_a_user_of_an_instance_has_keys_of_their_own_from_where_the_environment_says(instance, monkeypatch):
    instance.answers["/credentials"] = (200, json.dumps(KEYS | {"AccessKeyId": "STS.of-ada"}))
    instance.open = True
    monkeypatch.setenv("ALIBABA_CLOUD_CREDENTIALS_URI", f"{instance.base}/credentials")

    client = CheckpointStore("oss://bucket/runs")._client

    assert client._request_signer._credentials.access_key == "STS.of-ada"


def test_why_a_user_has_no_keys_is_said(instance, monkeypatch):
    instance.answers["/credentials"] = (503, "AssumeRole: NoPermission")
    instance.open = True
    monkeypatch.setenv("ALIBABA_CLOUD_CREDENTIALS_URI", f"{instance.base}/credentials")

    with pytest.raises(CheckpointError, match="503: AssumeRole: NoPermission"):
        _ = CheckpointStore("oss://bucket/runs")._client


def test_keys_are_asked_for_anew_before_they_end(instance):
    instance.says(f"{ROLES}train-role", json.dumps(KEYS | {"Expiration": "2020-01-01T00:00:00Z"}))
    credentials = oss.RoleKeys().load()

    instance.says(f"{ROLES}train-role", json.dumps(KEYS | {"AccessKeyId": "STS.new"}))

    assert credentials.get_frozen_credentials().access_key == "STS.new"


def test_an_instance_without_a_role_says_so(instance):
    del instance.answers[f"/latest/meta-data/{ROLES}"]

    with pytest.raises(CheckpointError, match="this instance's role has no keys"):
        CheckpointStore("oss://bucket/runs").check_writable()


def test_elsewhere_the_endpoint_must_be_named(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)

    with pytest.raises(CheckpointError, match=r"checkpoint.endpoint = '': must be the endpoint of OSS"):
        CheckpointStore("oss://bucket/runs")
