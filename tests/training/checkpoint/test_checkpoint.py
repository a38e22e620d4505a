"""A checkpoint is whole, verified, and kept long enough, in a folder and in a bucket."""

import errno
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
import torch
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from torch import nn
from torch.distributed.checkpoint import state_dict_saver

from gpu_fleet.checkpoint import local, names, sharded, uploader
from gpu_fleet.checkpoint import saver as saving
from gpu_fleet.checkpoint.engine import newest_whole
from gpu_fleet.checkpoint.manager import Checkpoints
from gpu_fleet.checkpoint.saver import Saver, Snapshot
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.checkpoint.uploader import AbandonedError, Upload
from gpu_fleet.core import config
from gpu_fleet.core.errors import CheckpointError, StoreError, TrainingError, UnreadableError
from gpu_fleet.core.world import World, world
from gpu_fleet.step.spread import Whole
from gpu_fleet.step.state import State, capture_tensors
from gpu_fleet.storage.object_store import at_start, patiently
from tests.training.commands import tried_alone
from tests.training.examples import changed, gpt_table, resnet_table

URI = "s3://checkpoints/runs/a"


@pytest.fixture
def alone() -> Iterator[World]:
    """Yield the world of one process."""
    with world(config.Parallel()) as where:
        yield where


@pytest.fixture
def no_pause(monkeypatch) -> None:
    monkeypatch.setattr("gpu_fleet.storage.object_store.FIRST_PAUSE_S", 0.0)


def save(root: Path, *steps: int, store: CheckpointStore | None = None, keep: int = 9) -> None:
    """Save each of `steps`, and wait until it is on disk and in the store."""
    for step in steps:
        saver = Saver(root, store, keep)
        saver.save(local.Manifest(step, "model", 1), {"weights": torch.full((1000,), float(step))})
        saver.close()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (truncate, names.STATE, "bytes, the manifest says"),
        (flip_a_bit, names.STATE, "SHA-256"),
        (Path.unlink, names.STATE, "No such file"),
        (truncate, names.MANIFEST, "cannot be read"),
        (Path.unlink, names.MANIFEST, "No such file"),
    ],
)
def test_damage_is_named_and_passed_over_aloud(*, damage, file, message, alone, tmp_path, caplog):
    save(tmp_path, 5, 10)
    damage(tmp_path / "step-10" / file)

    with pytest.raises(CheckpointError, match=message):
        local.verify(tmp_path / "step-10")
    manifest = newest_whole(alone, tmp_path, store=None)

    assert manifest.step == 5
    assert "event=checkpoint-damaged step=10" in caplog.text
    assert (tmp_path / "step-10.damaged").is_dir()


def test_nothing_whole_is_an_error_and_no_checkpoint_at_all_a_fresh_start(alone, tmp_path):
    save(tmp_path, 5, 10)
    for step in (5, 10):
        truncate(tmp_path / f"step-{step}" / names.STATE)

    for _ in range(2):  # a restart must not find an empty folder
        with pytest.raises(CheckpointError, match=r"none of the checkpoints \[5, 10\] is whole"):
            newest_whole(alone, tmp_path, store=None)
    assert newest_whole(alone, tmp_path / "new", store=None) is None


def test_retention_counts_committed_checkpoints_up_to_this_step_only(tmp_path):
    (tmp_path / "step-3.tmp").mkdir()

    save(tmp_path, 1, 2, 4, keep=2)
    assert local.steps(tmp_path) == [2, 4]
    save(tmp_path, 3, keep=1)  # 4 was damaged, or the run would not be at 3
    assert local.steps(tmp_path) == [3, 4]


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path):
    save(tmp_path, 5)
    truncate(tmp_path / "step-5" / names.STATE)

    save(tmp_path, 5)

    assert local.verify(tmp_path / "step-5").step == 5


def test_a_change_waits_for_the_copy_which_reuses_its_memory():
    weights, snapshot = torch.ones(4), Snapshot()
    first = snapshot.begin({"weights": torch.zeros(4)})()["weights"].data_ptr()
    end = snapshot.begin({"weights": weights, "step": 3})

    def change() -> None:
        snapshot.before_change()
        weights.zero_()

    training = threading.Thread(target=change)
    training.start()
    taken = end()
    training.join()

    assert (taken["weights"].tolist(), taken["step"]) == ([1, 1, 1, 1], 3)
    assert weights.tolist() == [0, 0, 0, 0]
    assert taken["weights"].data_ptr() == first


def test_batch_norm_may_go_on_while_its_statistics_are_saved():
    model = nn.BatchNorm1d(2)
    settings = config.from_table(resnet_table(Path("data"), Path("run")), "test")
    state = State(
        model=model,
        spread=Whole(model, model, settings, torch.device("cpu")),
        optimizer=torch.optim.SGD(model.parameters()),
        chosen=[{}],
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        average=None,
        utilisation=None,
        not_finite_at_start=frozenset(),
    )

    captured = capture_tensors(state, settings)
    model(torch.ones(3, 2))

    assert captured["model"]["running_mean"].tolist() == [0, 0]
    assert model.running_mean is not None
    assert model.running_mean.tolist() == pytest.approx([0.1, 0.1])


def test_a_full_disk_is_reported_by_the_next_save_and_at_the_end(tmp_path):
    root = tmp_path / "file"
    root.write_text("not a folder")
    saver = Saver(root, store=None, keep=1)
    saver.save(local.Manifest(1, "model", 1), {})

    with pytest.raises(CheckpointError, match="step 1 cannot be written"):
        saver.save(local.Manifest(2, "model", 1), {})
    with pytest.raises(CheckpointError, match="step 1 cannot be written"):
        saver.close()


def test_a_disk_that_is_full_is_called_so(tmp_path, monkeypatch):
    """The writer of torch reports where it stands instead, as soon as the file has begun."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(local.HashingFile, "write", Mock(side_effect=[64, *[full] * 9]))
    saver = Saver(tmp_path, store=None, keep=1)
    saver.save(local.Manifest(1, "model", 1), {"weight": torch.zeros(1000)})

    with pytest.raises(CheckpointError, match=r"step 1 cannot be written: .*No space left on device"):
        saver.close()


def test_what_went_up_comes_down_on_another_instance_and_again_once_it_is_damaged(alone, bucket, tmp_path):
    save(tmp_path / "here", 5, store=CheckpointStore(URI))
    there = tmp_path / "there"

    first = newest_whole(alone, there, CheckpointStore(URI))
    flip_a_bit(there / "step-5" / names.STATE)
    again = newest_whole(alone, there, CheckpointStore(URI))

    assert first == again == local.verify(tmp_path / "here/step-5") == local.verify(there / "step-5")


def test_an_upload_without_its_manifest_is_no_checkpoint(bucket, tmp_path):
    save(tmp_path, 5, 10, store=CheckpointStore(URI))

    boto3.client("s3").delete_object(Bucket=bucket, Key="runs/a/step-10/manifest.json")

    assert CheckpointStore(URI).steps() == [5]


def test_the_manifest_is_uploaded_last_and_deleted_first(bucket, tmp_path, monkeypatch):
    store, calls = CheckpointStore(URI), []
    store._client.meta.events.register(
        "before-call.s3", lambda model, params, **_: calls.append((model.name, params["url_path"]))
    )

    save(tmp_path, 5, store=store, keep=1)
    save(tmp_path, 10, store=store, keep=1)

    puts = [path for name, path in calls if name in ("PutObject", "CompleteMultipartUpload")]
    deletes = [path for name, path in calls if name == "DeleteObject"]
    assert [Path(path).name for path in puts] == [names.STATE, names.MANIFEST] * 2
    assert [Path(path).name for path in deletes] == [names.MANIFEST, names.STATE]
    assert store.steps() == [10]


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        (names.STATE, lambda _: b"something else"),
        (names.MANIFEST, lambda content: content[:20] + b"\xff" + content[21:]),  # no text any more
    ],
)
def test_a_damaged_upload_falls_back_to_the_one_before(*, name, damaged, alone, bucket, tmp_path, caplog):
    save(tmp_path / "here", 5, 10, store=CheckpointStore(URI))
    s3, place = boto3.client("s3"), {"Bucket": bucket, "Key": f"runs/a/step-10/{name}"}
    s3.put_object(**place, Body=damaged(s3.get_object(**place)["Body"].read()))

    manifest = newest_whole(alone, tmp_path / "there", CheckpointStore(URI))

    assert manifest.step == 5
    assert "event=checkpoint-damaged step=10" in caplog.text


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://no-such-bucket/runs", "NoSuchBucket"),
        ("gs://bucket/runs", "write s3://bucket/prefix"),
        ("bucket/runs", "write s3://bucket/prefix"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(uri, message, bucket):
    with pytest.raises(TrainingError, match=message) as raised:
        CheckpointStore(uri).check_writable()

    assert uri in str(raised.value)


def test_oss_is_asked_the_way_it_understands(monkeypatch):
    store = CheckpointStore("oss://bucket/runs", endpoint="https://oss-eu-central-1.example")
    options = store._client.meta.config

    assert options.s3["addressing_style"] == "virtual"
    assert options.request_checksum_calculation == "when_required"
    assert options.response_checksum_validation == "when_required"


def test_an_upload_that_failed_is_reported_at_the_end(bucket, tmp_path, caplog):
    store = CheckpointStore("s3://gone/runs")
    saver = Saver(tmp_path, store, keep=1)
    saver.save(local.Manifest(1, "model", 1), {})

    with pytest.raises(CheckpointError, match="s3://gone/runs: cannot take step-1"):
        saver.close()

    assert "event=upload-failed step=1" in caplog.text
    assert local.verify(tmp_path / "step-1").step == 1


class HookedStore(CheckpointStore):
    """Store that asks the test before it takes or gives a checkpoint."""

    def __init__(self, before: Callable[[int], object]) -> None:
        super().__init__(URI)
        self.before = before

    def upload_files(self, folder: Path, step: int, *asked: Any) -> None:
        self.before(step)
        super().upload_files(folder, step, *asked)

    def download(self, step: int, root: Path) -> None:
        self.before(step)
        super().download(step, root)


def failing(times: int, **fault: bool) -> Callable[..., None]:
    """Return a function that fails so often, and then does nothing."""
    faults = iter([StoreError("InternalError", **fault)] * times)

    def fail(*_: object) -> None:
        for each in faults:
            raise each

    return fail


@pytest.mark.parametrize("ends", [False, True])
def test_a_save_gives_way_to_the_training_and_the_last_one_to_nobody(ends, bucket, tmp_path, monkeypatch):
    gave_way: list[str] = []
    for module in (saving, uploader):
        monkeypatch.setattr(module, "give_way", lambda: gave_way.append(threading.current_thread().name))
    saver, copied = Saver(tmp_path, CheckpointStore(f"s3://{bucket}/runs/last"), keep=1), threading.Event()
    monkeypatch.setattr(saver.snapshot, "begin", lambda state: lambda: copied.wait() and state)
    saver.save(local.Manifest(1, model="m", world_size=1), {"weights": torch.zeros(2)})
    if ends:
        assert not saver.close(within_s=0.0)

    copied.set()
    saver.wait()

    assert saver.close()
    assert bool(gave_way) is not ends


def test_the_end_of_an_upload_is_waited_for_as_long_as_asked(bucket, tmp_path):
    opened = threading.Event()
    saver = Saver(tmp_path, HookedStore(lambda _: opened.wait()), keep=1)
    saver.save(local.Manifest(1, "model", 1), {})

    early = saver.close(within_s=0.0)
    opened.set()

    assert (early, saver.close()) == (False, True)
    assert CheckpointStore(URI).steps() == [1]


class PatientSaver(Saver):
    """Saver that is done at the third `close`, and notes the time limits."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []

    def close(self, within_s: float | None = None) -> bool:
        self.asked.append(within_s)
        return len(self.asked) == 3


def test_a_flush_keeps_no_rank_in_one_collective_past_its_time_limit(alone, tmp_path):
    table = changed(resnet_table(tmp_path, tmp_path), parallel={"timeout_s": 600.0})
    checkpoints = Checkpoints(config.from_table(table, "test"), alone, identity={})
    checkpoints.abandon()
    checkpoints._saver = saver = PatientSaver()

    checkpoints.flush()

    assert len(saver.asked) == 3
    assert all(within_s is not None and within_s < 600 / 2 for within_s in saver.asked)


def test_a_part_that_cannot_be_written_is_a_checkpoint_error(alone, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    model = nn.Linear(2, 2)

    written = sharded.begin_save(
        tmp_path / "file/step-1.tmp", model, torch.optim.AdamW(model.parameters()), alone.saving
    )

    with pytest.raises(CheckpointError, match=r"cannot be written: .*Not a directory"):
        written()


class Running:
    """Value that creates a file when pickle reads it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("place", ["metadata", "value"])
def test_a_sharded_checkpoint_runs_no_code(place: str, alone: World, tmp_path: Path) -> None:
    folder, mark = tmp_path / "step-1", tmp_path / "has-run"
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["note"] = ""
    parts = sharded._parts(model, optimizer)
    parts["optimizer"]["param_groups.weight.note"] = Running(mark) if place == "value" else ""
    state_dict_saver.save(parts, checkpoint_id=folder)
    if place == "metadata":
        (folder / ".metadata").write_bytes(pickle.dumps(Running(mark)))

    with pytest.raises(UnreadableError, match="cannot be read again: "):
        sharded.load(folder, model, optimizer, [{}], alone.saving)

    assert not mark.exists()


def test_the_newest_checkpoint_passes_an_upload_that_hangs(bucket, tmp_path):
    hanging, never = threading.Event(), threading.Event()
    store = HookedStore(lambda step: step > 1 or hanging.set() or never.wait())  # like a dead connection
    saver = Saver(tmp_path, store, keep=2)
    saver.save(local.Manifest(1, "model", 1), {})
    assert hanging.wait(120)

    saver.save(local.Manifest(2, "model", 1), {})
    closed = saver.close(within_s=120)
    never.set()

    assert closed
    assert CheckpointStore(URI).steps() == [2]
    assert 2 in store.steps()


LEAVES = """
import sys, threading
from gpu_fleet import __main__ as program
from gpu_fleet.checkpoint.uploader import LINE
hangs = threading.Event()
threading.Thread(target=hangs.wait, name=LINE).start()
program.leave(85)
hangs.set()
"""


def test_an_upload_that_was_given_up_holds_the_end_of_the_process_up_no_longer():
    assert subprocess.run([sys.executable, "-c", LEAVES], check=False, timeout=120).returncode == 85


def test_an_upload_that_moves_is_cancelled_where_a_newer_one_has_to_pass():
    line = Upload(local.Manifest(1, "", 1), Path(), [], None)
    line.moved()
    line.abandoned.set()

    with pytest.raises(AbandonedError):
        line.moved()


def test_the_last_upload_is_tried_again_while_the_bucket_is_disturbed(bucket, tmp_path, no_pause):
    save(tmp_path, 1, store=HookedStore(failing(3, passing=True)))

    assert CheckpointStore(URI).steps() == [1]


def test_an_upload_that_waits_for_its_next_try_gives_way_to_a_newer_one(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_fleet.storage.object_store.FIRST_PAUSE_S", 50.0)  # of the 60 s of its patience
    asked, fail = threading.Event(), failing(1, passing=True)
    saver = Saver(tmp_path, HookedStore(lambda step: asked.set() or fail(step)), keep=2)
    saver.save(local.Manifest(1, "model", 1), {})
    assert asked.wait(120)

    saver.save(local.Manifest(2, "model", 1), {})
    closed = saver.close(within_s=40)

    assert (closed, CheckpointStore(URI).steps()) == (True, [2])


def test_a_bucket_that_lets_nothing_be_removed_will_do(bucket, tmp_path, caplog, monkeypatch):
    store = CheckpointStore(URI)
    monkeypatch.setattr(store._client, "delete_object", Mock(side_effect=refusal("AccessDenied", 403)))

    store.check_writable()
    save(tmp_path, 5, 10, store=store, keep=1)

    assert CheckpointStore(URI).steps() == [5, 10]
    assert "event=not-removed" in caplog.text
    assert "event=prune-failed" in caplog.text


def test_an_error_that_passes_costs_no_step_and_a_refusal_is_no_damage(
    alone, bucket, tmp_path, monkeypatch, no_pause
):
    save(tmp_path / "here", 5, 10, store=CheckpointStore(URI))

    with pytest.raises(StoreError):
        newest_whole(alone, tmp_path / "refused", HookedStore(failing(1)))
    passing = newest_whole(alone, tmp_path / "there", HookedStore(failing(3, passing=True)))
    listed, fail = CheckpointStore.steps, failing(1, passing=True, answered=True)
    monkeypatch.setattr(CheckpointStore, "steps", lambda store: fail() or listed(store))
    disturbed = newest_whole(alone, tmp_path / "listed", CheckpointStore(URI))

    assert (passing.step, disturbed.step) == (10, 10)


@pytest.mark.parametrize(
    ("fault", "restarts", "tries"),
    [
        ({"passing": True, "answered": True}, 0, 2),
        ({"passing": True}, 0, 1),
        ({"refused": True, "answered": True}, 0, 1),
        ({"refused": True, "answered": True}, 1, 2),
    ],
    ids=["disturbed", "silent", "refuses a start", "refuses a restart of the ranks"],
)
def test_a_start_waits_for_a_store_that_answers_and_names_one_that_does_not(
    *, fault, restarts, tries, monkeypatch, no_pause
):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
    disturbed = Mock(side_effect=[StoreError("not now", **fault), None])

    with nullcontext() if tries > 1 else pytest.raises(StoreError):
        at_start(disturbed)

    assert disturbed.call_count == tries


@pytest.mark.parametrize(
    ("code", "status", "refusals"), [("AccessDenied", 403, 3), ("ExpiredToken", 400, 10**6)]
)
def test_credentials_that_expire_in_a_run_are_waited_for(
    *, code, status, refusals, bucket, tmp_path, monkeypatch
):
    monkeypatch.setattr("gpu_fleet.storage.object_store.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(uploader, "NOTICE_PATIENCE_S", 0.05)
    saver, answer = Saver(tmp_path, CheckpointStore(URI), keep=1), BaseClient._make_api_call
    left = [refusals]

    def refusing(client: BaseClient, *asked: object) -> object:
        left[0] -= 1
        if left[0] >= 0:
            raise refusal(code, status)
        return answer(client, *asked)

    monkeypatch.setattr(BaseClient, "_make_api_call", refusing)
    saver.save(local.Manifest(1, model="m", world_size=1), {"weights": torch.zeros(2)})

    with nullcontext() if refusals == 3 else pytest.raises(StoreError) as raised:
        saver.close()

    left[0] = 0
    assert CheckpointStore(URI).steps() == ([1] if refusals == 3 else [])
    assert raised is None or raised.value.exit_status == 75  # the next try has new ones


def test_patience_ends():
    now, pauses = [0.0], []

    def silent() -> None:
        raise StoreError("SlowDown", passing=True)

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    with pytest.raises(StoreError):
        patiently(silent, within_s=60, clock=lambda: now[0], sleep=sleep)

    assert pauses == [1, 2, 4, 8, 16, 20]


def test_a_refused_upload_of_a_file_is_a_refusal(bucket, tmp_path):
    """boto3 wraps the answer into an error that holds only its text."""
    (tmp_path / "x").write_text("one")
    store = CheckpointStore("s3://not-there/mine")

    with pytest.raises(StoreError, match="NoSuchBucket") as refused:
        store.put("x", tmp_path / "x")

    assert not refused.value.passing


def refusal(code: str, status: int, **headers: str) -> ClientError:
    """Return as much of an answer as counts."""
    about: Any = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": about}, "PutObject")


@pytest.mark.parametrize(
    ("code", "status", "kind", "passing"),
    [
        ("NoSuchKey", 404, CheckpointError, None),
        ("InternalError", 500, StoreError, True),
        ("SlowDown", 503, StoreError, True),
        ("AccessDenied", 403, StoreError, False),
    ],
)
def test_an_answer_of_the_store_is_damage_a_passing_fault_or_a_refusal(
    *, code, status, kind, passing, bucket
):
    with pytest.raises(CheckpointError) as raised, CheckpointStore(URI)._explained("cannot give step 5"):
        raise refusal(code, status)

    assert type(raised.value) is kind
    assert getattr(raised.value, "passing", None) is passing


@pytest.mark.parametrize(
    ("code", "off_s", "passing", "says"),
    [
        ("RequestTimeTooSkewed", 0.0, True, "the clock of this instance is off: look at timedatectl"),
        ("RequestTimeTooSkewed", 2400.0, True, "is off by 2400 s, ahead: look at"),
        ("403", -1000.0, True, "is off by 1000 s, behind: look at"),  # of an object's head, without a reason
        ("403", 800.0, False, ""),
        ("AccessDenied", 0.0, False, ""),
    ],
)
def test_a_clock_that_is_off_may_be_set_and_is_named(*, code, off_s, passing, says, bucket, monkeypatch):
    said_at = 1_800_000_000.0
    date = format_datetime(datetime.fromtimestamp(said_at, UTC), usegmt=True)
    monkeypatch.setattr("gpu_fleet.storage.object_store.time.time", lambda: said_at + off_s)

    with pytest.raises(StoreError) as raised, CheckpointStore(URI)._explained("cannot be written"):
        raise refusal(code, 403, date=date)

    assert raised.value.passing is passing
    assert raised.value.exit_status == (75 if passing else 65)
    assert says in str(raised.value)
    assert ("clock" in str(raised.value)) is passing


def test_a_run_on_an_instance_whose_clock_is_off_may_be_tried_again(bucket, tmp_path, tokens, monkeypatch):
    monkeypatch.setattr("gpu_fleet.storage.object_store.START_PATIENCE_S", 0.0)
    skewed = Mock(side_effect=refusal("RequestTimeTooSkewed", 403))
    monkeypatch.setattr(BaseClient, "_make_api_call", skewed)
    table = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"uri": URI})

    status, said = tried_alone(table, tmp_path)

    assert status == 75
    assert said.endswith("the clock of this instance is off: look at timedatectl\n")
