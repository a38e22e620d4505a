"""What the queue cannot run is one message of the console's command, with what to do, and no traceback."""

import grp
import json
import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from image.accounts import changes
from image.capacity.model import MoverState, Trouble
from image.console.cli import main
from image.runs import queue_view, queued
from tests.capacity.cloud_of_groups import LABELS, NO_ROOM, START
from tests.reaper.moto_fleet import policy_json, pool_policy
from tests.runs.test_queue_view import JOB, Stack

CAPACITY = {"groups": list(LABELS), "max_size": 4, "spare": 0, "together": False, "scale_out_alarms": []}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder of ada's on the shared homes, on an instance of a stack with a queue."""
    pools = {"train": pool_policy(capacity=CAPACITY | {"queue_gpus": 8})}
    (tmp_path / "policy.json").write_text(json.dumps(policy_json(pools=pools, take_max_per_person=4)))
    (tmp_path / "queue.json").write_text("{}")
    monkeypatch.setenv("GPU_FLEET_QUEUE_FILE", str(tmp_path / "queue.json"))
    monkeypatch.setattr(queued, "HOMES", tmp_path)
    monkeypatch.setattr(queued, "own_account", lambda: "ada")
    people = grp.struct_group((changes.PEOPLE, "x", 990, ["ada"]))
    monkeypatch.setattr(queued.grp, "getgrnam", {changes.PEOPLE: people}.__getitem__)
    folder = tmp_path / "ada"
    folder.mkdir()
    (folder / "run.toml").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return folder


def sbatch(home: Path, text: str) -> None:
    program = home.parent / "bin/sbatch"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def submit(home: Path, *words: str):
    said = CliRunner().invoke(main, ["submit", *words, "--policy", str(home.parent / "policy.json")])
    assert "Traceback" not in said.output
    return said


def refused(home: Path, *words: str) -> str:
    """What a command says that ends without success."""
    said = submit(home, *words)
    assert said.exit_code not in (0, None)
    assert not isinstance(said.exception, AssertionError)
    return said.output


def test_a_run_without_mistakes_reaches_slurm(home):
    sbatch(home, 'echo "Submitted batch job 7"')

    said = submit(home, "run.toml", "--pool", "train", "--nodes", "4")

    assert said.exit_code == 0, said.output
    assert "Submitted batch job 7" in said.output


def test_no_such_pool(home):
    assert "there are train (nearest: train)" in refused(home, "run.toml", "--pool", "trian")


def test_more_nodes_than_the_pool_may_have(home):
    said = refused(home, "run.toml", "--pool", "train", "--nodes", "5")

    assert "--nodes 5: size.max of pool 'train' is 4" in said


def test_slurm_is_not_there(home):
    said = refused(home, "run.toml", "--pool", "train")

    assert "sbatch: not on this instance" in said
    assert "systemctl status gpu-queue-node" in said


def test_slurm_does_not_answer(home):
    sbatch(
        home,
        "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller' >&2; exit 1",
    )

    said = refused(home, "run.toml", "--pool", "train")

    assert "Unable to contact slurm controller" in said
    assert "comes back within minutes, with all jobs" in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("other.toml", "CONFIG other.toml: no such file in"),
        ("outside.toml", "which the run's instances share; move it there"),
    ],
)
def test_a_configuration_that_the_nodes_cannot_read(home, tmp_path_factory, name, says):
    elsewhere = tmp_path_factory.mktemp("laptop") / "run.toml"
    elsewhere.write_text("")
    (home / "outside.toml").symlink_to(elsewhere)

    assert says in refused(home, name, "--pool", "train")


def test_a_configuration_that_the_account_may_not_read(home, monkeypatch):
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "run.toml" and may(path, mode))

    assert "may not be read by account ada" in refused(home, "run.toml", "--pool", "train")


def test_a_user_without_account(home, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(home)
    monkeypatch.setattr(queued, "HOMES", home.parent)
    monkeypatch.setenv("GPU_FLEET_QUEUE_FILE", str(home.parent / "queue.json"))
    monkeypatch.setenv("USER", "ada")  # which says nothing of who calls

    said = refused(home, "run.toml", "--pool", "train")

    own = pwd.getpwuid(os.getuid()).pw_name
    assert f"account {own}: none of access.people, so other instances do not know it" in said


WAITS = replace(JOB, state="PENDING", reason="Resources", on="")
SPENT = "train is frozen, since the budget is spent: gpu-fleet unfreeze lifts it"
SHORT = "2.05 USD are needed, and 0.40 of the month's budget are left"


@pytest.mark.parametrize("why", [SPENT, SHORT])
def test_a_pool_that_may_not_grow_says_why_its_jobs_wait(why, capsys):
    stack = Stack(WAITS)
    viewer = replace(stack.viewer, moved=lambda: MoverState(held={"train": why, "dev": "another"}))

    queue_view.show_runs(viewer)

    said = capsys.readouterr()
    assert "pending (Resources" in said.out
    assert said.err == f"pool train gets no instance: {why}\n"


def test_without_capacity_anywhere_it_says_what_was_tried_and_what_may_help(capsys):
    trouble = {f"gpu-fleet-test-{label}": Trouble(START, NO_ROOM) for label in LABELS}
    trouble["gpu-fleet-test-trainer"] = Trouble(START, "of another pool")
    viewer = replace(Stack(WAITS).viewer, moved=lambda: MoverState(trouble=trouble))

    queue_view.show_runs(viewer)

    said = capsys.readouterr().err
    tried = "; ".join(f"{label}: {NO_ROOM}" for label in LABELS)
    assert f"pool train: no room in {tried}. What may help: another pool, zone or type" in said


def test_where_no_job_waits_the_mover_is_not_asked(capsys):
    viewer = replace(Stack(JOB).viewer, moved=lambda: pytest.fail("asked"))

    queue_view.show_runs(viewer)

    assert capsys.readouterr().err == ""
