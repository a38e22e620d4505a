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


TEAMS = {"users": [{"name": "ada", "team": "nlp"}], "teams": {"nlp": {"share": 1, "max_gpus": 16}}}


def said_now(age: timedelta = timedelta(), **changes: object) -> QueueRecords:
    """Return records with a recent report of the mover."""
    word = Growth(
        datetime.now(UTC) - age,
        Decimal(20),
        {"train": Decimal(8)},
        frozenset(),
        currency="USD",
        totals={"train": 0},
    )
    return QueueRecords(TEAMS, replace(word, **changes))


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


def slurm(home: Path, *states: str) -> None:
    """Fake a Slurm that takes every job, with nodes of the pool in these states."""
    sbatch(home, 'echo "Submitted batch job 7"')
    nodes = [NODE.format(name=f"i-{number}", state=state, reason="") for number, state in enumerate(states)]
    sbatch(home, "\n".join(f"echo '{line}'" for line in nodes), "scontrol")


def knows(monkeypatch, **changes: object) -> None:
    """Change the mover's last report."""
    monkeypatch.setattr(queued, "records", partial(said_now, **changes))


WORDS = ("run.toml", "--pool", "train", "--nodes", "2")


REFUSED = {
    "a pool that is frozen": (
        {"frozen": frozenset({"train"})},
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
    "no such pool": ({}, ("run.toml", "--pool", "trian"), "there are train (nearest: train)"),
    "one folder for several instances": (
        {},
        ("--pool", "train", "--nodes", "2", "--checkpoints", "out", "--", "true"),
        "--checkpoints out: saves one folder; with --nodes 2 your program must save",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_job_that_cannot_run_is_refused_with_what_is_allowed(home, monkeypatch, mistake):
    changes, words, *says = REFUSED[mistake]
    slurm(home)
    knows(monkeypatch, **changes)

    said = refused(home, *words)

    assert [each for each in says if each not in said] == [], said


def test_one_instance_has_more_gpus_than_the_team_may_have(home, monkeypatch):
    slurm(home)
    small = {**TEAMS, "teams": {"nlp": {"max_gpus": 4}}}
    monkeypatch.setattr(queued, "records", lambda: replace(said_now(), roster=small))

    assert "allowed: none of this pool's instances" in refused(home, "run.toml", "--pool", "train")


@pytest.mark.parametrize("states", [("ALLOCATED", "IDLE"), ("MIXED", "DOWN"), ("IDLE",), ()])
@pytest.mark.parametrize("changes", [{"frozen": frozenset({"train"})}, {"left": Decimal(0)}, {"prices": {}}])
def test_a_job_that_needs_no_more_instances_than_there_are_waits_for_those(
    home, monkeypatch, states, changes
):
    """Slurm does not know booting nodes, and reports rebooting ones as down."""
    slurm(home, *states)
    knows(monkeypatch, **changes, totals={"train": 2})

    assert submit(home, *WORDS).exit_code == 0


def test_what_is_there_and_coming_counts_against_what_is_missing(home, monkeypatch):
    slurm(home, "IDLE", "DOWN")
    knows(monkeypatch, left=Decimal(7), totals={"train": 1})

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
    slurm(home)
    knows(monkeypatch, **changes)

    said = submit(home, *WORDS)

    assert said.exit_code == 0, said.output
    assert "Submitted batch job 7" in said.output


def test_where_the_stack_says_nothing_the_queue_takes_jobs_all_the_same(home, monkeypatch):
    slurm(home)

    def silent() -> QueueRecords:
        raise CloudError("no answer", "")

    monkeypatch.setattr(queued, "records", silent)

    said = submit(home, *WORDS)

    assert said.exit_code == 0
    assert "neither the budget nor the team's limit was checked: no answer" in said.output


def test_where_no_credentials_are_served_the_queue_takes_jobs_all_the_same(home, monkeypatch):
    slurm(home)
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


def test_slurm_is_not_there(home):
    said = refused(home, "run.toml", "--pool", "train")

    assert "sbatch is not on this instance" in said
    assert "systemctl status gpu-queue-node" in said


def test_slurm_does_not_answer(home):
    sbatch(
        home,
        "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller' >&2; exit 1",
    )

    said = refused(home, "run.toml", "--pool", "train")

    assert "Unable to contact slurm controller" in said
    assert "returns within minutes, with all jobs" in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("other.toml", "CONFIG 'other.toml': there is no such file"),
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
