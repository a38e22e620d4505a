"""From the console's command to a finished run: the stack's document, its payload, the trainer, in moto."""

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import boto3
import pytest
import tomli_w
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.runs import aws, command
from gpu_fleet_image.console.runs.bucket import NEWEST, RunBucket
from gpu_fleet_image.console.runs.choice import busy
from gpu_fleet_image.console.users.take import Desk
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.capacity import Fate, Request
from gpu_fleet_image.core.place import Place
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.runs import JOB, STATE, Job, Member, NodeState, Phase, job_prefix, node_prefix
from gpu_fleet_image.instance.agent.sensors.commands import is_watched
from gpu_fleet_image.instance.agent.sensors.processes import processes
from tests.image.console.runs.instances import (
    RECORDS,
    REGION,
    WHERE,
    deliver,
    fleet_of_two,
    reach_by_their_addresses,
    say_of_requests,
)
from tests.image.console.runs.objects import Objects
from tests.training.examples import changed, gpt_table, write_tokens

CHECKPOINTS = RECORDS.replace("records", "checkpoints")
ADA = ("--as", "ada")
# the stand-ins have no GPU
ONE_PROCESS = {"PET_NPROC_PER_NODE": "1"}
COMMAND = ("submit", "--pool", "train", "--yes", *ADA)
PROGRAM = """
import pathlib, sys, time
import beside
while not pathlib.Path("go").exists():
    time.sleep(0.05)
print(*sys.argv[1:], beside.WORD)
"""
SUBMIT = ("submit", "tiny.toml", "--pool", "train", "--include", "data/text", "--yes", *ADA)
LONGEST_S = 120


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """The stack in moto, with two instances that a user took and that passed their gate."""
    with fleet_of_two(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture
def nodes(fleet):
    """The instances, as after a boot, and no run: one of the same second would have the same name."""
    _, made = fleet
    yield made
    for node in made:
        node.as_booted()
    boto3.resource("s3", REGION).Bucket(RECORDS).objects.filter(Prefix="runs/").delete()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What a researcher has: a configuration and data beside it."""
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path / "data/text")
    own = {"run": {"directory": "runs/tiny"}, "data": {"path": "data/text"}}
    table = changed(gpt_table(tmp_path, tmp_path, steps=6), **own)
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(table))
    return tmp_path


def say(*words):
    own = words.index("--") if "--" in words else len(words)
    return CliRunner().invoke(main, [*words[:own], *WHERE, *words[own:]])


@pytest.fixture
def delivered(fleet, nodes, monkeypatch):
    """While the console waits, instances work; gives their processes."""
    running = []
    sleep = time.sleep

    def wait(seconds):
        if seconds != command.LOOK_EVERY_S:
            return sleep(seconds)
        if not running:
            running.extend(deliver(fleet, ONE_PROCESS))
        return sleep(0.1)

    reach_by_their_addresses(monkeypatch, nodes)
    monkeypatch.setattr(time, "sleep", wait)
    return running


def run_of(said):
    return re.search(r"^(\S+) is sent to", said.output, re.MULTILINE)[1]


def words_of(run, node):
    key = f"runs/words/ada/train/{run}/{node.id}/state.json"
    return json.loads(boto3.client("s3", REGION).get_object(Bucket=RECORDS, Key=key)["Body"].read())


def test_a_run_of_two_instances_meets_works_and_finishes_as_its_users_account(
    fleet, nodes, folder, delivered
):
    said = say(*SUBMIT, "--nodes", "2")

    assert said.exit_code == 0, said.output
    assert [worker.wait(LONGEST_S) for worker in delivered] == [0, 0]
    run = run_of(said)
    listed, log = say("runs", *ADA), say("logs", "-f", run, *ADA)
    assert re.search(rf"{run} +train +2 +finished +6 ", listed.output), listed.output
    (read,) = json.loads(say("runs", "-o", "json", *ADA).output)["runs"]
    assert (read["run"], read["phase"], read["step"]) == (run, "finished", "6")
    assert say("runs", "-o", "csv", *ADA).output.splitlines()[1].startswith(f"{run},train,2,finished,6,")
    assert log.exit_code == 0, log.output
    assert "rank=0 event=finished" in log.output
    words = [words_of(run, node) for node in nodes]
    assert [word["phase"] for word in words] == ["finished", "finished"]
    assert [word["step"] for word in words] == [6, None]  # one run of both, and not one of each
    found = boto3.client("s3", REGION).list_objects_v2(Bucket=CHECKPOINTS, Prefix="train/ada/runs/tiny/")
    assert any(stored_object["Key"].endswith("manifest.json") for stored_object in found["Contents"])


def test_any_command_runs_with_the_files_it_names_and_counts_as_work_while_it_does(
    fleet, nodes, folder, delivered
):
    (folder / "beside.py").write_text("WORD = 'found beside it'\n")
    (folder / "mine.py").write_text(PROGRAM)

    said = say(*COMMAND, "--", "bash", "-c", "python -m mine --lr 0.1")

    assert said.exit_code == 0, said.output
    (worker,) = delivered
    at_work = [
        process for process in processes() if process.pid == worker.pid and is_watched(process.command)
    ]
    (node,) = [each_node for each_node in nodes if each_node.started()]
    folder_there = node.runs()[-1]
    (folder_there / "go").touch()
    assert worker.wait(LONGEST_S) == 0
    assert at_work
    log = say("logs", "-f", run_of(said), *ADA)
    assert log.exit_code == 0, log.output
    assert "--lr 0.1 found beside it" in log.output
    assert [process.pid for process in processes() if os.getpgid(process.pid) == worker.pid] == []


def test_a_cancelled_run_saves_and_resumes_when_it_is_submitted_again(
    fleet, nodes, folder, delivered, monkeypatch
):
    monkeypatch.setitem(ONE_PROCESS, "GPU_FLEET_SAY_EVERY_S", "0.2")
    longer = ("--run.steps", "100000", "--schedule.name", "constant", "--run.directory", "runs/long")
    said = say(*SUBMIT, *longer)
    run = run_of(said)
    (node,) = [each_node for each_node in nodes if each_node.started()]
    second = say(*SUBMIT, *longer, "--instance", node.id)
    assert f"--instance {node.id} works on {run}" in second.output

    ends = time.monotonic() + LONGEST_S
    while not words_of(run, node).get("step"):
        assert time.monotonic() < ends
        time.sleep(0.1)
    asked = say("cancel", run, *ADA)

    (worker,) = delivered
    assert asked.exit_code == 0, asked.output
    assert worker.wait(LONGEST_S) == 0
    stopped = words_of(run, node)
    assert (stopped["phase"], stopped["detail"]) == ("cancelled", "rank 0: signal SIGTERM")
    assert "there is nothing to cancel" in say("cancel", run, *ADA).output

    delivered.clear()
    again = say(*SUBMIT, *longer[:1], str(stopped["step"] + 3), *longer[2:])

    assert again.exit_code == 0, again.output
    assert delivered[0].wait(LONGEST_S) == 0
    assert f"event=resumed step={stopped['step']} " in say("logs", run_of(again), *ADA).output


def test_a_dry_run_shows_what_would_be_sent_and_what_stays_and_sends_nothing(fleet, nodes, folder):
    (folder / "data/text/.env").write_text("KEY=1")
    before = len(boto3.client("ssm", REGION).list_commands()["Commands"])

    said = say(*SUBMIT, "--dry-run", "--run.steps", "7")

    assert said.exit_code == 0, said.output
    assert "gpu_fleet launch tiny.toml --run.steps 7" in said.output
    assert '"DocumentName": "gpu-fleet-test-run"' in said.output
    assert "data/text/train/tokens.bin" in said.output
    assert len(boto3.client("ssm", REGION).list_commands()["Commands"]) == before
    assert re.match(rf"uploaded to {RECORDS}: \d+ files, [\d,]+ bytes, where no other", said.output)
    assert "; left out: data/text/.env (--include NAME uploads" in said.output.splitlines()[0]
    assert ", data/text/.env" not in said.output


REFUSED = {
    "more than the pool's max": (("--nodes", "3"), "--nodes 3; allowed: up to 2, size.max of train"),
    "an instance of nobody": (
        ("--instance", "i-0"),
        "--instance i-0: no running instance of train that you took",
    ),
    "two where one is asked for": (("--instance", "i-0", "--instance", "i-1"), "as many as --nodes 1"),
    "no account's name": (("--as", "Ada!"), "--as 'Ada!'; allowed: your account of access.people"),
    "data that stay here": (("--data.path", "data/other"), "data.path = 'data/other': instances do not have"),
    "no such key": (("--run.stepps", "7"), "run.stepps"),
    "no such key with =": (("--run.stepps=7",), "run.stepps"),
    "a folder above": (("--run.directory", "../x"), "run.directory = '../x': must be below the folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_one_message_before_anything_is_sent(case, fleet, nodes, folder):
    words, message = REFUSED[case]

    said = say(*SUBMIT, *words)

    assert said.exit_code != 0
    assert message in said.output
    assert "Traceback" not in said.output
    assert not any(node.started() for node in nodes)


def test_an_instance_that_did_not_pass_its_boot_check_is_not_taken(fleet, nodes, folder, monkeypatch):
    monkeypatch.setattr(Desk, "ready", lambda _, ids: dict.fromkeys(ids, "unfit"))

    said = say(*SUBMIT, "--instance", nodes[0].id)

    assert f"--instance {nodes[0].id} has not passed its boot check" in said.output


def test_where_no_instance_is_ready_the_mover_is_asked_and_its_refusal_is_the_answer(
    fleet, folder, monkeypatch
):
    """The request is the one of ``take``; here the mover's word of a spent budget is played."""
    monkeypatch.setattr(command, "choose", lambda *_: ())
    before = len(boto3.client("ssm", REGION).list_commands()["Commands"])
    why, known = "12 USD of the month's budget are left", {}

    def refuse(key, count):
        return Request(key, "train", count, None, datetime.now(UTC), Fate.REFUSED, why)

    monkeypatch.setattr(time, "sleep", lambda _: say_of_requests(known, refuse))

    said = say(*SUBMIT)

    assert said.exit_code == 1
    assert f"refused: {why}" in said.output
    assert len(known) == 1
    assert len(boto3.client("ssm", REGION).list_commands()["Commands"]) == before


def test_what_s3_denies_is_absent_unless_it_is_listed():
    """It answers whoever may list some prefixes alone with AccessDenied for what is not there."""
    s3, place = Objects(absent="AccessDenied"), "train/runs/words/ada/r-1/i-1/"
    bucket = RunBucket(s3, Calls(lambda: datetime.now(UTC)), RECORDS)

    assert bucket.state(place, "ada").phase is Phase.SENT
    s3.list_objects_v2 = lambda **_: {"Contents": [{"Key": f"{place}state.json"}]}
    with pytest.raises(ConfigurationError, match="--as ada: these credentials may not act as this account"):
        bucket.state(place, "ada")


def job(*ids, run="r-1", at=""):
    members = tuple(Member(each, "10.0.0.1") for each in ids)
    return Job(run, "ada", "test", "train", members, ("run",), "", "", "users/ada", at)


def test_a_run_that_still_works_keeps_its_instance_busy_however_many_came_after_it():
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    objects = {}
    for number in range(NEWEST + 5):
        began = now - timedelta(hours=NEWEST + 5 - number)
        made = job(f"i-{number}", run=f"r-{began:%Y%m%d-%H%M%S}", at=began.isoformat())
        is_at_work = number in {1, NEWEST}
        at = now if is_at_work else began
        phase = Phase.RUNNING if is_at_work else Phase.FINISHED
        said = json.dumps({"phase": phase.value, "at": at.isoformat()})
        objects[job_prefix("ada", made.run) + JOB] = (made.content(), began)
        objects[node_prefix(made, f"i-{number}") + STATE] = (said.encode(), at)

    working = busy(RunBucket(Objects(objects), Calls(lambda: now), RECORDS), "ada", now)

    assert working.keys() == {"i-1", f"i-{NEWEST}"}


@pytest.mark.parametrize(("other", "ended"), [(Phase.SENT, 1), (Phase.STARTING, 1), (Phase.REFUSED, 0)])
def test_where_one_instance_refuses_a_run_the_others_do_not_wait_for_it(other, ended):
    asked = []
    states = [NodeState(Phase.REFUSED, detail="no gate"), NodeState(other)]
    bucket = SimpleNamespace(states=lambda _: states, cancel=lambda *words: asked.append(words[:3]))

    assert not command.followed(lambda: datetime.now(UTC), pytest.fail, bucket, job("i-1", "i-2"))

    assert asked == [("ada", "r-1", "users/ada")] * ended


@pytest.fixture
def unsent(monkeypatch):
    """Systems Manager takes no command."""

    def refuse(*_):
        raise CloudError("send_command: ThrottlingException: Rate exceeded", "ThrottlingException")

    monkeypatch.setattr(aws, "send", refuse)


def test_a_run_that_the_cloud_does_not_send_is_refused_and_keeps_no_instance_busy(
    fleet, nodes, folder, unsent
):
    said = say(*SUBMIT, "--nodes", "2")
    again = say(*SUBMIT, "--nodes", "2", "--dry-run")
    listed = say("runs", *ADA)

    assert said.exit_code == 1
    assert "ThrottlingException" in said.output
    assert "would be asked for" not in again.output
    assert re.search(r"tiny-\S+ +train +2 +refused ", listed.output, re.MULTILINE)
    assert re.search(r"^tiny-\S+: refused: not sent: send_command: Thr", listed.output, re.MULTILINE)


@pytest.fixture
def frozen(fleet):
    """The team of the user who took the instances has spent its budget."""
    s3, month = boto3.client("s3", REGION), f"{datetime.now(UTC):%Y-%m}"
    spent = {"spent": "20.52", "monthly": "20", "passed": 100, "frozen": True, "lifted": False}
    user = {"name": "moto", "uid": 5001, "keys": [], "team": "vision", "team_gid": 30001, "admin": False}
    before = s3.get_object(Bucket=RECORDS, Key="reaper/policy.json")["Body"].read()
    policy = json.loads(before)
    policy["budget"]["teams"] = {"vision": {"monthly": "20", "on_exceeded": "freeze"}}
    budgets = {"schema_version": 1, "month": month, "days": {}, "unread": [], "teams": {"vision": spent}}
    accounts = {"schema_version": 1, "users": [user]}
    for name, content in {"policy": policy, "team-budgets": budgets, "accounts": accounts}.items():
        s3.put_object(Bucket=RECORDS, Key=f"reaper/{name}.json", Body=json.dumps(content))
    yield
    s3.put_object(Bucket=RECORDS, Key="reaper/policy.json", Body=before)
    for name in ("team-budgets", "accounts"):
        s3.delete_object(Bucket=RECORDS, Key=f"reaper/{name}.json")


def test_a_frozen_team_submits_to_the_instances_that_it_holds(fleet, nodes, folder, frozen, unsent):
    """They are paid for with or without a run; what the mover refuses is `take` (test_through_the_door)."""
    said = say(*SUBMIT, "--nodes", "2")

    listed = say("runs", *ADA).output
    assert re.search(r"tiny-\S+ +train +2 +refused ", listed), said.output
    assert "not sent: send_command: ThrottlingException" in listed


def test_a_run_that_cannot_be_marked_as_refused_either_says_what_counts_as_busy(unsent):
    def refuse(*_):
        raise CloudError("put_object: SlowDown: later", "SlowDown")

    place = Place("test", "aws", REGION)
    desk = SimpleNamespace(place=place, cloud=SimpleNamespace(calls=None), now=lambda: datetime.now(UTC))
    with pytest.raises(CloudError, match=r"Rate exceeded\nr-1 .*SlowDown: later\): for 10 minutes i-1 count"):
        command.sent(desk, SimpleNamespace(refuse=refuse), job("i-1"))


AT_THE_INSTANCE = {
    "no account": (
        lambda node: node.accounts("bob"),
        "there is no account 'ada' here: add it to access.people",
    ),
    "who left": (lambda node: node.accounts("ada", locked="ada"), "account 'ada' is locked"),
    "an account of the system": (
        lambda node: node.accounts("ada", groups=False),
        "there is no account 'ada'",
    ),
    "another's run": (
        lambda node: (node.root / "active").write_text("gpu-run@bob.service loaded active running\n"),
        "another run works here: gpu-run@bob.service",
    ),
    "a failed gate": (
        lambda node: (node.root / "run/gpu-fleet/ready").unlink(),
        "the instance has not passed its boot check",
    ),
    "an end under way": (
        lambda node: (node.root / "run/gpu-fleet/closed").touch(),
        "the instance is being terminated",
    ),
}


@pytest.mark.parametrize("case", AT_THE_INSTANCE)
def test_what_an_instance_refuses_comes_back_as_one_message(case, fleet, nodes, folder, delivered):
    harm, message = AT_THE_INSTANCE[case]
    for node in nodes:
        harm(node)

    said = say(*SUBMIT)

    assert said.exit_code == 1
    assert f"refused: {message}" in said.output
    assert not any(node.started() for node in nodes)
    assert {words_of(run_of(said), node)["phase"] for node in nodes if node.id in said.output} == {"refused"}
