"""Agreement of ranks on two instances with separate disks."""

import os
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gpu_fleet.checkpoint import local, manager
from gpu_fleet.checkpoint.engine import newest_whole
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.checkpoint.uploader import Team
from gpu_fleet.core import config
from gpu_fleet.core.errors import CheckpointError, DataError, StoreError
from gpu_fleet.core.world import world
from tests.training.checkpoint.test_checkpoint import HookedStore, save
from tests.training.examples import changed, gpt_table, train_rank, write_tokens
from tests.training.ranks import run_ranks

URI = "s3://checkpoints/runs/a"


def on_own_instance(root: Path) -> Path:
    """Make this rank the first of its own instance, with its own disk; return the disk."""
    os.environ["LOCAL_RANK"] = "0"
    disk = root / os.environ["RANK"]
    disk.mkdir(parents=True, exist_ok=True)
    return disk


def newest(root: Path, steps: dict[str, list[int]], uri: str) -> int | str | None:
    """Return the step from which this rank would resume, with `steps` on the ranks' disks, or the error."""
    disk = on_own_instance(root)
    save(disk, *steps[os.environ["RANK"]])
    with world(config.Parallel()) as where:
        try:
            found = newest_whole(where, disk, CheckpointStore(uri) if uri else None)
        except CheckpointError as error:
            return str(error)
    return found.step if found else None


def test_two_instances_resume_from_what_both_have_and_do_not_start_afresh_with_nothing(tmp_path):
    said = run_ranks(newest, 2, tmp_path / "nothing", {"0": [5], "1": []}, "")

    assert run_ranks(newest, 2, tmp_path, {"0": [5, 10], "1": [5]}, "") == [5, 5]
    assert all("2 instances have no checkpoint in common; set checkpoint.uri" in str(text) for text in said)


def test_a_new_instance_fetches_what_the_other_uploaded(bucket, tmp_path):
    save(tmp_path / "0", 5, store=CheckpointStore(URI))

    assert run_ranks(newest, 2, tmp_path, {"0": [10], "1": []}, URI) == [5, 5]
    assert local.verify(tmp_path / "1/step-5").step == 5


def fetched_into(root: Path) -> list[int]:
    """Return the steps that this rank, on its own instance, downloads into a folder that all share."""
    os.environ["LOCAL_RANK"] = "0"
    fetched: list[int] = []
    with world(config.Parallel()) as where:
        found = newest_whole(where, root, HookedStore(fetched.append))
    assert found is not None
    assert found.step == 5
    return fetched


def test_instances_that_share_a_folder_do_not_fetch_into_it_at_once(bucket, tmp_path):
    save(tmp_path / "elsewhere", 5, store=CheckpointStore(URI))

    assert run_ranks(fetched_into, 2, tmp_path / "shared") == [[5], []]


def train_on_own_disk(table: dict[str, Any], root: Path) -> str:
    disk = on_own_instance(root)
    try:
        train_rank(changed(table, run={"directory": str(disk)}))
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_sharded_run_needs_a_folder_that_instances_share(tmp_path):
    table = changed(gpt_table(write_tokens(tmp_path / "tokens"), tmp_path), parallel={"strategy": "fsdp"})

    said = run_ranks(train_on_own_disk, 2, table, tmp_path)

    assert all("is not the same folder on all instances" in text for text in said)


def sharded_table(folder: Path, **checkpoint: Any) -> dict[str, Any]:
    tokens = folder / "tokens"
    data = tokens if tokens.exists() else write_tokens(tokens)
    return changed(gpt_table(data, folder), parallel={"strategy": "fsdp"}, checkpoint=checkpoint)


def brought_up(
    table: dict[str, Any], root: Path, stop_at: int
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Train on this rank, on its own instance; return the outcome, the uploaded and the remaining files."""
    disk, uploaded = on_own_instance(root), []

    class NotingStore(CheckpointStore):
        def upload_files(self, folder: Path, step: int, names: Any, moved: Any = None) -> None:
            uploaded.extend(names)
            super().upload_files(folder, step, names, moved)

    manager.CheckpointStore = NotingStore
    found = train_rank(changed(table, run={"directory": str(disk)}), stop_at)
    left = sorted(path.name for path in disk.glob("checkpoints/step-*/*"))
    return found, uploaded, left


def test_instances_that_share_nothing_save_a_sharded_run_each_its_part(bucket, tmp_path):
    table = sharded_table(tmp_path, uri=URI)

    (stopped, first, left), (_, second, left_there) = run_ranks(brought_up, 2, table, tmp_path / "a", 3)
    (resumed, _, _), _ = run_ranks(brought_up, 2, table, tmp_path / "b", 0)

    assert {name for name in first if name.startswith("__")} == {"__0_0.distcp"}
    assert second == ["__1_0.distcp"]
    assert left == left_there == []
    assert CheckpointStore(URI).steps() == [stopped["step"], resumed["step"]]
    assert resumed["resumed_from_step"] == stopped["step"] == 3
    alone = run_ranks(train_rank, 2, sharded_table(tmp_path, uri="none"))[0]
    assert resumed["parameters_sha256"] == alone["parameters_sha256"]


def failing_upload(table: dict[str, Any], root: Path) -> str:
    """Return the error with which this rank ends when the bucket refuses the files of rank 1."""

    def refuse(step: int) -> None:
        if os.environ["RANK"] == "1":
            raise StoreError(f"{URI}: cannot take step {step}: AccessDenied")

    manager.CheckpointStore = lambda *_: HookedStore(refuse)
    return train_on_own_disk(table, root)


def test_a_part_that_does_not_come_up_is_named_by_rank_and_step_and_there_is_no_checkpoint(bucket, tmp_path):
    said = run_ranks(failing_upload, 2, sharded_table(tmp_path, uri=URI), tmp_path)

    assert all(text == f"rank 1: {URI}: cannot take step 6: AccessDenied" for text in said)
    assert CheckpointStore(URI).steps() == []


def test_a_team_waits_for_no_rank_that_says_nothing_for_ever():
    team = Team(0, 2, HashStore(), patience_s=0.0, sleep=lambda _: None)
    team.post(7, "written", {})

    with pytest.raises(CheckpointError, match="rank 1: reported nothing about written for 0 s, at step 7"):
        team.gather(7, "written")


def failed_together() -> tuple[str, bool]:
    """Return the error that this rank sees when rank 1 alone fails."""

    def fail_on_rank_1() -> None:
        if os.environ["RANK"] == "1":
            raise DataError("no such file")

    with world(config.Parallel()) as where, pytest.raises(DataError) as raised:
        where.together(fail_on_rank_1)
    return str(raised.value), raised.value.shared


def test_what_fails_on_one_rank_fails_on_all_by_the_same_name():
    assert run_ranks(failed_together, 2) == [("rank 1: no such file", True)] * 2
