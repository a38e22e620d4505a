"""`gpu-fleet gpu mps`: a daemon of one's own over one's reserved GPUs, and nobody else's."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.instance.gpus import mps, reservations_file
from gpu_fleet_image.instance.gpus.reservations import GpuReservations, Reservation
from tests.ran import executable

# Keeps what it was asked, with its GPUs; a daemon runs as long as a file of it lies in its folder.
CONTROL = """#!/bin/sh
echo "$* gpus=$CUDA_VISIBLE_DEVICES" >> "$CALLS"
if [ "$1" = -d ]; then touch "$CUDA_MPS_PIPE_DIRECTORY/control"; exit; fi
read -r said
[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
[ "$said" != quit ] || rm "$CUDA_MPS_PIPE_DIRECTORY/control"
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """An instance with NVIDIA's program, as a user in their home sees it; the program's calls."""
    for name in ("run", "home", "memory", "bin"):
        (tmp_path / name).mkdir()
    program = tmp_path / "bin" / mps.PROGRAM
    executable(program, CONTROL)
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(mps, "IN_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(mps, "account_of", lambda _: "ada")
    return tmp_path / "calls"


def reserve(account):
    until = datetime.now(UTC) + timedelta(hours=4)
    reservations_file.save(GpuReservations(("a", "b", "c"), (Reservation(account, ("a", "b"), until),)))


def call(action, expect=0):
    shown = CliRunner().invoke(main, ["gpu", "mps", action])
    assert shown.exit_code == expect, shown.output
    assert "Traceback" not in shown.output
    return shown.output


def folder_of(said):
    return Path(said.partition("CUDA_MPS_PIPE_DIRECTORY=")[2].split()[0])


def test_a_user_starts_one_over_the_gpus_that_they_reserved_in_a_folder_of_their_own(calls):
    reserve("ada")

    said = call("start")

    assert calls.read_text() == "-d gpus=a,b\n"
    assert stat.S_IMODE(folder_of(said).stat().st_mode) == 0o700
    assert call("start") == call("env") == said
    assert calls.read_text().count("-d ") == 1


def test_who_reserved_nothing_starts_none(calls):
    reserve("bob")

    assert "ada has reserved no GPU: first gpu-fleet gpu reserve" in call("start", expect=1)
    assert not calls.exists()


def test_what_is_stopped_runs_no_more_and_can_be_started_anew(calls):
    reserve("ada")
    first = call("start")

    assert "MPS is stopped" in call("stop")
    assert "MPS was not running" in call("stop")
    assert "MPS is not running: gpu-fleet gpu mps start" in call("env", expect=1)
    second = folder_of(call("start"))
    assert second != folder_of(first)
    (second / "control").unlink()  # it is gone by itself
    call("start")
    assert calls.read_text().count("-d ") == 3


def test_an_instance_without_nvidias_program_is_one_message(calls, monkeypatch):
    reserve("ada")
    monkeypatch.setattr(mps, "PROGRAM", "nvidia-cuda-mps-control-of-no-computer")

    assert "nvidia-cuda-mps-control-of-no-computer: " in call("start", expect=1)
