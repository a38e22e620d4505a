"""The queue's cloud: munge's key in a secret of either; on Alibaba Cloud nodes by ECS, records in OSS."""

import base64
import json
from datetime import UTC, datetime
from functools import partial
from unittest.mock import Mock

import boto3
import pytest

from gpu_fleet_image.core.alicloud_credentials import AccessKey
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.queue_errors import NotReadyError
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.providers.alicloud import instances
from gpu_fleet_image.slurm import alicloud, aws, cloud, munge
from gpu_fleet_image.slurm.alicloud import VERSION, RecordsStore
from gpu_fleet_stacks.alicloud.queue import NO_KEY, NO_KEY_VERSION
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.image.alicloud_server import ENVIRON, RefusedError, clients, serving

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


class Secrets:
    """Fake of KMS's secrets, by the pages of PutSecretValue and GetSecretValue."""

    def __init__(self) -> None:
        self.versions = {NO_KEY_VERSION: NO_KEY}
        self.stages = {"ACSCurrent": NO_KEY_VERSION}
        self.broken = ""

    def get_secret_value(self, asked):
        if self.broken:
            raise RefusedError(self.broken)
        version = asked.get("VersionId") or self.stages.get(asked.get("VersionStage", "ACSCurrent"))
        if asked["SecretName"] != "munge" or version not in self.versions:
            raise RefusedError("Forbidden.ResourceNotFound", 404)
        return {"SecretName": "munge", "SecretData": self.versions[version], "VersionId": version}

    def put_secret_value(self, asked):
        version, value = asked["VersionId"], asked["SecretData"]
        if self.versions.setdefault(version, value) != value:
            raise RefusedError("Rejected.ResourceExist")
        for stage in json.loads(asked.get("VersionStages", '["ACSCurrent"]')):
            self.stages[stage] = version
        return {"SecretName": "munge", "VersionId": version}


class Instances:
    """Fake of ECS with pages of the requested size."""

    def __init__(self, **states: str) -> None:
        self.known = {name.replace("_", "-"): state for name, state in states.items()}
        self.asked: list[list[str]] = []

    def describe_instances(self, asked):
        ids = json.loads(asked["InstanceIds"])
        self.asked.append(ids)
        rows = [{"InstanceId": name, "Status": self.known[name]} for name in ids if name in self.known]
        return {"Instances": {"Instance": rows}}


@pytest.fixture
def secrets():
    return Secrets()


@pytest.fixture
def kms(secrets):
    with serving(secrets) as server:
        yield clients(server).kms


@pytest.fixture
def moto():
    with moto_server("us-east-1"):
        yield "us-east-1"


@pytest.fixture(params=["aws", "alicloud"])
def secret(request, kms, secrets, moto):
    """Return what fetches munge's key from a secret that has none, and what writes no key into it."""
    if request.param == "alicloud":
        spoil = partial(secrets.versions.__setitem__, VERSION, "c2hvcnQ=")
        return partial(alicloud.fetched, kms, "munge"), spoil
    client = boto3.client("secretsmanager", moto)
    client.create_secret(Name="munge")
    spoil = partial(client.put_secret_value, SecretId="munge", SecretString="c2hvcnQ=")
    return partial(munge.fetched, client, "munge"), spoil


def test_the_controller_makes_the_key_once_and_nodes_which_wait_for_it_get_the_same(secret):
    fetched, _ = secret
    with pytest.raises(NotReadyError, match=r"secret munge: .*ResourceNotFound"):
        fetched(may_make=False)
    made = fetched(may_make=True)

    assert len(made) == munge.KEY_BYTES
    assert fetched(may_make=True) == fetched(may_make=False) == made


def test_what_pulumi_reads_back_of_the_secret_is_never_the_key(kms, secrets):
    alicloud.fetched(kms, "munge", may_make=True)

    read_back = kms.action("GetSecretValue")(SecretName="munge")
    assert (read_back["VersionId"], read_back["SecretData"]) == (NO_KEY_VERSION, NO_KEY)
    assert secrets.stages["ACSCurrent"] == NO_KEY_VERSION


def test_a_controller_that_cannot_read_the_key_does_not_replace_it(kms, secrets):
    made = alicloud.fetched(kms, "munge", may_make=True)
    secrets.broken = "Forbidden.KeyNotFound"

    with pytest.raises(NotReadyError, match=r"not read: Forbidden\.KeyNotFound.*not made: Rejected"):
        alicloud.fetched(kms, "munge", may_make=True)
    secrets.broken = ""
    assert alicloud.fetched(kms, "munge", may_make=False) == made


def test_of_two_controllers_one_makes_the_key(kms, secrets):
    """The other controller did not see it yet, and finds it when its unit tries again."""
    secrets.versions[VERSION] = base64.b64encode(b"k" * munge.KEY_BYTES).decode()
    secrets.broken = "Forbidden.ResourceNotFound"

    with pytest.raises(NotReadyError, match="not made"):
        alicloud.fetched(kms, "munge", may_make=True)
    secrets.broken = ""
    assert alicloud.fetched(kms, "munge", may_make=True) == b"k" * munge.KEY_BYTES


def test_a_secret_that_is_no_key_is_refused_and_left_as_it_is(secret):
    fetched, spoil = secret
    spoil()

    for _ in range(2):
        with pytest.raises(NotReadyError, match="5 bytes; a key of munge has 1024"):
            fetched(may_make=True)


def states_of(actions, number):
    """Ask for the states of ``i-1`` and so many more."""
    with serving(actions) as server:
        ids = [f"i-{each}" for each in range(1, number + 1)]
        return instances.states_of(Calls(lambda: NOW), clients(server).ecs, ids)


def test_the_states_of_nodes_are_said_in_the_words_of_the_controllers_look_of_those_that_ecs_knows():
    ecs = Instances(i_1="Running", i_2="Starting", i_3="Pending", i_4="Stopping", i_5="Stopped")

    assert states_of(ecs, 6) == {
        "i-1": "running",
        "i-2": "pending",
        "i-3": "pending",
        "i-4": "stopping",
        "i-5": "stopped",
    }


def test_no_call_names_more_instances_than_ecs_takes():
    states_of(ecs := Instances(), 250)

    assert [len(asked) for asked in ecs.asked] == [100, 100, 50]


def test_a_refused_look_is_no_state_of_anybody():
    refusing = Mock(describe_instances=Mock(side_effect=RefusedError("Forbidden.RAM", 403)))

    with pytest.raises(CloudError, match=r"Forbidden\.RAM"):
        states_of(refusing, 1)


def test_records_are_read_and_written_with_the_keys_that_count_now(moto):
    """A role's keys last hours, a controller months."""
    s3 = boto3.client("s3", moto)
    s3.create_bucket(Bucket="records-of-a-queue")
    keys, made = [AccessKey("first", "s")], []

    def client():
        made.append(keys[-1].key_id)
        return s3

    store = RecordsStore(lambda: keys[-1], client, Calls(lambda: NOW), "oss://records-of-a-queue/reaper")
    store.put("capacity/queue.json", {"at": 1})
    store.newest("capacity/queue.json")
    keys.append(AccessKey("second", "s"))
    read = store.newest("capacity/queue.json")

    assert read.content == {"at": 1}
    assert made == ["first", "second"]


@pytest.mark.parametrize(("name", "kind"), [("aws", aws.AwsQueue), ("alicloud", alicloud.AlicloudQueue)])
def test_an_instance_file_decides_whose_cloud_it_is(monkeypatch, name, kind):
    for key, value in ENVIRON.items():
        monkeypatch.setenv(key, value)
    instance = InstanceFile(name, "us-east-1", "test", "", "", "", "", "", "", {})

    assert isinstance(cloud.of(instance), kind)
