"""`gpu-fleet restore` over moto: checkpoints that the trainer wrote, read back by the trainer's own store."""

import hashlib
import json
import math
import os

import boto3
import pytest
from click.testing import CliRunner

from gpu_fleet.checkpoint import local, names
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.errors import CheckpointError
from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.data import restore
from gpu_fleet_image.core import keys
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.image.moto_fleet import policy_json, pool_policy

ACCOUNT = "123456789012"
REPLICA = "gpu-fleet-prod-checkpoints-replica-123456789012"
OURS = f"gpu-fleet-drill-checkpoints-{ACCOUNT}"
RECORDS = f"gpu-fleet-drill-records-{ACCOUNT}"
WHERE = ("--stack", "drill", "--region", "us-east-1", "--cloud", "aws", "--account", ACCOUNT)
FROM = ("--from", f"s3://{REPLICA}", "--from-region", "us-west-2")
RUN = "train/ada/runs/tiny"


@pytest.fixture(scope="module")
def cloud():
    with moto_server("us-east-1"):
        yield boto3.client("s3", "us-east-1")


@pytest.fixture
def s3(cloud, tmp_path):
    """A replica with two checkpoints of a run, and an empty stack in another region."""
    elsewhere = {"CreateBucketConfiguration": {"LocationConstraint": "us-west-2"}}
    boto3.client("s3", "us-west-2").create_bucket(Bucket=REPLICA, **elsewhere)
    for bucket in (OURS, RECORDS):
        cloud.create_bucket(Bucket=bucket)
    policy = policy_json(stack="drill", pools={"train": pool_policy(), "dev": pool_policy()})
    cloud.put_object(Bucket=RECORDS, Key=keys.stored(keys.POLICY), Body=json.dumps(policy))
    for step in (100, 200):
        save(tmp_path, step)
    yield cloud
    for bucket in (REPLICA, OURS, RECORDS):
        for each in cloud.list_objects_v2(Bucket=bucket).get("Contents", ()):
            cloud.delete_object(Bucket=bucket, Key=each["Key"])
        cloud.delete_bucket(Bucket=bucket)


def save(folder, step, run=RUN):
    """Save a checkpoint as the trainer does."""
    contents = {names.STATE: os.urandom(1000 + step), "code.zip": b"code"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = {
        name: local.FileRecord(len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    }
    config = {"data": {"path": "s3://gpu-fleet-prod-data-123456789012/shared/text"}}
    manifest = local.Manifest(step, "gpt", 1, files=files, config=config, identity={"run.seed": "1"})
    store = CheckpointStore(f"s3://{REPLICA}/{run}")
    store.upload_files(folder, step, files)
    store.commit(manifest)


def say(*words):
    return CliRunner().invoke(main, ["restore", *words, *WHERE])


def test_the_trainer_reads_the_newest_checkpoint_in_the_other_stack(s3, tmp_path):
    done = say("runs/tiny", *FROM)

    store = CheckpointStore(f"s3://{OURS}/{RUN}")
    assert done.exit_code == 0, done.output
    assert store.steps() == [200]
    store.check_whole(store.manifest(200))
    store.download(200, tmp_path / "checkpoints")
    assert store.manifest(200).identity == {"run.seed": "1"}
    assert "gpu-fleet submit CONFIG --pool train --as ada --stack drill" in done.output
    assert "run.directory = 'runs/tiny'" in done.output
    assert "its data.path is s3://gpu-fleet-prod-data-123456789012/shared/text" in done.output


def test_a_folder_that_another_user_has_named_writes_nothing_else_onto_a_terminal(s3, tmp_path):
    """Its last part is what was asked for; what precedes that is printed."""
    save(tmp_path, 300, "train/eve\x1b]0;x/runs/mine")

    copied, there = (say("runs/mine", *FROM) for _ in range(2))

    assert (copied.exit_code, there.exit_code) == (0, 0), copied.output
    assert "\x1b" not in copied.output + there.output
    assert r"train/eve\x1b]0;x/runs/mine" in there.output


def test_a_checkpoint_that_was_not_copied_whole_is_passed_over_by_name(s3):
    s3.delete_object(Bucket=REPLICA, Key=f"{RUN}/step-200/{names.STATE}")

    done = say("ada/runs/tiny", *FROM)

    assert f"warning: step 200 of {RUN} lacks {names.STATE}; looking at the one before" in done.output
    assert CheckpointStore(f"s3://{OURS}/{RUN}").steps() == [100]


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [("files", {"a": {"size": math.inf, "sha256": ""}}, 100), ("config", {"data": 7}, 200)],
)
def test_a_manifest_that_its_owner_wrote_by_hand_breaks_nothing(s3, key, value, taken):
    place = f"{RUN}/step-200/{restore.MANIFEST}"
    table = json.loads(s3.get_object(Bucket=REPLICA, Key=place)["Body"].read()) | {key: value}
    del table["checksum"]
    checksum = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    s3.put_object(Bucket=REPLICA, Key=place, Body=json.dumps(table | {"checksum": checksum}))

    done = say("runs/tiny", *FROM)

    assert done.exit_code == 0, done.output
    assert f"step {taken} of {RUN} is in" in done.output


def test_a_second_restore_changes_nothing_and_one_after_a_copy_that_was_cut_short_sends_no_file_twice(s3):
    say("runs/tiny", *FROM)

    again = say("runs/tiny", *FROM)
    s3.delete_object(Bucket=OURS, Key=f"{RUN}/step-200/{names.MANIFEST}")
    resumed = say("runs/tiny", *FROM)

    assert f"is in s3://{OURS}/{RUN} already, and complete" in again.output
    assert (again.exit_code, resumed.exit_code, resumed.output.count("copying ")) == (0, 0, 0)


def test_a_run_that_went_on_in_the_other_stack_is_never_overwritten(s3):
    s3.put_object(Bucket=OURS, Key=f"{RUN}/step-300/{names.MANIFEST}", Body=b"{}")

    done = say("runs/tiny", *FROM)

    assert done.exit_code == 1
    assert done.output.startswith(f"error: s3://{OURS}/{RUN} has checkpoints already, as {RUN}/step-300/")
    assert say("runs/tiny", *FROM, "--pool", "dev").exit_code == 0
    assert CheckpointStore(f"s3://{OURS}/dev/ada/runs/tiny").steps() == [200]


def test_a_copy_that_was_cut_short_is_no_checkpoint_and_goes_on(s3, monkeypatch):
    def breaks(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restore, "_copy", breaks)
        assert say("runs/tiny", *FROM).exit_code == 130
    store = CheckpointStore(f"s3://{OURS}/{RUN}")
    assert store.steps() == []

    assert say("runs/tiny", *FROM).exit_code == 0
    assert store.steps() == [200]


def test_a_file_that_a_killed_run_left_there_is_not_taken_for_the_one_of_the_same_size(s3, tmp_path):
    for name, size in ((names.STATE, 1200), ("code.zip", 4)):
        s3.put_object(Bucket=OURS, Key=f"{RUN}/step-200/{name}", Body=bytes(size))

    done = say("runs/tiny", *FROM)

    assert done.exit_code == 0, done.output
    CheckpointStore(f"s3://{OURS}/{RUN}").download(200, tmp_path / "checkpoints")


def test_what_comes_through_this_computer_is_held_to_the_manifests_checksum(s3, monkeypatch):
    """Between the clouds, and between regions of OSS."""
    there = restore.DataBucket
    monkeypatch.setattr(
        restore, "DataBucket", lambda s3, calls, name, _: there(s3, calls, name, f"oss://{name}")
    )
    broken = s3.head_object(Bucket=REPLICA, Key=f"{RUN}/step-200/{names.STATE}")["ContentLength"]
    s3.put_object(Bucket=REPLICA, Key=f"{RUN}/step-200/{names.STATE}", Body=bytes(broken))

    done = say("runs/tiny", *FROM)

    assert done.exit_code == 1
    assert "its checksum is not what the manifest says" in done.output
    with pytest.raises(CheckpointError):
        CheckpointStore(f"s3://{OURS}/{RUN}").manifest(200)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("runs/other", *FROM), "RUN 'runs/other' in s3://"),
        (("../x", "--from", "https://x"), "RUN '../x': must be the run.directory of a configuration"),
        (("", *FROM), "RUN '': must be the run.directory of a configuration"),
        (("runs/tiny", "--from", "https://x"), "--from 'https://x'; allowed: s3://BUCKET or oss://BUCKET"),
        (("runs/tiny", "--from", "oss://lab"), "--from-region is missing"),
        (("runs/tiny", *FROM, "--pool", "prod"), "--pool 'prod': no such pool; stack drill has train, dev"),
    ],
)
def test_bad_input_is_one_message(s3, words, says):
    done = say(*words)

    assert done.exit_code == 1
    assert done.output.startswith(f"error: {says}")
    assert len(done.output.splitlines()) == 1


def test_both_rooms_mean_the_same_files():
    assert (restore.MANIFEST, restore.FORMAT) == (names.MANIFEST, local.FORMAT)
