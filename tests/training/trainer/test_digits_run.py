"""The example run of the README, as a user runs it, with the interruptions of clouds."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import boto3
import pytest

from gpu_fleet.metrics.records import read_json_lines
from tests.training.commands import command
from tests.training.programs import DIGITS, torchrun
from tests.training.ranks import run_ranks


def result_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_text())


@pytest.fixture(scope="module")
def straight(digits, tmp_path_factory) -> Path:
    """Train the example on two ranks, undisturbed; return its folder."""
    directory = tmp_path_factory.mktemp("straight")
    words = ["start", str(DIGITS), "--data.path", str(digits), "--run.directory", str(directory)]
    ended = run_ranks(command, 2, words)
    assert [status for status, _ in ended] == [0, 0], ended
    return directory


def test_two_ranks_learn_the_digits_better_than_the_baseline(straight):
    result = result_of(straight)

    assert result["outcome"] == "finished"
    assert result["metric_name"] == "accuracy"
    assert result["metric"] > 0.97 > result["baseline"]


def test_a_run_writes_its_steps_saves_and_scores_as_json_lines(straight):
    records = read_json_lines(straight / "metrics.jsonl")

    assert {record["kind"] for record in records} == {"train", "checkpoint", "evaluation", "time"}
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[-1] < losses[0] / 4


@pytest.mark.prove
def test_neither_a_kill_of_one_rank_nor_a_sigterm_to_it_costs_a_bit(digits, bucket, tmp_path):
    """A SIGTERM to torchrun: test_launch.py. A spot notice to an instance: acceptance/test_on_moto.py.

    The interrupted run is too long to end before the signal. It is resumed, and compared, as a shorter run.
    """
    endless = (DIGITS, "--data.path", digits, "--run.epochs", 0, "--schedule.name", "constant")
    uploaded = ("--checkpoint.uri", f"s3://{bucket}/runs/digits", "--checkpoint.every_steps", 20)
    interrupted = ("--run.steps", 1_000_000, "--run.directory", tmp_path / "interrupted")

    with torchrun(*endless, *uploaded, *interrupted, max_restarts=1) as program:
        program.wait_for("event=checkpoint step=")
        os.kill(program.worker(rank=1), signal.SIGKILL)
        restarted = program.wait_for("event=resumed")
        program.wait_for("event=checkpoint step=")
        os.kill(program.worker(rank=1), signal.SIGTERM)
        assert program.finish() == 0, program.said
    stopped = result_of(tmp_path / "interrupted")
    shorter = (*endless, "--run.steps", stopped["step"] + 5, "--run.directory")
    ended = [
        answer
        for words in ((*shorter, tmp_path / "elsewhere", *uploaded), (*shorter, tmp_path / "straight"))
        for answer in run_ranks(command, 2, ["start", *map(str, words)])
    ]

    resumed = result_of(tmp_path / "elsewhere")
    assert f"step={stopped['resumed_from_step']} " in restarted
    assert (stopped["outcome"], stopped["reason"]) == ("stopped", "sigterm")
    assert stopped["detail"] == "rank 1: signal SIGTERM"
    assert (tmp_path / f"interrupted/checkpoints/step-{stopped['step']}/manifest.json").exists()
    assert [status for status, _ in ended] == [0, 0, 0, 0], ended
    assert (
        0 < stopped["resumed_from_step"] < stopped["step"] == resumed["resumed_from_step"] < resumed["step"]
    )
    assert resumed["parameters_sha256"] == result_of(tmp_path / "straight")["parameters_sha256"]
    keys = [item["Key"] for item in boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    assert f"runs/digits/step-{resumed['step']}/manifest.json" in keys
