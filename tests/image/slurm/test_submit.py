"""``gpu-fleet submit`` on a stack with a queue: the call of sbatch, and refusals before it."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_fleet.core import exit_codes
from gpu_fleet_image.console.runs import batch, queued
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.slurm import configuration, exclusion
from gpu_fleet_jobs.submitted import queued as queued_job
from tests.image.cloud_of_groups import policy
from tests.ran import executable, ran

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
FOLDER = Path("/home/ada/work")
RUN = queued.QueuedRun(("digits.toml", "--run.epochs", "3"), "train", 2, ("--branch", "b"), "")


def described(run=RUN, refused=(), **capacity):
    return queued.described(policy(queue_gpus=8, **capacity), run, refused, FOLDER, NOW)


def test_a_configuration_is_launched_on_every_instance_and_may_give_way_to_others():
    options = {"partition=train", "nodes=2", "gpus-per-node=8", "chdir=/home/ada/work"}
    plain, low = (batch.script(run) for run in (described(), described(replace(RUN, qos="low"))))

    assert {f"#SBATCH --{option}" for option in options} <= {*plain.splitlines()}
    assert ("#SBATCH --qos=low\n" in low, "--qos" in plain) == (True, False)


def test_any_other_program_runs_under_the_trainers_watch():
    run = replace(RUN, words=("python", "my run.py"), checkpoints="out")

    assert described(run).arguments == ("run", "--checkpoints", "out", "--", "python", "my run.py")


def test_hours_are_refused_before_slurm_hears_of_it():
    with pytest.raises(ConfigurationError, match="--hours: not allowed on a stack with a queue"):
        described(RUN, ("--hours",))


@pytest.mark.parametrize(
    ("is_instance", "says"),
    [(False, "gpu-fleet take train --hours 1 --stack"), (True, "not below /home")],
    ids=["a laptop", "a folder that no other instance sees"],
)
def test_a_job_is_handed_in_on_an_instance_from_a_shared_folder(tmp_path, monkeypatch, is_instance, says):
    if is_instance:
        (tmp_path / "queue.json").write_text(json.dumps({}))
    monkeypatch.setenv("GPU_FLEET_QUEUE_FILE", str(tmp_path / "queue.json"))
    monkeypatch.chdir("/tmp")

    with pytest.raises(ConfigurationError, match=says):
        queued.submit_to_queue(policy(queue_gpus=8), RUN, (), dry_run=False)


def test_a_dry_run_shows_the_script_and_submits_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(queued, "handed_over", lambda _: pytest.fail("submitted"))

    queued.submit_to_queue(policy(queue_gpus=8), RUN, (), dry_run=True)

    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH --job-name=digits-")


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        (("python", "trian.py"), True),
        (("./train", "--lr", "1"), True),
        (("bash", "run.sh"), True),
        (("python", "here.py"), False),
        (("python3.11", "-m", "pkg"), False),
        (("python", "-c", "import a b"), True),
        (("python", "-c", "import a"), False),
        (("torchrun", "here.py", "--config=conf.yaml"), True),
        (("torchrun", "here.py", "--config", "conf.yaml"), True),
        (("torchrun", "here.py", "--config", "known.yaml"), False),
        (("bash", "-c", "make-it; fit --config conf.yaml"), False),
        (("nvidia-smi", "x.py"), False),
        (("digits.toml",), False),
    ],
)
def test_a_command_whose_program_is_missing_is_refused_before_slurm_hears_of_it(words, is_refused, tmp_path):
    (tmp_path / "here.py").touch()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/known.yaml").touch()

    assert bool(queued.missing(words, tmp_path)) is is_refused


def test_the_job_becomes_the_trainers_own_command_at_the_address_of_its_first_instance(tmp_path, monkeypatch):
    """Run the script, and check the arguments and variables of the trainer's command."""
    for name, text in {
        "python": 'echo "$PET_MASTER_ADDR $@"',
        "scontrol": "echo ' NodeAddr=10.0.0.5 '",
    }.items():
        executable(tmp_path / name, f"#!/bin/sh\n{text}\n")
    monkeypatch.setattr(batch, "PYTHON", str(tmp_path / "python"))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "i-1"}

    done = ran(["bash", "-c", batch.script(described())], env=environment, check=True)

    words = done.stdout.split()
    assert words[:5] == ["10.0.0.5", "-m", "gpu_fleet", "queued", "--log"]
    assert words[5].endswith("-7.log")
    assert words[6:] == ["launch", "digits.toml", "--run.epochs", "3", "--branch", "b"]


def test_the_queue_and_the_trainer_mean_the_same_by_code_comment_and_signal():
    assert configuration.REQUEUED_EXIT == exit_codes.STOPPED
    assert exclusion.COMMENT == queued_job.COMMENT
    assert queued_job.CANCELLED_BY.name == "SIGUSR1"
