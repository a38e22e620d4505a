"""The rehearsal as a user starts it, and as a user stops it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from gpu_fleet_stacks.core.signals import ended_like_by_keyboard
from gpu_fleet_stacks.rehearsal import processes
from gpu_fleet_stacks.rehearsal.__main__ import rehearse
from gpu_fleet_stacks.settings import stack_files
from tests.ran import ran

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_fleet_stacks.rehearsal", *arguments]
    return ran(command, cwd=ROOT, timeout=PATIENCE_S, env=quiet())


def quiet() -> dict[str, str]:
    return os.environ | {"COLUMNS": "120"}


# The rehearsal's first act replaced by one that goes on.
A_LONG_ACT = """
import sys
from pathlib import Path
from gpu_fleet_stacks.rehearsal import __main__ as rehearsal, processes

def long_act(*_):
    processes.run(["bash", "-c", "sleep 601 & exec sleep 602"], Path(sys.argv[-1]) / "act.log")

rehearsal.stand_up = long_act
rehearsal.main()
"""


@contextmanager
def started(log: Path, *program: str):
    """A rehearsal, ended with all it started when a test fails."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", *program, "--folder", str(log.parent / "build")],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=quiet(),
        )
        try:
            yield process
        finally:
            for item in (
                [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
            ):
                item.kill()
            process.kill()
            process.wait()


def wait_for_child(process: subprocess.Popen, word: str) -> list[psutil.Process]:
    """Every descendant, once one of them has this word in its command line."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the rehearsal ended before it was interrupted"
        family = psutil.Process(process.pid).children(recursive=True)
        if any(word in _command(item) for item in family):
            return family
        time.sleep(0.05)  # polls another process; its clock is not ours to inject
    raise AssertionError(f"no process with {word!r} within {PATIENCE_S} s")


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.prove
def test_production_stands_up_with_its_p4d_groups(tmp_path):
    done = run("aws-prod", "--folder", str(tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "rehearsal.json").read_text())
    assert figures["stack"] == "aws-prod"
    assert figures["resources"]["created"] > 100
    assert "gpu-fleet-aws-prod-train-us-east-1a" in done.stdout
    assert "p4d.24xlarge" in done.stdout


@pytest.mark.prove
def test_a_stack_of_alibaba_cloud_is_recorded_whole(tmp_path):
    done = run("alicloud-dev", "--folder", str(tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "rehearsal.json").read_text())
    assert figures["resources"]["created"] == 0
    assert figures["resources"]["recorded"] > 100


def test_a_former_result_that_cannot_be_removed_is_named_with_the_reason(tmp_path):
    (tmp_path / "rehearsal").mkdir()
    (tmp_path / "rehearsal/aws-dev").write_text("a file, which even root cannot remove as a folder\n")

    with pytest.raises(NotADirectoryError, match=r"rehearsal/aws-dev"):
        rehearse(Mock(), Mock(), stack_files.settings_of("aws-dev"), tmp_path)


def test_a_rehearsal_that_is_terminated_leaves_no_process_of_an_act_behind(tmp_path):
    terminated(tmp_path / "log", "sleep 602", signal.SIGTERM, "-c", A_LONG_ACT)


def test_a_signal_while_a_process_starts_leaves_no_process_behind(tmp_path, monkeypatch):
    processes_started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **keys):
            super().__init__(*arguments, **keys)
            processes_started.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)

    with ended_like_by_keyboard(), pytest.raises(KeyboardInterrupt):
        processes.run(["sleep", "603"], tmp_path / "log")

    assert [process.poll() for process in processes_started] == [-signal.SIGTERM]


@pytest.mark.prove
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_rehearsal_that_is_terminated_during_training_leaves_no_process_behind(how, tmp_path):
    terminated(tmp_path / "log", "gpu_fleet start", how, "-m", "gpu_fleet_stacks.rehearsal")


def terminated(log, at_work, how, *program):
    """Terminate a rehearsal once one of its processes has these words."""
    with started(log, *program) as process:
        family = wait_for_child(process, at_work)

        process.send_signal(how)

        assert process.wait(PATIENCE_S) == 130, log.read_text()
        _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
        assert alive == []
    assert "Traceback" not in log.read_text()
