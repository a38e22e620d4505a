"""The trainer's wheels, from `gpu-fleet image wheels` through a bucket to an instance."""

import hashlib
import json
from types import SimpleNamespace

import boto3
import pytest
from click.testing import CliRunner
from moto import mock_aws

from gpu_fleet_image.core import wheel_store
from gpu_fleet_image.instance import trainer_wheels
from gpu_fleet_image.instance.trainer_wheels import main
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.images import wheels_command

BUCKET = "gpu-fleet-aws-dev-records-123456789012"
WHEELS = {"six-1.17.0-py3-none-any.whl": b"six", "pip-26.3-py3-none-any.whl": b"pip"}
SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in WHEELS.items()}
LINES = {name: f"{name.split('-')[0]}==1 --hash=sha256:{sha256}\n" for name, sha256 in SHA256.items()}
TEXT = "".join(LINES.values())


@pytest.fixture
def s3(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "rehearsal")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "rehearsal")
    with mock_aws():
        made = boto3.client("s3", region_name="us-east-1")
        made.create_bucket(Bucket=BUCKET)
        yield made


@pytest.fixture
def folder(tmp_path):
    there = tmp_path / "here"
    there.mkdir()
    for name, content in WHEELS.items():
        (there / name).write_bytes(content)
    return there


@pytest.fixture
def lists(tmp_path):
    """Write a payload's folder of lists, with one base."""
    there = tmp_path / "lists"
    there.mkdir()
    six, pip = LINES.values()
    (there / "ubuntu-24.04.txt").write_text(six)
    (there / "pip.txt").write_text(pip)
    return there


@pytest.fixture
def instance(monkeypatch, tmp_path, lists):
    """Return a function that runs the recipe's program as step 70-trainer does; it gives the exit status."""
    file = tmp_path / "payload.json"
    file.write_text(json.dumps({"cloud": "aws", "region": "us-east-1", "bucket": BUCKET}))
    monkeypatch.setattr(trainer_wheels, "PAYLOAD_FILE", file)

    def run(target):
        words = ["trainer_wheels", str(lists), "ubuntu-24.04", str(target)]
        monkeypatch.setattr("sys.argv", words)
        return main()

    return run


def test_what_is_put_into_the_bucket_arrives_on_an_instance_and_is_not_put_there_twice(
    s3, folder, instance, tmp_path
):
    reported = []

    wheels_command.store(s3, BUCKET, TEXT, folder, print)
    wheels_command.store(s3, BUCKET, TEXT, folder, reported.append)

    assert reported == []
    assert instance(tmp_path / "there") == 0
    assert {file.name: file.read_bytes() for file in (tmp_path / "there").glob("*.whl")} == WHEELS


def test_a_wheel_that_is_missing_here_is_named_and_no_index_written(s3, folder):
    (folder / "six-1.17.0-py3-none-any.whl").unlink()

    with pytest.raises(StacksError, match="1 wheels of the list are missing"):
        wheels_command.store(s3, BUCKET, TEXT, folder, print)
    assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET)


def test_what_the_list_does_not_hold_is_refused_on_the_instance(s3, folder, instance, tmp_path, capsys):
    name = "six-1.17.0-py3-none-any.whl"
    wheel = wheel_store.wheel_key(name, SHA256[name])
    index = wheel_store.index_key(TEXT)

    assert instance(tmp_path / "there") == 1
    assert "`gpu-fleet image wheels STACK` uploads them" in capsys.readouterr().err
    wheels_command.store(s3, BUCKET, TEXT, folder, print)
    for key, body, says in (
        (wheel, b"tampered", "sha256 is"),
        (index, json.dumps({"x.whl": "0" * 64}), "names other wheels than the list"),
    ):
        s3.put_object(Bucket=BUCKET, Key=key, Body=body)
        capsys.readouterr()
        assert instance(tmp_path / "there") == 1
        assert says in capsys.readouterr().err


def test_the_command_puts_what_a_folder_has_into_the_stacks_bucket(s3, folder, lists, monkeypatch):
    monkeypatch.setattr(wheels_command, "LISTS", lists)

    said = CliRunner().invoke(wheels_command.wheels, ["aws-dev", "--wheels", str(folder)])

    assert said.exit_code == 0, said.output
    assert f"2 wheels in {BUCKET}/image/wheels" in said.output
    assert "its instances fetch from PyPI by themselves" in said.output


def test_a_stack_that_does_not_stand_is_one_message_and_nothing_is_fetched_for_it(s3, lists, monkeypatch):
    """It used to take minutes and gigabytes before the first call failed."""
    monkeypatch.setattr(wheels_command, "LISTS", lists)
    fetches = []
    monkeypatch.setattr(wheels_command, "fetched", lambda *arguments: fetches.append(arguments))

    said = CliRunner().invoke(wheels_command.wheels, ["aws-prod"])

    assert isinstance(said.exception, StacksError)
    assert "is the stack deployed (`gpu-fleet up`)?" in str(said.exception)
    assert fetches == []


def test_what_takes_minutes_is_said_before_it_begins_and_not_done_twice(folder, tmp_path, monkeypatch):
    said = []
    done = SimpleNamespace(returncode=0, stderr="")
    monkeypatch.setattr(wheels_command.subprocess, "run", lambda *_, **__: said.append("pip") or done)

    wheels_command.fetched(TEXT, tmp_path, said.append)

    assert said == [f"fetching 2 wheels, up to 4 GB, into {tmp_path}: minutes, and once", "pip"]
    assert wheels_command.fetched(TEXT, folder, said.append) == folder
    assert said.count("pip") == 1


def test_without_credentials_of_alibaba_cloud_it_says_which(folder):
    with pytest.raises(
        StacksError, match="set ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET"
    ):
        wheels_command.client(wheels_command.stack_files.settings_of("alicloud-dev"), {})
