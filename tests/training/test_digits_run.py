"""The example run of the README, as a person runs it, with what clouds do to it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import boto3
import pytest

from gpu_fleet.metrics.records import read_json_lines
from stacks.rehearsal.metadata import metadata_service
from tests.training.programs import DIGITS, torchrun


def result_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_text())


@pytest.fixture(scope="module")
def straight(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example run, undisturbed, on two ranks."""
    directory = tmp_path_factory.mktemp("straight")
    with torchrun(DIGITS, "--data.path", digits, "--run.directory", directory) as program:
        assert program.finish() == 0, program.said
    return directory


def test_two_ranks_learn_the_digits_better_than_the_baseline(straight: Path) -> None:
    result = result_of(straight)

    assert result["outcome"] == "finished"
    assert result["metric_name"] == "accuracy"
    assert result["metric"] > 0.97 > result["baseline"]


def test_a_run_writes_its_steps_saves_and_scores_as_json_lines(straight: Path) -> None:
    records = read_json_lines(straight / "metrics.jsonl")

    assert {record["kind"] for record in records} == {"train", "checkpoint", "evaluation", "time"}
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[-1] < losses[0] / 4


def test_neither_a_spot_notice_nor_a_killed_rank_costs_a_bit(
    straight: Path, digits: Path, bucket: str, tmp_path: Path
) -> None:
    arguments = (DIGITS, "--data.path", digits, "--checkpoint.uri", f"s3://{bucket}/runs/digits")
    often = ("--interrupt.poll_s", 0.05, "--checkpoint.every_steps", 20)

    with (
        metadata_service() as metadata,
        torchrun(
            *arguments,
            *often,
            "--run.directory",
            tmp_path / "interrupted",
            environment={"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.endpoint},
        ) as program,
    ):
        program.wait_for("event=upload step=20")
        metadata.send_spot_notice()
        assert program.finish() == 0, program.said
    with torchrun(*arguments, *often, "--run.directory", tmp_path / "elsewhere", max_restarts=1) as program:
        program.wait_for("event=resumed")
        program.wait_for("event=checkpoint step=")
        os.kill(program.worker(rank=1), signal.SIGKILL)
        restarted = program.wait_for("event=resumed")
        assert program.finish() == 0, program.said

    stopped, resumed = result_of(tmp_path / "interrupted"), result_of(tmp_path / "elsewhere")
    assert (stopped["outcome"], stopped["reason"]) == ("stopped", "spot-notice")
    assert "spot terminate at" in stopped["detail"]
    assert f"step={resumed['resumed_from_step']} " in restarted
    assert stopped["step"] < resumed["resumed_from_step"] < resumed["step"]
    assert resumed["parameters_sha256"] == result_of(straight)["parameters_sha256"]
    keys = [item["Key"] for item in boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    assert f"runs/digits/step-{resumed['step']}/manifest.json" in keys


def test_sigterm_to_one_other_rank_stops_all_at_one_step(digits: Path, tmp_path: Path) -> None:
    arguments = (DIGITS, "--data.path", digits, "--run.directory", tmp_path, "--run.epochs", 1000)

    with torchrun(*arguments, "--checkpoint.every_steps", 10) as program:
        program.wait_for("event=checkpoint step=10")
        os.kill(program.worker(rank=1), signal.SIGTERM)
        assert program.finish() == 0, program.said

    result = result_of(tmp_path)
    assert (result["outcome"], result["reason"]) == ("stopped", "sigterm")
    assert result["detail"] == "rank 1: signal SIGTERM"
    assert (tmp_path / f"checkpoints/step-{result['step']}/manifest.json").exists()
