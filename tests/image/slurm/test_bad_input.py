"""A job that the queue cannot run gets one message with advice, and no traceback."""

import grp
import json
import os
import pwd
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.runs import queue_view, queued, refusals
from gpu_fleet_image.console.runs.refusals import QueueRecords
from gpu_fleet_image.controllers.mover.growth import FRESH, Growth
from gpu_fleet_image.core.capacity import MoverState, Trouble
from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.instance.accounts import changes
from gpu_fleet_image.providers.aws import session
from tests.image.cloud_of_groups import LABELS, NO_ROOM, START
from tests.image.console.runs.test_queue_view import JOB, Stack
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.moto_fleet import policy_json, pool_policy
from tests.image.slurm.test_slurm import NODE
from tests.ran import executable

CAPACITY = {"groups": list(LABELS), "max_size": 4, "spare": 0, "together": False, "scale_out_alarms": []}


def said_now(age: timedelta = timedelta(), max_gpus: int = 16, **changes: object) -> QueueRecords:
    """Return records of a team and its limit with a recent report of the mover."""
    teams = {"users": [{"name": "ada", "team": "nlp"}], "teams": {"nlp": {"max_gpus": max_gpus}}}
    word = Growth(datetime.now(UTC) - age, Decimal(20), {"train": Decimal(8)}, frozenset(), currency="USD")
    return QueueRecords(teams, replace(word, **{"totals": {"train": 0}, **changes}))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Create a folder of ada on the shared homes, on an instance of a stack with a queue."""
    pools = {"train": pool_policy(capacity=CAPACITY | {"queue_gpus": 8})}
    (tmp_path / "policy.json").write_text(json.dumps(policy_json(pools=pools, take_max_per_person=4)))
    (tmp_path / "queue.json").write_text("{}")
    monkeypatch.setenv("GPU_FLEET_QUEUE_FILE", str(tmp_path / "queue.json"))
    monkeypatch.setattr(queued, "HOMES", tmp_path)
    monkeypatch.setattr(queued, "own_account", lambda: "ada")
    people = grp.struct_group((changes.USERS, "x", 990, ["ada"]))
    monkeypatch.setattr(queued.grp, "getgrnam", {changes.USERS: people}.__getitem__)
    folder = tmp_path / "ada"
    folder.mkdir()
    (folder / "run.toml").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(queued, "records", said_now)
    return folder


def sbatch(home: Path, text: str, name: str = "sbatch") -> None:
    program = home.parent / "bin" / name
    executable(program, f"#!/bin/sh\n{text}\n")


def submit(home: Path, *words: str):
    said = CliRunner().invoke(main, ["submit", *words, "--policy", str(home.parent / "policy.json")])
    assert "Traceback" not in said.output
    return said


def refused(home: Path, *words: str) -> str:
    """Return the output of a command that must fail."""
    said = submit(home, *words)
    assert said.exit_code not in (0, None)
    assert not isinstance(said.exception, AssertionError)
    return said.output


def slurm(home: Path, monkeypatch, *states: str, **changes: object) -> None:
    """Fake a Slurm that takes every job, with nodes in these states, and change the mover's last report."""
    sbatch(home, 'echo "Submitted batch job 7"')
    nodes = [NODE.format(name=f"i-{number}", state=state, reason="") for number, state in enumerate(states)]
    sbatch(home, "\n".join(f"echo '{line}'" for line in nodes), "scontrol")
    monkeypatch.setattr(queued, "records", partial(said_now, **changes))


WORDS = ("run.toml", "--pool", "train", "--nodes", "2")


FROZEN, TRAIN = {"frozen": frozenset({"train"})}, ("run.toml", "--pool", "train")
REFUSED = {
    "a pool that is frozen": (
        FROZEN,
        WORDS,
        "--pool 'train': frozen, since the budget is spent, and 2 more of its instances are needed",
        "allowed after gpu-fleet unfreeze, or with a higher budget.monthly",
    ),
    "more money than is left": (
        {"left": Decimal(15)},
        WORDS,
        "the instances that are missing, 2, cost 16.00 USD an hour",
        "allowed: the 15.00 that are left of budget.monthly this month; the new month begins at",
    ),
    "an unknown price": ({"prices": {}}, WORDS, "budget.assume in the stack file says it"),
    "more GPUs than the team may have": (
        {},
        (*WORDS[:-1], "3"),
        "--nodes 3: 24 GPUs, and teams.nlp.max_gpus of the stack file is 16; allowed: up to --nodes 2",
    ),
    "more nodes than the pool may have": ({}, (*WORDS[:-1], "5"), "--nodes 5: size.max of pool 'train' is 4"),
    "more GPUs in one instance than the team may have": (
        {"max_gpus": 4},
        TRAIN,
        "allowed: none of this pool's instances",
    ),
    "no such pool": ({}, ("run.toml", "--pool", "trian"), "there are train (nearest: train)"),
    "no such configuration": ({}, ("other.toml", *TRAIN[1:]), "CONFIG 'other.toml': there is no such file"),
    "one folder for several instances": (
        {},
        ("--pool", "train", "--nodes", "2", "--checkpoints", "out", "--", "true"),
        "--checkpoints out: saves one folder; with --nodes 2 your program must save",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_job_that_cannot_run_is_refused_with_what_is_allowed(home, monkeypatch, mistake):
    changes, words, *says = REFUSED[mistake]
    slurm(home, monkeypatch, **changes)

    said = refused(home, *words)

    assert [each for each in says if each not in said] == [], said


@pytest.mark.parametrize("states", [("ALLOCATED", "IDLE"), ("MIXED", "DOWN"), ("IDLE",), ()])
@pytest.mark.parametrize("changes", [FROZEN, {"left": Decimal(0)}, {"prices": {}}])
def test_a_job_that_needs_no_more_instances_than_there_are_waits_for_those(
    home, monkeypatch, states, changes
):
    """Slurm does not know booting nodes, and reports rebooting ones as down."""
    slurm(home, monkeypatch, *states, **changes, totals={"train": 2})

    assert submit(home, *WORDS).exit_code == 0


def test_what_is_there_and_coming_counts_against_what_is_missing(home, monkeypatch):
    slurm(home, monkeypatch, "IDLE", "DOWN", left=Decimal(7), totals={"train": 1})

    assert "the instances that are missing, 1, cost 8.00 USD an hour" in refused(home, *WORDS)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"left": Decimal(16)},
        {"left": None, "prices": {}},
        {"left": Decimal(0), "totals": {}},
        {"age": FRESH * 2, "left": 0},
    ],
)
def test_what_may_pass_by_itself_is_no_refusal(home, monkeypatch, changes):
    """There is money, or it is not known yet: the job waits, and `gpu-fleet runs` shows the reason."""
    slurm(home, monkeypatch, **changes)

    said = submit(home, *WORDS)

    assert said.exit_code == 0, said.output
    assert "Submitted batch job 7" in said.output


def test_where_the_stack_says_nothing_the_queue_takes_jobs_all_the_same(home, monkeypatch):
    slurm(home, monkeypatch)
    monkeypatch.setattr(queued, "records", Mock(side_effect=CloudError("no answer", "")))

    said = submit(home, *WORDS)

    assert said.exit_code == 0
    assert "neither the budget nor the team's limit was checked: no answer" in said.output


def test_where_no_credentials_are_served_the_queue_takes_jobs_all_the_same(home, monkeypatch):
    slurm(home, monkeypatch)
    (home / "instance.toml").write_text(INSTANCE_TOML)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(home / "instance.toml"))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/credentials")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "_session", session._session.__wrapped__)
    monkeypatch.setattr(queued, "records", refusals.records)

    said = submit(home, *WORDS)

    assert said.exit_code == 0, said.output
    assert "neither the budget nor the team's limit was checked: Error when retrieving" in said.output


def test_slurm_is_not_there_or_does_not_answer(home):
    absent = refused(home, *TRAIN)
    sbatch(home, "echo 'Batch job submission failed: Unable to contact slurm controller' >&2; exit 1")
    silent = refused(home, *TRAIN)

    assert "sbatch is not on this instance" in absent
    assert "systemctl status gpu-queue-node" in absent
    assert "Unable to contact slurm controller" in silent
    assert "returns within minutes, with all jobs" in silent


def test_a_configuration_that_the_nodes_or_the_account_cannot_read(home, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("laptop") / "laptop.toml"
    elsewhere.touch()
    (home / "outside.toml").symlink_to(elsewhere)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "run.toml" and may(path, mode))

    assert "may not be read by account ada" in refused(home, *TRAIN)
    assert "which the run's instances share; move it there" in refused(home, "outside.toml", *TRAIN[1:])


def test_a_user_without_account(home, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(home)
    monkeypatch.setattr(queued, "HOMES", home.parent)
    monkeypatch.setenv("GPU_FLEET_QUEUE_FILE", str(home.parent / "queue.json"))
    monkeypatch.setenv("USER", "ada")  # which says nothing of who calls

    said = refused(home, *TRAIN)

    own = pwd.getpwuid(os.getuid()).pw_name
    assert f"account {own} is not in access.people, so other instances do not have it" in said


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
