"""``gpu-fleet runs``, ``logs`` and ``cancel`` on a stack with a queue: from a laptop, and on an instance."""

import io
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from unittest.mock import Mock

import pytest
from rich.console import Console

from gpu_fleet_image.console.runs import follow, queue_view
from gpu_fleet_image.console.runs.bucket import RunBucket
from gpu_fleet_image.console.runs.queue_view import QueueViewer
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.errors import ConfigurationError
from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.core.runs import NodeState, Phase
from gpu_fleet_image.slurm import job_records
from gpu_fleet_image.slurm.answers import Job
from tests.image.cloud_of_groups import policy
from tests.image.console.runs.objects import Objects

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
NAME = "digits-20261123-100000-3f9a"
JOB = Job("7", NAME, "ada", "train", 2, "RUNNING", "", "i-[1-2]", 1, "/home/ada/d-7.log", "gpu-fleet")
PLACE = f"runs/words/ada/train/{NAME}/queue/"
HOSTILE = "\x1b[31mred\x1b[0m\n10%\r20%\r\n\x1b]52;c;cm0=\x07\x1b[2J世\n"  # the second writes the clipboard
STATE = {"phase": "running", "at": NOW.isoformat(), "step": 42, "loss": 0.25, "ettr": 0.9}


class Stack:
    """What a queue's controller and a run said, and who looks."""

    def __init__(self, *jobs: Job, is_instance: bool = False) -> None:
        self.s3, self.jobs = Objects(), jobs
        bucket = RunBucket(self.s3, Calls(lambda: NOW), "data")
        self.viewer = QueueViewer(policy(queue_gpus=8), bucket, "ada", "users/ada", is_instance, self.said)

    def said(self) -> job_records.JobRecords:
        entries = tuple(job_records.JobRecord(job, NOW.isoformat(), 7200.0, 3600.0) for job in self.jobs)
        return job_records.JobRecords(datetime.now(UTC), entries)

    def entry(self) -> job_records.JobRecord:
        return self.said().entries[0]

    def says(self, name: str, content: bytes) -> None:
        self.s3.put_object(Key=PLACE + name, Body=content)


def test_a_run_is_a_row_with_what_slurm_and_the_run_itself_say_and_those_of_others_are_not_listed(capsys):
    stack = Stack(JOB, replace(JOB, id="8", account="bob"))
    stack.says("state.json", json.dumps(STATE).encode())

    queue_view.show_runs(stack.viewer)

    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[:6] == ["run", "job", "pool", "nodes", "state", "on"]
    for word in (NAME, "7", "train", "running (restarts 1)", "i-[1-2]", "42", "0.25", "90%", "60 min"):
        assert word in row
    queue_view.show_runs(Stack(replace(JOB, account="bob")).viewer)
    assert "account ada has no jobs in the queue" in capsys.readouterr().out


def test_no_long_row_cuts_the_figures_of_another(capsys):
    """Instances that failed, and many that work: as long a word as there can be."""
    failed = ",".join(f"i-{number:017x}" for number in range(3))
    waits = replace(
        JOB,
        id="8",
        name="digits-20261123-100001-3f9a",
        state="PENDING",
        comment=f"gpu-fleet:failed-on={failed}",
    )
    wide = replace(JOB, id="9", name="digits-20261123-100002-3f9a", on=failed)
    stack = Stack(JOB, waits, wide)
    stack.says("state.json", json.dumps(STATE | {"step": 1234567, "loss": 0.01234}).encode())

    queue_view.show_runs(stack.viewer)

    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if f" {NAME} " in line)
    assert row.split()[-6:-2] == ["1234567", "0.01234", "90%", "60"]
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_what_it_cost_counts_each_instance_for_the_time_it_worked(monkeypatch):
    """Two instance hours of a run that lasted one."""
    monkeypatch.setattr(queue_view.mover, "prices", lambda *_: {"train": Decimal("1.5")})
    stack = Stack(JOB)

    *_, lasted, cost = queue_view.cells(stack.entry(), NodeState(Phase.SENT), stack.viewer.policy)

    assert (lasted, cost) == ("60 min", "3.00 USD")


def test_a_word_of_the_controllers_that_is_old_is_said_to_be_and_one_that_never_came_is_named(capsys):
    stack = Stack(JOB)
    old = job_records.JobRecords(datetime.now(UTC) - timedelta(hours=2), (stack.entry(),))

    queue_view.show_runs(replace(stack.viewer, read=lambda: old))

    assert "wrote this 2.0 h ago" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="has not written its jobs yet"):
        queue_view.show_runs(replace(stack.viewer, read=lambda: None))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": "PENDING", "reason": "Resources", "restarts": 0}, "pending (Resources)"),
        (
            {"state": "PENDING", "reason": "AssocGrpGRES", "restarts": 0},
            "pending (its team's GPUs are in use: teams.max_gpus)",
        ),
        ({"comment": "gpu-fleet:failed-on=i-1,-"}, "running (restarts 1; failed on i-1)"),
        ({"state": "FAILED", "reason": "NonZeroExitCode", "restarts": 0}, "failed (NonZeroExitCode)"),
        ({"restarts": 0}, "running"),
    ],
)
def test_a_state_says_why_and_where_a_run_failed(changes, says):
    assert queue_view.described(Stack(replace(JOB, **changes)).entry()) == says


def test_a_laptop_reads_the_log_that_the_run_sent(capsys):
    stack = Stack(replace(JOB, state="COMPLETED"))
    stack.says("log/000000000000004.txt", b"two\n")
    stack.says("log/000000000000000.txt", b"one\n")

    assert queue_view.show_log(stack.viewer, NAME, follow=True)

    said = capsys.readouterr()
    assert said.out == "one\ntwo\n"
    assert said.err == f"{NAME}: completed (restarts 1)\n"


def test_an_instance_reads_the_file_and_follows_it_to_the_end(tmp_path, capsys, monkeypatch):
    log = tmp_path / "d.log"
    log.write_text("one\n")
    stack = Stack(replace(JOB, log=str(log)), is_instance=True)

    def meanwhile(_seconds: float) -> None:
        log.write_text("one\ntwo\n")
        stack.jobs = (replace(JOB, log=str(log), state="FAILED"),)

    monkeypatch.setattr(queue_view.time, "sleep", meanwhile)

    assert not queue_view.show_log(stack.viewer, "7", follow=True)
    assert capsys.readouterr().out == "one\ntwo\n"


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [
        (True, "red\n10%\n20%\n\\x1b]52;c;cm0=\\x07\\x1b[2J世\n"),
        (False, "red\n10%\r20%\r\n\x1b]52;c;cm0=\x07世\n"),
    ],
    ids=["terminal", "pipe"],
)
def test_a_terminal_shows_what_it_would_obey_and_a_pipe_gets_the_log(capsys, monkeypatch, is_terminal, shown):
    stack, log = Stack(replace(JOB, state="COMPLETED")), HOSTILE.encode()
    stack.says("log/000000000000000.txt", log[:-3])  # within a letter
    stack.says("log/000000000000004.txt", log[-3:])
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)

    queue_view.show_log(stack.viewer, NAME, follow=False)

    assert capsys.readouterr().out == shown


def test_a_job_that_waits_has_no_log_yet(tmp_path, capsys):
    stack = Stack(replace(JOB, state="PENDING", log=str(tmp_path / "none")), is_instance=True)

    assert queue_view.show_log(stack.viewer, NAME, follow=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("pipe", "no regular file"),
        ("/dev/zero", "no regular file"),
        (".", "Is a directory"),
        ("", "--output"),
    ],
)
def test_an_output_that_never_opens_or_never_ends_is_refused(tmp_path, monkeypatch, log, why):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    stack = Stack(replace(JOB, log=log), is_instance=True)

    with pytest.raises(ConfigurationError, match=why):
        queue_view.show_log(stack.viewer, NAME, follow=False)


def test_a_run_is_found_by_its_name_or_its_number_which_the_name_of_another_does_not_take():
    viewer = Stack(JOB, replace(JOB, id="8", name="7"), is_instance=True).viewer

    assert [viewer.entry(said).job.id for said in ("7", NAME, "8")] == ["7", "7", "8"]


def cancelled(*jobs: Job, said: str = NAME) -> list[str]:
    """What Slurm is asked where an account of an instance cancels."""
    asked: list[str] = []
    queue_view.cancel_run(
        Stack(*jobs, is_instance=True).viewer, said, lambda words: asked.append(" ".join(words)) or ""
    )
    return asked


@pytest.mark.parametrize(
    ("job", "command"),
    [
        (JOB, "scancel --batch --signal=USR1 7"),
        (replace(JOB, state="PENDING"), "scancel 7"),
        (replace(JOB, comment=""), "scancel 7"),
    ],
)
def test_on_an_instance_slurm_itself_cancels_and_a_run_saves_first(job, command):
    assert cancelled(job) == [command]


TASKS = [
    replace(JOB, id=number, name="sweep", comment="", task=task)
    for number, task in [("51", "50_0"), ("50", "50_1")]
]


def test_one_task_of_an_array_is_cancelled_by_its_number_and_all_by_the_arrays_also_once_that_task_ended():
    first, last = TASKS

    assert {said: cancelled(*TASKS, said=said) for said in ("50_1", "50_0", "51", "50")} == {
        said: [f"scancel {said}"] for said in ("50_1", "50_0", "51", "50")
    }
    assert cancelled(replace(last, state="COMPLETED"), first, said="50") == ["scancel 50"]


@pytest.mark.parametrize("act", [queue_view.show_runs, lambda v: queue_view.cancel_run(v, NAME, Mock())])
def test_the_controllers_record_is_read_once_for_a_command(act):
    stack = Stack(JOB, is_instance=True)
    read = Mock(side_effect=stack.said)

    act(replace(stack.viewer, read=read))

    assert read.call_count == 1


@pytest.mark.parametrize(
    ("state", "says"), [("RUNNING", "is asked to save and stop"), ("PENDING", "will stop when it starts")]
)
def test_a_laptop_leaves_word_where_the_run_looks(state, says):
    stack = Stack(replace(JOB, state=state))

    assert says in queue_view.cancel_run(stack.viewer, NAME)
    assert json.loads(stack.s3.objects[f"runs/jobs/ada/{NAME}/cancel"][0])["by"] == "users/ada"


def refuses(_words):
    raise SlurmError("scancel: error: Access/permission denied")


def show(viewer: QueueViewer, run: str = NAME) -> None:
    queue_view.show_log(viewer, run, follow=False)


FOREIGN = replace(JOB, comment="")
NAMELESS = Stack(JOB, replace(JOB, id="8", name=""), is_instance=True)
OVER = replace(TASKS[0], id="9", task="", state="COMPLETED")
NOBODYS = f"no job of account ada.*nearest: {NAME}"


@pytest.mark.parametrize(
    ("act", "stack", "words", "why"),
    [
        (show, Stack(JOB), [NAME.replace("digits", "digit")], NOBODYS),
        (show, Stack(FOREIGN), [NAME], "on an instance of the stack"),
        (queue_view.cancel_run, Stack(FOREIGN), [NAME], "on an instance of the stack"),
        (queue_view.cancel_run, Stack(replace(JOB, state="TIMEOUT")), [NAME], "there is nothing to cancel"),
        # gpu-fleet cancel "$RUN" where nobody set RUN
        (queue_view.cancel_run, NAMELESS, ["", Mock()], "RUN '': no job of account ada"),
        (show, NAMELESS, [""], "RUN '': no job of account ada"),
        (
            queue_view.cancel_run,
            Stack(OVER, *TASKS, is_instance=True),
            ["sweep", Mock()],
            r"'sweep': 2 jobs have this name; .* 50_1, 50_0$",
        ),
        (queue_view.cancel_run, Stack(JOB, is_instance=True), [NAME, refuses], "permission denied"),
    ],
)
def test_a_run_that_is_none_or_several_or_not_to_be_cancelled_here_is_one_message(act, stack, words, why):
    with pytest.raises(ConfigurationError, match=why):
        act(stack.viewer, *words)


@pytest.mark.parametrize("headings", [follow.HEADINGS, queue_view.HEADINGS])
def test_eighty_columns_show_each_run_in_a_row_of_a_table_with_its_whole_name(headings):
    row = {"run": NAME, "job": "1042", "pool": "train", "nodes": "16", "step": "130000", "loss": "2.31"}
    row |= dict.fromkeys(("phase", "state"), "running, no report from i-0123456789abcdef0")
    row |= {"on": "i-[1-16]", "ETTR": "97%", "time": "3 d 20 h", "at most": "104,204.50 USD"}

    Console(width=80, file=(file := io.StringIO())).print(
        queue_view.table(headings, [tuple(row[heading] for heading in headings)])
    )

    heads, first, *others = file.getvalue().splitlines()
    assert heads.split()[0] == "run"
    assert {NAME, "130000", "104,204.50"} <= set(first.split())
    assert "ETTR" in " ".join(others)
