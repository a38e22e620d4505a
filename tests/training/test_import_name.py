"""The trainer is `gpu_fleet`, beside a user's own folders: also `training`, `image` and `stacks`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ran import executable, ran
from tests.training.programs import DIGITS, ROOT

SCRIPT = Path(sys.executable).parent / "gpu-fleet"
LAUNCHER = ROOT / "image/gpu_fleet_image/recipe/rootfs/usr/local/bin/gpu-fleet"
TAKEN = ("training", "image", "stacks")
SHORT = ("--run.epochs", "0.0", "--run.steps", "2", "--schedule.warmup_steps", "0")


@pytest.fixture
def repository(tmp_path) -> Path:
    """Create a researcher's repository whose packages have the names of this project's folders."""
    folder = tmp_path / "repository"
    for name in TAKEN:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"OWNER = 'the researcher, of {name}'\n")
    return folder


def run(repository: Path, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(command, cwd=repository, env={**os.environ, **environment})


@pytest.mark.prove
def test_torchrun_trains_from_such_a_repository(repository, digits):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    own = ("--data.path", digits, "--run.directory", repository / "runs/first", *SHORT)

    done = run(repository, *torchrun, "-m", "gpu_fleet", "start", DIGITS, *map(str, own), OMP_NUM_THREADS="1")

    assert done.returncode == 0, done.stderr
    assert '"finished"' in (repository / "runs/first/result.json").read_text()


def test_the_console_is_not_shadowed(repository):
    checked = run(repository, SCRIPT, "check", "local")
    trainer = run(repository, SCRIPT, "train", "--help")

    assert checked.stdout.startswith("local: OK"), checked.stderr
    assert "Usage: gpu-fleet train" in trainer.stdout, trainer.stderr


def test_the_console_hands_train_to_a_process_that_knows_no_room(repository):
    program = (
        "import sys; sys.argv = ['gpu-fleet', 'train']\n"
        "import gpu_fleet_image.console.cli as cli, os\n"
        "os.execv = lambda program, words: print(words[1:])\n"
        "cli.become_trainer(['train', 'launch', 'job.toml'])\n"
        "cli.become_trainer(['check', 'train'])\n"
    )

    done = run(ROOT, sys.executable, "-c", program)

    assert done.stdout == "['-m', 'gpu_fleet', 'launch', 'job.toml']\n", done.stderr


def test_the_launcher_of_an_instance_is_not_shadowed(repository, tmp_path):
    home = tmp_path / "root/opt/gpu-fleet"
    (home / "venv/bin").mkdir(parents=True)
    executable(home / "venv/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    shutil.copytree(ROOT / "image/gpu_fleet_image/recipe/rootfs/opt/gpu-fleet/bin", home / "bin")
    (home / "lib").mkdir()
    (home / "lib/gpu_fleet_image").symlink_to(ROOT / "image" / "gpu_fleet_image")
    (home / "lib/gpu_fleet_jobs").symlink_to(ROOT / "training/gpu_fleet_jobs")
    (home / "lib/gpu_fleet").symlink_to(ROOT / "training/gpu_fleet")
    places = {"GPU_FLEET_ROOT": str(tmp_path / "root"), "GPU_FLEET_PYTHON": sys.executable}

    agent = run(repository, "sh", LAUNCHER, "agent", "--help", **places)
    trainer = run(repository, "sh", LAUNCHER, "train", "--help", **places)

    assert "Usage: gpu-fleet agent" in agent.stdout, agent.stderr
    assert "Usage: gpu-fleet train" in trainer.stdout, trainer.stderr
