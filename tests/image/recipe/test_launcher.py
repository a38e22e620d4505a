"""`gpu-fleet` on an instance: which Python runs which command."""

from pathlib import Path

import pytest

from gpu_fleet_image.recipe.payload import PROJECT, PYTHON
from tests.ran import executable, ran

LAUNCHER = PROJECT / "image/gpu_fleet_image/recipe/rootfs/usr/local/bin/gpu-fleet"


@pytest.fixture
def home(tmp_path) -> Path:
    """An instance's /opt/gpu-fleet, whose two Pythons say who they are and what they run."""
    for name in ("system/python3", "opt/venv/bin/python"):
        program = tmp_path / name
        executable(program, f'#!/bin/sh\necho {name.split("/")[0]} "$@"\n')
    return tmp_path


def run(home: Path, *arguments: str) -> str:
    """The launcher with its two places moved below ``home``."""
    text = LAUNCHER.read_text()
    assert "/opt/gpu-fleet" in text
    assert "/usr/bin/python3" in text
    moved = home / "gpu-fleet"
    moved.write_text(
        text.replace("/opt/gpu-fleet", f"{home}/opt").replace("/usr/bin/python3", f"{home}/system/python3")
    )
    return ran(["sh", "-eu", moved, *arguments], check=True).stdout.strip()


@pytest.mark.parametrize("arguments", [["status"], ["keep", "2d", "--reason", "a b"], []])
def test_commands_run_with_the_instances_own_packages(arguments, home):
    assert run(home, *arguments) == " ".join(
        ["system", "-I", f"{home}/opt/bin/run", "gpu_fleet_image.console", *arguments]
    )


def test_the_trainer_runs_in_its_own_environment_without_which_the_console_says_what_is_missing(home):
    assert run(home, "train", "launch", "job.toml") == "opt -m gpu_fleet launch job.toml"
    (home / "opt/venv/bin/python").unlink()
    assert run(home, "train") == f"system -I {home}/opt/bin/run gpu_fleet_image.console train"


def test_the_payload_carries_console_and_trainer_and_the_agents_step_lays_the_launcher():
    step = (PROJECT / "image/gpu_fleet_image/recipe/steps/15-agent.sh").read_text()

    assert {"image/gpu_fleet_image/console", "training/gpu_fleet"} <= set(PYTHON)
    assert "lay opt/gpu-fleet/bin usr/local/bin " in step
