"""``gpu-fleet submit`` on a stack with a queue: what sbatch gets, and what is refused before."""

import json
import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_fleet import exit_codes
from image.queue import batch
from image.reaper.errors import ConfigurationError
from image.runs import queued
from tests.capacity.cloud_of_groups import policy

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
FOLDER = Path("/home/ada/work")
RUN = queued.QueuedRun(("digits.toml", "--run.epochs", "3"), "train", 2, ("--branch", "b"), "")


def described(run=RUN, refused=(), **capacity):
    return queued.described(policy(queue_gpus=8, **capacity), run, refused, FOLDER, NOW)


def test_a_configuration_is_launched_on_every_instance():
    text = batch.script(described())

    assert "#SBATCH --partition=train\n" in text
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    assert "#SBATCH --chdir=/home/ada/work\n" in text
    assert "-m gpu_fleet launch digits.toml --run.epochs 3 --branch b" in text


def test_any_other_program_runs_under_the_trainers_watch():
    run = replace(RUN, words=("python", "my run.py"), checkpoints="out")

    assert described(run).arguments == ("run", "--checkpoints", "out", "--", "python", "my run.py")


@pytest.mark.parametrize(
    ("run", "refused", "says"),
    [
        (replace(RUN, pool="trian"), (), "there are train (nearest: train)"),
        (replace(RUN, nodes=5), (), "size.max of pool 'train' is 4"),
        (RUN, ("--hours",), "--hours: not on a stack with a queue"),
    ],
)
def test_what_cannot_be_is_refused_before_slurm_hears_of_it(run, refused, says):
    with pytest.raises(ConfigurationError) as caught:
        described(run, refused)
    assert says in str(caught.value)


def test_a_laptop_is_sent_to_an_instance(tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_FLEET_QUEUE_FILE", str(tmp_path / "queue.json"))
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigurationError, match="submit on one of its instances"):
        queued.submit_to_queue(policy(queue_gpus=8), RUN, (), dry_run=False)


def test_a_dry_run_shows_the_script_and_submits_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(queued, "handed_over", lambda _: pytest.fail("submitted"))

    queued.submit_to_queue(policy(queue_gpus=8), RUN, (), dry_run=True)

    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH --job-name=digits-")


def test_a_folder_that_no_other_instance_sees_is_refused(tmp_path, monkeypatch):
    (tmp_path / "queue.json").write_text(json.dumps({}))
    monkeypatch.setenv("GPU_FLEET_QUEUE_FILE", str(tmp_path / "queue.json"))
    monkeypatch.chdir("/tmp")

    with pytest.raises(ConfigurationError, match="not below /home"):
        queued.submit_to_queue(policy(queue_gpus=8), RUN, (), dry_run=False)


def ended(tmp_path, code: int, restarts: int) -> int:
    """The exit status of the script where the trainer ends with a code, after so many restarts."""
    for name, text in {"srun": f"exit {code}", "scontrol": "echo ' NodeAddr=10.0.0.5 '"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_RESTART_COUNT": str(restarts),
        "SLURM_NNODES": "2",
        "SLURMD_NODENAME": "i-1",
    }
    script = batch.script(described())
    return subprocess.run(["bash", "-c", script], env=environment, check=False).returncode


@pytest.mark.parametrize(
    ("code", "restarts", "status"),
    [
        (exit_codes.FINISHED, 0, 0),
        (exit_codes.STOPPED, 0, exit_codes.STOPPED),
        (exit_codes.STOPPED, 50, exit_codes.STOPPED),
        (exit_codes.FAILED_FOR_GOOD, 0, exit_codes.FAILED_FOR_GOOD),
        (exit_codes.USAGE, 0, exit_codes.USAGE),
        (exit_codes.FAILED_PERHAPS, 0, exit_codes.STOPPED),
        (exit_codes.FAILED_PERHAPS, 1, exit_codes.STOPPED),
        (exit_codes.FAILED_PERHAPS, 2, exit_codes.FAILED_PERHAPS),
    ],
)
def test_exit_codes_decide_whether_the_queue_runs_a_job_again(tmp_path, code, restarts, status):
    assert ended(tmp_path, code, restarts) == status


def test_the_queue_and_the_trainer_mean_the_same_by_their_codes():
    assert batch.REQUEUED_EXIT == exit_codes.STOPPED
    assert set(batch.NEVER_AGAIN) == {exit_codes.FINISHED, exit_codes.USAGE, exit_codes.FAILED_FOR_GOOD}
