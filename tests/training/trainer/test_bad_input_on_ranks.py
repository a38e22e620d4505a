"""A user's mistake is reported once, by rank 0, and every rank ends."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_fleet.core import config
from gpu_fleet.core.errors import ParallelError
from gpu_fleet.core.world import world
from gpu_fleet.trainer import loop
from tests.training.commands import command, tried, tried_alone
from tests.training.examples import (
    changed,
    few_digits,
    gpt_table,
    resnet_table,
    section,
    train_rank,
    without_pictures,
    write_tokens,
)
from tests.training.ranks import run_ranks

ONE_PETABYTE = 1 << 50


@pytest.fixture(scope="module")
def pictures(digits, tmp_path_factory) -> Path:
    return few_digits(digits, tmp_path_factory.mktemp("few"), count=128)


def one_shard(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    status, said = command(["prepare", "shards", table["data"]["path"], str(folder / "shards")])
    assert status == 0, said
    return changed(table, data={"path": str(folder / "shards")})


def directory_under_a_file(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "file").write_text("")
    return changed(table, run={"directory": str(folder / "file" / "run")})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            section("run", batch_size=66),
            "run.batch_size = 66 does not divide into 2 ranks x run.accumulation = 2",
        ),
        (
            section("parallel", strategy="tensor", tensor=3),
            "= 3 does not divide 2 processes; sizes that fit: 1, 2",
        ),
        (section("parallel", strategy="tensor", tensor=2), "can spread the model 'gpt' only"),
        (
            section("parallel", sync_batch_norm=True),
            "sync_batch_norm = true: torch does so between GPUs only",
        ),
        (section("run", bach_size=3), "run.bach_size: unknown key; did you mean batch_size?"),
        (without_pictures, "empty/train/7: holds no pictures, so its class would be empty"),
        (one_shard, "only 1 shard for 2 ranks x 1 data.workers; write at least 2 shards"),
        (directory_under_a_file, "cannot be written: Not a directory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rank_0_says_it_once_and_no_rank_hangs(change, message, pictures, tmp_path):
    table = change(resnet_table(pictures, tmp_path / "run"), tmp_path)

    (status, said), (other_status, other_said) = tried(2, table, tmp_path)

    assert (status, other_status) == (65, 65)
    assert message in said
    assert said.count("error: ") == 1
    assert other_said == ""


@pytest.mark.parametrize(
    ("options", "parallel", "message"),
    [
        ({"heads": 1}, {"strategy": "tensor", "tensor": 2}, "parallel.tensor = 2 does not divide 1 heads"),
        ({"layers": 1}, {"strategy": "pipeline", "pipeline": 2}, "2 stages need as many layers"),
        ({}, {"strategy": "pipeline", "pipeline": 2}, "set run.accumulation to 2 or more"),
    ],
)
def test_a_model_that_cannot_be_cut_is_reported(options, parallel, message, tmp_path):
    table = gpt_table(write_tokens(tmp_path / "tokens"), tmp_path / "run")
    table["model"]["options"].update(options)
    if not options:
        table["run"]["accumulation"] = 1

    (status, said), (_, other_said) = tried(2, changed(table, parallel=parallel), tmp_path)

    assert status == 65
    assert message in said
    assert other_said == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": {"learning_rate": 0.5}}, "optimizer.learning_rate  0.001 -> 0.5"),
        (
            {"checkpoint": {"uri": "s3://absent/runs"}},
            "s3://absent/runs: cannot be written: NoSuchBucket",
        ),
    ],
    ids=["a checkpoint of another run", "a bucket that is not there"],
)
def test_what_is_found_at_the_start_is_one_message_before_the_first_step(
    change, message, bucket, pictures, tmp_path
):
    table = resnet_table(pictures, tmp_path / "run", steps=1)
    train_rank(table)
    log = tmp_path / "run/metrics.jsonl"
    before = log.read_bytes()

    (status, said), (other_status, other_said) = tried(2, changed(table, **change), tmp_path)

    assert (status, other_status, other_said) == (65, 65, "")
    assert said.count("error: ") == 1
    assert message in said
    assert log.read_bytes() == before


def test_corrupt_samples_past_the_limit_end_the_run_on_every_rank(pictures, tmp_path):
    """Each of the ranks reads fewer than the limit."""
    data = tmp_path / "data"
    shutil.copytree(pictures, data, symlinks=False)
    broken = sorted((data / "train").glob("*/*.png"))[:20]
    for picture in broken:
        picture.write_bytes(b"not a picture")
    table = changed(resnet_table(data, tmp_path / "run", steps=1), data={"corrupt_limit": 15})

    statuses = tried(2, table, tmp_path)

    assert [status for status, _ in statuses] == [65, 65]
    assert "at least 20 corrupt samples, data.corrupt_limit allows 15; last: " in statuses[0][1]
    assert any(str(picture) in statuses[0][1] for picture in broken)


@pytest.mark.parametrize("full", [0, 1])
def test_a_full_device_of_one_rank_ends_both_and_names_what_helps(full, pictures, tmp_path):
    table = resnet_table(pictures, tmp_path / "run", steps=3)

    answers = run_ranks(hungry_rank, 2, table, tmp_path, full)

    assert [answers[full][0], answers[1 - full][0]] == [65, 75]
    for knob in ("--run.accumulation 4", "--precision.dtype bf16", "--parallel.strategy fsdp"):
        assert knob in answers[full][1]
    assert answers[0][1].count("error: ") == 1
    if full == 1:
        assert "error: rank 1: the device has no room for a step" in answers[1][1]
        assert "error: lost another rank, whose own message has the reason" in answers[0][1]


def hungry_rank(table: dict[str, Any], folder: Path, full: int) -> tuple[int, str]:
    """Run `train start` on this rank; the loss of rank `full` asks for more memory than there is."""

    def hungry(*_tensors: torch.Tensor) -> torch.Tensor:
        return torch.empty(ONE_PETABYTE, dtype=torch.uint8)

    if os.environ["RANK"] == str(full):
        loop.mean_loss = hungry
    return tried_alone(table, folder)


def test_a_process_without_a_gpu_of_its_own_is_reported(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    message = r"process 2 .* start torchrun with --nproc-per-node 2"
    with pytest.raises(ParallelError, match=message), world(config.Parallel()):
        pass
