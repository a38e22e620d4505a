"""`gpu-fleet train run -- COMMAND`: a program without gpu-fleet in it, its folder, and a notice."""

import json
import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, cast
from unittest.mock import Mock

import boto3
import pytest
import torch
from click.testing import CliRunner, Result

from gpu_fleet.checkpoint import lease
from gpu_fleet.checkpoint.lease import Holder, RunLease
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.cli import main
from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, StoreError
from gpu_fleet.integrations import command as any_command
from gpu_fleet.integrations.command import status_of
from gpu_fleet.integrations.folder_copy.sync import FolderSync
from gpu_fleet.preemption.interrupt import Reason
from gpu_fleet.storage.object_store import ObjectStore
from tests.ran import ran
from tests.training.programs import ROOT, Program, started
from tests.training.ranks import run_ranks

PROGRAM = ROOT / "training/examples/own_program.py"
COUNTER = """
import pathlib, signal, sys, time
file, goal = pathlib.Path(sys.argv[1]) / "deep/count", int(sys.argv[2])
file.parent.mkdir(exist_ok=True)
count, told = int(file.read_text()) if file.exists() else 0, []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
print(f"begins at {count}", file=sys.stderr, flush=True)
while count < goal and not told:
    count += 1
    time.sleep(0.02)
file.write_text(str(count))
"""


def test_a_program_below_a_shell_hears_the_notice_and_is_waited_for(bucket, no_fleet, tmp_path):
    """The shell ends by the signal at once; the files that the program saves later are in the bucket."""
    here, counter = tmp_path / "here", tmp_path / "counter.py"
    counter.write_text(COUNTER)
    flags = ("--checkpoints", here, "--uri", f"s3://{bucket}/count", "--signal", "USR1")
    shell = ("sh", "-c", f"python3 {counter} {here} 1000000; true")

    with started("gpu_fleet", "run", *flags, "--", *shell) as first:
        first.wait_for("begins at 0")
        (no_fleet / "stop").write_text("spot\n")
        status = first.finish()
    FolderSync(tmp_path / "there", ObjectStore(f"s3://{bucket}/count")).down()

    assert status == 85, first.said
    assert int((tmp_path / "there/deep/count").read_text()) > 0


def test_what_a_command_leaves_behind_is_saved_at_once_and_at_its_end(bucket, no_fleet, tmp_path):
    """A daemon ignores the notice: the present files are uploaded during the wait for it."""
    here, place = tmp_path / "here", f"s3://{bucket}/left"
    here.mkdir()
    (here / "early").write_text("1")
    daemon = f'trap "" TERM; echo begun >&2; until [ -e {tmp_path}/release ]; do sleep 0.02; done'
    script = f"sh -c '{daemon}; echo 2 > {here}/late' & wait"
    flags = ("--checkpoints", here, "--uri", place, "--every-s", "3600")

    with started("gpu_fleet", "run", *flags, "--", "sh", "-c", script) as first:
        first.wait_for("begun")
        (no_fleet / "stop").write_text("spot\n")
        store = CheckpointStore(place)
        while not store.sizes("contents"):
            assert first.process.poll() is None, first.said
            threading.Event().wait(0.05)  # polls another process; its clock is not ours
        (tmp_path / "release").touch()
        status = first.finish()
    FolderSync(tmp_path / "there", ObjectStore(place)).down()

    assert status == 85, first.said
    assert {file.name: file.read_text() for file in (tmp_path / "there").glob("[a-z]*")} == {
        "early": "1",
        "late": "2\n",
    }


# What is left behind ends only once it is this process's, so that no shell takes leave of it first.
REAPED = """
import ctypes, os, pathlib, subprocess
from gpu_fleet.core import processes
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
ours = subprocess.Popen(["sh", "-c", "(sleep 600 & echo $!); exec cat"], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, start_new_session=True)
left = int(ours.stdout.readline())
waited = subprocess.Popen(["sh", "-c", "exit 7"])
says = lambda number, line: line in pathlib.Path(f"/proc/{number}/status").read_text()
while not says(left, f"PPid:\t{os.getpid()}\\n"):
    pass
os.kill(left, 9)
while not (says(left, "State:\tZ") and says(waited.pid, "State:\tZ")):
    pass
processes.reap(ours.pid)
print(pathlib.Path(f"/proc/{left}").exists(), waited.wait())
ours.communicate()
"""


def test_zombies_are_reaped_but_those_that_are_waited_for():
    """The first process of a container gets the zombies of all programs that ended."""
    done = ran([sys.executable, "-c", REAPED], check=True, timeout=60)

    assert done.stdout == "False 7\n"


def program(folder: Path, bucket: str, steps: int) -> AbstractContextManager[Program]:
    """Start the example on two ranks, for so many steps."""
    flags = ("--checkpoints", folder, "--uri", f"s3://{bucket}/program", "--every-s", "3600")
    words = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return started("gpu_fleet", "run", *flags, "--", *words, PROGRAM, folder, steps)


def undisturbed_rank(folder: Path, steps: int) -> None:
    """Run the example on this rank, without `run`."""
    sys.argv = [str(PROGRAM), str(folder), str(steps)]
    runpy.run_path(str(PROGRAM), run_name="__main__")


def test_a_program_of_two_ranks_that_is_stopped_ends_with_the_same_bits(bucket, no_fleet, forked, tmp_path):
    """It is stopped by a notice on one instance, and resumes on another from the bucket."""
    with program(tmp_path / "here", bucket, 10**6) as first:
        first.wait_for("begins at 0")
        (no_fleet / "stop").write_text("spot\n")
        assert first.finish() == 85, first.said
    (no_fleet / "stop").unlink()
    reached = torch.load(tmp_path / "here/state.pt")[0]
    with program(tmp_path / "there", bucket, reached + 5) as second:
        second.wait_for(f"begins at {reached}")
        assert second.finish() == 0, second.said
    (tmp_path / "straight").mkdir()
    run_ranks(undisturbed_rank, 2, tmp_path / "straight", reached + 5)

    resumed, straight = (torch.load(tmp_path / name / "state.pt") for name in ("there", "straight"))
    assert resumed[0] == straight[0] == reached + 5
    assert all(torch.equal(resumed[1][name], value) for name, value in straight[1].items())


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        *((0, Reason.NONE, 0), (1, Reason.NONE, 1), (-9, Reason.NONE, 137), (85, Reason.NONE, 85)),
        *((0, Reason.SPOT_NOTICE, 85), (1, Reason.SPOT_NOTICE, 85), (-15, Reason.SIGTERM, 85)),
        *((2, Reason.SPOT_NOTICE, 2), (65, Reason.SPOT_NOTICE, 65)),
    ],
)
def test_the_status_says_whether_to_run_it_again(status, reason, expected):
    assert status_of(status, reason, None) == expected


def test_a_command_that_has_finished_has_not_failed(tmp_path):
    """The files of another command, started in the same folder meanwhile, do not matter."""
    word = outcome.NewWord(tmp_path)
    outcome.write_failure(tmp_path, "data.path: is not a folder", 0)

    assert status_of(0, Reason.NONE, word) == 0
    assert status_of(1, Reason.NONE, word) == 65
    assert status_of(1, Reason.NONE, outcome.NewWord(tmp_path)) == 1  # of an earlier run


@pytest.fixture
def place(bucket) -> str:
    return f"s3://{bucket}/mine"


def invoked(folder: Path, place: str, *command: str, every_s: str = "3600") -> Result:
    """Invoke `run` on a folder, with a bucket or without, in this process."""
    uri = ("--uri", place) if place else ()
    flags = ("--checkpoints", str(folder), *uri, "--every-s", every_s)
    return CliRunner().invoke(main, ["run", *flags, "--", *command])


def test_of_two_that_keep_one_folder_the_second_does_not_begin(place, tmp_path, monkeypatch):
    """It is refused before COMMAND starts, and once the first has ended it may begin."""
    monkeypatch.setattr(lease, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(lease, "WAIT_S", 0.5)
    begun, elsewhere = tmp_path / "begun", Holder("another", "boot", 1)
    first = RunLease(CheckpointStore(f"{place}/{any_command.LEASED}"), elsewhere, renew_every_s=0.05)
    first.acquire()

    refused = invoked(tmp_path / "here", place, "touch", str(begun))
    began = begun.exists()
    first.release()
    after = invoked(tmp_path / "here", place, "touch", str(begun))

    assert (refused.exit_code, began, after.exit_code) == (75, False, 0)
    assert f"{place}/folder is in use by process 1 on another" in refused.output
    assert begun.exists()


def test_who_has_lost_the_folder_meanwhile_leaves_it_to_the_successor_and_is_to_be_run_again(place, tmp_path):
    """An instance that was paused for longer than a lease lasts does this."""
    here = tmp_path / "here"
    store = CheckpointStore(f"{place}/{any_command.LEASED}")
    stood_still = f"touch {tmp_path}/begun; until [ -e {tmp_path}/goes-on ]; do sleep 0.02; done"

    def succeed() -> None:
        while not (tmp_path / "begun").exists():
            over.wait(0.02)
        store.claim_lease(2, json.dumps(vars(Holder("another", "boot", 1))))
        (tmp_path / "goes-on").touch()

    over = threading.Event()
    successor = threading.Thread(target=succeed, daemon=True)
    successor.start()

    ended = invoked(here, place, "sh", "-c", f"echo 1 > {here}/step; {stood_still}")
    successor.join()

    assert ended.exit_code == 75
    assert f"{place}/folder was taken over by process 1 on another" in ended.output
    assert ObjectStore(place).get("folder.json") is None


def noted(folder: Path, process: int) -> None:
    """Write down that this process is the command of a run on the folder."""
    (folder / ".gpu-fleet").mkdir(parents=True)
    (folder / ".gpu-fleet/command.json").write_text(json.dumps(vars(Holder.of(process))))


def test_no_second_command_works_on_the_folder_of_a_killed_run(place, no_fleet, tmp_path):
    """The command outlives a `run` that is killed, say in an upload."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    noted(tmp_path / "here", child.pid)

    refused = invoked(tmp_path / "here", place, "touch", str(tmp_path / "begun"))
    child.kill()
    child.wait()
    after = invoked(tmp_path / "here", place, "true")

    assert (refused.exit_code, after.exit_code) == (75, 0)
    assert f"process {child.pid} on" in refused.output
    assert not (tmp_path / "begun").exists()


def test_a_run_in_the_command_of_another_on_its_folder_is_refused_without_a_wait(
    place, no_fleet, tmp_path, monkeypatch
):
    """It used to wait for the lease that the other one holds, and to ask for the end of its own parent."""
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())  # as in a command, which leads its session
    noted(tmp_path, os.getpid())

    refused = invoked(tmp_path, place, "true")

    assert refused.exit_code == 65
    assert f"this `run` is process {os.getpid()} of process {os.getpid()} on" in refused.output
    assert CheckpointStore(f"{place}/{any_command.LEASED}").newest_lease() is None


def test_a_command_whose_process_cannot_be_noted_is_not_left_alone(no_fleet, tmp_path):
    """The disk may be full: `run` ended, and its command went on without it."""
    (tmp_path / ".gpu-fleet/command.json").mkdir(parents=True)  # a file cannot be written there

    assert invoked(tmp_path, "", "sh", "-c", "exit 7").exit_code == 7


def test_an_upload_that_fails_in_a_way_nobody_expects_is_no_success(place, tmp_path, monkeypatch):
    monkeypatch.setattr(FolderSync, "up", Mock(side_effect=ValueError("odd")))

    done = invoked(tmp_path, place, "true")

    assert done.exit_code == 75, done.output
    assert f"error: {place}: {tmp_path} cannot be uploaded: ValueError: odd" in done.output


@pytest.mark.parametrize(("refusals", "status"), [(3, 0), (10**6, 75)])
def test_credentials_that_expire_under_a_command_are_waited_for(
    *, refusals, status, place, tmp_path, monkeypatch
):
    left, put = iter(range(refusals)), ObjectStore.put

    def refuse(store: ObjectStore, *asked: Any) -> None:
        if next(left, None) is not None:
            raise StoreError("ExpiredToken", refused=True)
        put(store, *asked)

    monkeypatch.setattr(ObjectStore, "put", refuse)
    monkeypatch.setattr("gpu_fleet.storage.object_store.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(any_command, "PATIENCE_S", 0.05 if status else 60.0)

    done = invoked(tmp_path / "here", place, "sh", "-c", f"echo 1 > {tmp_path}/here/step")

    assert (done.exit_code, done.output.count("error: ")) == (status, int(status > 0)), done.output
    assert (ObjectStore(place).get("folder.json") is None) == bool(status)


@pytest.mark.parametrize("begins", [True, False], ids=["in the midst", "at the end"])
def test_an_upload_that_hangs_is_given_up_and_reported(*, begins, place, tmp_path, monkeypatch):
    """Either the last upload hangs, or an earlier one, for which the last one would wait."""
    hung, release = threading.Event(), threading.Event()

    def hang(_store: ObjectStore, name: str, _content: Any, _moved: Any = None) -> None:
        monkeypatch.setattr(any_command, "SILENT_S", 0.3)  # what came before may take its time
        hung.set()
        if begins:
            (tmp_path / "here/hung").touch()
        release.wait(60)
        raise StoreError(name)

    def leave(status: int) -> NoReturn:
        sys.exit(status)

    monkeypatch.setattr(ObjectStore, "put", hang)
    monkeypatch.setattr(outcome, "leave_at_once", leave)
    monkeypatch.setattr(any_command, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr("gpu_fleet.integrations.folder_copy.files.QUIET_S", 0.0)
    folder = tmp_path / "here"
    waits = f"until [ -e {folder}/hung ]; do sleep 0.02; done" if begins else "true"
    script = f"echo 1 > {folder}/step; {waits}"

    done = invoked(folder, place, "sh", "-c", script, every_s="0.1" if begins else "3600")
    release.set()
    for thread in threading.enumerate():
        if thread.name == "folder-last":
            thread.join(60)

    assert hung.is_set()
    assert done.exit_code == 75, done.output
    said = rf"error: {place} has not answered for \d+ s: changes in {folder} since its last sync"
    assert re.search(said, done.output), done.output
    assert (folder / "step").read_text() == "1\n"


def test_a_store_that_moves_something_is_not_silent(tmp_path):
    now = [0.0]
    silences: list[float] = []

    class Slow:
        uri = "s3://bucket/mine"

        def get(self, name: str) -> None:
            now[0] += 20
            silences.append(sync.still_s())

        def sizes(self, _folder: str) -> dict[str, int]:
            return {}

        def put(self, name: str, content: Any, moved: Callable[[int], None] = lambda _: None) -> None:
            for _ in range(4):
                now[0] += 20
                silences.append(sync.still_s())
                moved(1)

    (tmp_path / "x").write_text("one")
    sync = FolderSync(tmp_path, cast("ObjectStore", Slow()), clock=lambda: now[0])

    sync.up(last=True)

    assert max(silences[:5]) == 20
    assert sync.still_s() == 0


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--checkpoint", "runs/mine", "--", "true"], 2, "error: no such option: --checkpoint"),
        (["--checkpoints", "", "--", "true"], 2, "Invalid value for '--checkpoints': is empty"),
        (
            ["--checkpoints", "/proc/mine", "--", "true"],
            75,
            "error: --checkpoints = '/proc/mine': cannot be written: No such file or directory",
        ),
        (["--", "no-such-program"], 65, "error: no-such-program: cannot be run: No such file or directory\n"),
    ],
)
def test_a_wrong_word_before_the_program_is_reported(words, status, message):
    done = CliRunner().invoke(main, ["run", *words])

    assert (done.exit_code, message in done.output) == (status, True), done.output


@pytest.fixture
def store(place) -> CheckpointStore:
    return CheckpointStore(place)


def test_a_folder_comes_back_as_it_was(store, tmp_path):
    (tmp_path / "here/a").mkdir(parents=True)
    (tmp_path / "here/a/x").write_text("one")
    (tmp_path / "here/a/x").chmod(0o750)
    (tmp_path / "here/y").write_text("two")
    sync = FolderSync(tmp_path / "here", store)
    assert sync.up(last=True)
    assert not sync.up(last=True)
    (tmp_path / "here/y").unlink()
    (tmp_path / "here/a/x").write_text("three")
    assert sync.up(last=True)

    brought = FolderSync(tmp_path / "there", store).down()

    assert brought == 1
    assert (tmp_path / "there/a/x").read_text() == "three"
    assert (tmp_path / "there/a/x").stat().st_mode & 0o777 == 0o750
    assert len(store.sizes("contents")) == 1


def test_a_changed_object_is_not_taken_for_a_checkpoint(store, bucket, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/x").write_text("one")
    FolderSync(tmp_path / "here", store).up(last=True)
    (name,) = store.sizes("contents")
    boto3.client("s3").put_object(Bucket=bucket, Key=f"mine/contents/{name}", Body=b"other")

    with pytest.raises(CheckpointError, match=r"x is not what folder\.json says"):
        FolderSync(tmp_path / "there", store).down()
    assert not (tmp_path / "there/x").exists()
