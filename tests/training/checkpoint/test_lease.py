"""The lease of a run in its bucket: a second process is refused, a dead holder followed, a live one never."""

import errno
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from torch import nn
from torch._C._distributed_c10d import HashStore

from gpu_fleet import Run
from gpu_fleet.checkpoint import lease as leases
from gpu_fleet.checkpoint import local, names
from gpu_fleet.checkpoint.lease import Holder, RunClaim, RunLease
from gpu_fleet.checkpoint.saver import Saver
from gpu_fleet.checkpoint.store import CheckpointStore, LeaseKey
from gpu_fleet.checkpoint.uploader import Team
from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, RunLeaseError
from gpu_fleet.trainer import loop
from tests.ran import ran
from tests.training.commands import tried_alone
from tests.training.examples import changed, gpt_table

URI = "s3://checkpoints/alice/run"
OSS_URI = "oss://checkpoints/alice/run"
ELSEWHERE, HERE = Holder("elsewhere", "boot", 1), Holder("here", "boot", 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> Iterator[None]:
    """Poll without pauses, and let a live holder stand still for seconds, as on a busy computer.

    At the end of a test, leases that are still held are renewed no more.
    """
    held, acquire = list[RunLease](), RunLease.acquire

    def acquired(lease: RunLease, within_s: float = math.inf) -> bool:
        held.append(lease)
        return acquire(lease, within_s)

    monkeypatch.setattr(RunLease, "acquire", acquired)
    monkeypatch.setattr(leases, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(leases, "WAIT_S", 0.5)
    monkeypatch.setattr("gpu_fleet.checkpoint.store.SETTLED_AFTER_S", 0.05)
    yield
    for lease in held:
        lease._closed.set()


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Take a lease over after two seconds; object stores report times in whole seconds."""
    monkeypatch.setattr(leases, "TAKEN_OVER_AFTER_S", 2.0)
    monkeypatch.setattr(leases, "WAIT_S", 150.0)


@pytest.fixture
def store(bucket, request) -> CheckpointStore:
    uri = getattr(request, "param", URI)
    return CheckpointStore(uri, os.environ["AWS_ENDPOINT_URL"])


@pytest.fixture
def living(store) -> Iterator[RunLease]:
    """Yield a lease that another instance holds and renews."""
    held = RunLease(store, ELSEWHERE, renew_every_s=0.1)
    held.acquire()
    yield held
    held.release()


@pytest.fixture
def still(store) -> RunLease:
    """Return a lease that another instance holds, and renews no more."""
    held = RunLease(store, ELSEWHERE, renew_every_s=1000)
    held.acquire()
    return held


both_clouds = pytest.mark.parametrize("store", [URI, OSS_URI], ids=["S3", "OSS"], indirect=True)


@both_clouds
def test_a_second_process_is_refused_while_the_first_lives_and_takes_its_run_once_it_finished(store, living):
    with pytest.raises(RunLeaseError, match=r"in use by process 1 on elsewhere.*taken over after 90 s") as no:
        RunLease(store, HERE).acquire()
    living.check()
    living.release()

    RunLease(store, HERE, sleep=_never).acquire()

    assert no.value.exit_status == 75


@both_clouds
def test_a_holder_that_is_about_to_end_is_waited_for(store, living, monkeypatch):
    """After a spot notice an instance has two minutes, and its replacement may already run."""
    monkeypatch.setattr(leases, "WAIT_S", 150.0)
    looks = iter([lambda: None, living.release])
    follower = RunLease(store, HERE, sleep=lambda _: next(looks)())

    follower.acquire()

    assert follower.number == living.number + 1
    assert next(looks, None) is None


@pytest.mark.parametrize(("run_id", "status"), [("", 85), ("this run", 0)], ids=["alone", "torchrun"])
def test_a_stop_file_ends_the_wait_of_train_as_a_stop_before_the_first_step(
    *, run_id, status, store, living, tokens, tmp_path, no_fleet, monkeypatch
):
    """torchrun restarts ranks that end with another status than 0 at once; `launch` reads the refusal."""
    monkeypatch.setattr(leases, "WAIT_S", 150.0)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    refusal = tmp_path / "refused"
    monkeypatch.setenv(outcome.REFUSED, str(refusal))
    (no_fleet / "stop").write_text("idle")
    table: dict[str, Any] = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"uri": URI})

    ended, said = tried_alone(table, tmp_path)

    assert ended == status, said
    assert "error: stopped before the first step: s3://checkpoints/alice/run is in use by process 1" in said
    assert outcome.stopped_waiting(refusal)
    assert not (tmp_path / "run/result.json").exists()


def test_a_wait_in_slices_ends_as_one_in_one_piece(store, living):
    """The ranks meet between slices; otherwise the others would wait in one collective."""
    now = [0.0]

    def pass_on(_: float) -> None:
        now[0] += 0.1

    follower = RunLease(store, HERE, sleep=pass_on, clock=lambda: now[0])

    taken = [follower.acquire(0.2), follower.acquire(0.2)]
    with pytest.raises(RunLeaseError, match="in use by process 1 on elsewhere"):
        follower.acquire(0.2)

    assert taken == [False, False]
    assert now[0] == pytest.approx(leases.WAIT_S)


@both_clouds
def test_a_holder_that_died_is_followed_after_the_stated_time_and_commits_nothing_more(
    store, still, impatient, tmp_path
):
    follower = RunLease(store, HERE)
    follower.acquire()

    follower.check()
    with pytest.raises(RunLeaseError, match="was taken over by process 1 on here"):
        still.check()
    late = Saver(tmp_path, store, keep=1, claim=RunClaim(still))
    late.save(local.Manifest(1, "model", 1), {})
    with pytest.raises(RunLeaseError, match="was taken over"):
        late.close()
    assert store.steps() == []
    assert local.steps(tmp_path) == []


@both_clouds
@pytest.mark.parametrize("stands_still", ["files", "manifest", "disk"])
def test_a_holder_that_stood_still_in_the_midst_of_a_save_commits_nothing_over_its_successor(
    store, still, stands_still, tmp_path, monkeypatch
):
    """A stopped process or a paused instance does not know how much time has passed."""
    stood = threading.Event()

    def succeed() -> None:
        if not stood.is_set():
            stood.set()
            store.claim_lease(2, json.dumps(vars(HERE)))

    where, name = {
        "files": (CheckpointStore, "upload_files"),
        "manifest": (CheckpointStore, "commit"),
        "disk": (local, "commit_stage"),
    }[stands_still]
    function = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *given, **named: succeed() or function(*given, **named))
    saver = Saver(tmp_path, store, keep=1, claim=RunClaim(still))

    saver.save(local.Manifest(1, "model", 1), {})
    with pytest.raises(RunLeaseError, match="was taken over by process 1 on here"):
        saver.close()

    assert stood.is_set()
    assert store.steps() == []
    assert local.steps(tmp_path) == ([] if stands_still == "disk" else [1])


def test_a_file_that_is_half_up_is_not_completed_over_that_of_the_successor(store, tmp_path):
    """A holder that stood still in an upload sees it by its clock, and checks the lease at the next part."""
    now = [0.0]
    held = RunLease(store, ELSEWHERE, clock=lambda: now[0])
    held.acquire()
    held.check_sometimes()
    store.claim_lease(2, json.dumps(vars(HERE)))

    held.check_sometimes()
    now[0] += 91

    with pytest.raises(RunLeaseError, match="was taken over"):
        held.check_sometimes()
    held.release()


def test_a_holder_that_has_lost_the_run_learns_so_by_its_next_renewal_and_writes_none(store):
    held = RunLease(store, ELSEWHERE, renew_every_s=0.05)
    store.claim_lease(2, json.dumps(vars(HERE)))
    held._number, held._name = 1, "000000000001"

    held._renew()  # returns: nothing is renewed any more
    held.release()

    assert held.lost
    assert set(store.sizes("lease")) == {store.newest_lease().name}  # type: ignore[union-attr]


def test_a_silent_bucket_keeps_no_checkpoint_from_the_disk(store, still, tmp_path, monkeypatch):
    """The holder is unknown then; a shared folder has its own lock."""
    silent = threading.Event()
    monkeypatch.setattr(leases, "ASK_S", 0.05)
    monkeypatch.setattr(store, "newest_lease", lambda: silent.wait(60) and None)
    saver = Saver(tmp_path, store=None, keep=1, claim=RunClaim(still))

    saver.save(local.Manifest(1, "model", 1), {})
    saver.close()
    silent.set()

    assert local.steps(tmp_path) == [1]


@pytest.mark.parametrize("how", ["no locks", "made anew"])
def test_a_folder_that_another_process_has_taken_is_not_written_to(how, tmp_path, monkeypatch):
    """It happens on a file system without locks, or if the folder was removed while this process slept."""
    if how == "no locks":
        monkeypatch.setattr("fcntl.lockf", _no_locks)
    first = local.lock(tmp_path)
    first.mark()
    first.check()
    saver = Saver(tmp_path, store=None, keep=1, claim=RunClaim(lock=first))
    if how == "made anew":
        (tmp_path / names.LOCK).unlink()
    (tmp_path / names.LOCK).write_text("process 7 on elsewhere\n")

    saver.save(local.Manifest(1, "model", 1), {})
    with pytest.raises(RunLeaseError, match="was taken over by process 7 on elsewhere") as lost:
        saver.close()
    first.close()

    assert lost.value.exit_status == 75
    assert local.steps(tmp_path) == []


@pytest.mark.parametrize("how", ["taken over", "disk full"])
def test_the_other_ranks_hear_why_the_first_commits_nothing(how, tmp_path, monkeypatch):
    """In a sharded checkpoint they would otherwise wait for its report for parallel.timeout_s."""
    lock = local.lock(tmp_path)
    lock.mark()
    local.open_stage(tmp_path, 1)
    if how == "taken over":
        (tmp_path / names.LOCK).write_text("process 7 on elsewhere\n")
        why: tuple[type[Exception], str] = (RunLeaseError, "was taken over by process 7 on elsewhere")
    else:
        monkeypatch.setattr(local, "write_part", _full)
        why = (CheckpointError, "No space left on device")
    words = HashStore()
    first, second = (
        Saver(
            tmp_path,
            None,
            1,
            team=Team(rank, 2, words, 0.0, sleep=_never),
            claim=RunClaim(lock=None if rank else lock),
        )
        for rank in range(2)
    )

    first.save(local.Manifest(1, "model", 1), {}, lambda: None)
    with pytest.raises(why[0], match=why[1]):
        first.close()
    monkeypatch.undo()
    second.save(local.Manifest(1, "model", 1), {}, lambda: None)
    with pytest.raises(CheckpointError, match=f"step 1 cannot be written: rank 0: .*{why[1]}"):
        second.close()
    lock.close()


@pytest.mark.parametrize("left", ["its mark", "nothing", "another file"])
def test_a_holder_whose_file_server_was_away_takes_its_lock_again(left, tmp_path, monkeypatch, caplog):
    """The server dropped the lock, so the open file fails; no other process has come."""
    held = local.lock(tmp_path)
    held.mark()
    with monkeypatch.context() as outage:
        outage.setattr("os.pread", _input_output_error)
        if left == "nothing":
            (tmp_path / names.LOCK).write_text("")
        elif left == "another file":
            (tmp_path / names.LOCK).unlink()
            (tmp_path / names.LOCK).touch()
        held.check()
    held.check()

    script = "import sys; from pathlib import Path; from gpu_fleet.checkpoint import local; "
    words = [sys.executable, "-c", script + "local.lock(Path(sys.argv[1]))", str(tmp_path)]
    second = ran(words)
    held.close()

    assert f"in use by process {os.getpid()}" in second.stderr
    assert "event=locked-again" in caplog.text


def test_a_holder_whose_file_server_was_away_makes_room_for_who_has_come(tmp_path, monkeypatch):
    held = local.lock(tmp_path)
    held.mark()
    (tmp_path / names.LOCK).write_text("process 7 on elsewhere\n")
    monkeypatch.setattr("os.pread", _input_output_error)

    with pytest.raises(RunLeaseError, match="was taken over by process 7 on elsewhere"):
        held.check()
    held.close()


def test_a_folder_that_cannot_be_looked_at_ends_all_ranks_alike(tmp_path, monkeypatch):
    """An OSError would end rank 0 alone, while it checks for all."""
    held = local.lock(tmp_path)
    held.mark()
    with monkeypatch.context() as outage:
        outage.setattr(Path, "stat", _input_output_error)
        with pytest.raises(CheckpointError, match="lock cannot be read: Input/output error") as lost:
            held.check()
    held.close()

    assert lost.value.exit_status == 75


def test_ages_are_measured_by_the_clock_of_the_object_store_alone(store, living, monkeypatch):
    listed = store._client.list_objects_v2(Bucket="checkpoints")
    for item in listed["Contents"]:
        item["LastModified"] = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    listed["ResponseMetadata"]["HTTPHeaders"]["date"] = "Sat, 03 Feb 2001 04:05:16 GMT"
    monkeypatch.setattr(store._client, "list_objects_v2", lambda **_: listed)

    found = store.newest_lease()

    assert found.age_s == 10


@both_clouds
def test_of_several_that_follow_at_the_same_moment_one_wins(store, still, impatient, monkeypatch):
    judged, won, claim = threading.Barrier(4, timeout=60), list[RunLease](), CheckpointStore.claim_lease

    def claimed(store: CheckpointStore, number: int, content: str) -> str | None:
        judged.wait()  # all four have found the old lease free
        monkeypatch.setattr(leases, "TAKEN_OVER_AFTER_S", 90.0)  # who wins may stand still for seconds
        monkeypatch.setattr(leases, "WAIT_S", 0.0)
        return claim(store, number, content)

    monkeypatch.setattr(CheckpointStore, "claim_lease", claimed)

    def follow(number: int) -> None:
        contender = RunLease(store, Holder(f"host-{number}", "boot", 1), renew_every_s=0.1)
        try:
            contender.acquire()
            won.append(contender)
        except RunLeaseError:
            pass

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1
    won[0].check()
    won[0].release()


NOW = Holder.this()


@pytest.mark.parametrize(
    ("before", "gone"),
    [
        (NOW, True),  # ranks that torchrun started again
        (replace(NOW, process=2**22 + 1), True),  # beyond the largest process id
        (replace(NOW, process=os.getppid(), begun="1"), True),  # its number is another's by now
        (replace(NOW, process=os.getppid(), begun=leases._begun(os.getppid())), False),
        (replace(NOW, host="elsewhere"), False),
        (replace(NOW, boot="another"), False),  # perhaps of another instance of that name
        (replace(NOW, space="pid:[1]"), False),  # a container on this instance, where it is process 1 too
        (replace(NOW, process=2**22 + 1, space="pid:[1]"), False),
        (Holder(NOW.host, NOW.boot, NOW.process), False),  # of an earlier trainer
    ],
)
def test_what_is_known_of_a_holder_on_this_instance_spares_the_wait(before, gone):
    unknown = Holder("here", "", os.getpid())

    assert before.surely_gone(NOW) is gone
    assert not unknown.surely_gone(unknown)


@pytest.fixture(params=["train", "Run"])
def start(request, tokens, tmp_path, capsys) -> Callable[[], tuple[int, str]]:
    """Return a start of the run by its configuration or by a loop of one's own: its status and stderr."""
    table: dict[str, Any] = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"uri": URI})

    def loop() -> tuple[int, str]:
        try:
            with Run(tmp_path / "run", uri=URI, model=nn.Linear(1, 1)) as run:
                list(run.steps(1))
        except SystemExit as end:
            return int(end.code or 0), capsys.readouterr().err
        return 0, ""

    return loop if request.param == "Run" else lambda: tried_alone(table, tmp_path)


def test_a_start_that_is_refused_for_now_leaves_all_to_the_holder_and_gives_its_own_lease_back(
    start, store, living, tmp_path
):
    """One process may lock a file twice: its own lock stands for that of a holder whose server gave it up."""
    root = tmp_path / "run/checkpoints"
    root.mkdir(parents=True)
    held = local.lock(root)
    held.mark()

    refused = start()
    held.check()
    held.close()
    living.release()
    finished = start()
    released = store.newest_lease()
    listed = [each["Key"] for each in boto3.client("s3").list_objects_v2(Bucket="checkpoints")["Contents"]]
    result = (tmp_path / "run/result.json").read_bytes()
    RunLease(store, ELSEWHERE, renew_every_s=0.1).acquire()
    again = start()

    assert (refused[0], finished[0], again[0]) == (75, 0, 75)
    assert "is in use by process 1 on elsewhere" in refused[1]
    assert released.content == leases.RELEASED
    assert (tmp_path / "run/result.json").read_bytes() == result
    assert sum("/lease/" in name and not name.endswith(".renewed") for name in listed) == 1


def test_a_dead_holder_is_followed_however_short_the_ranks_wait_for_each_other(
    still, tokens, tmp_path, monkeypatch
):
    """It takes 90 s to be sure, longer than the time-out of a collective: rank 0 waits in slices."""
    now, slices = [0.0], list[float]()
    newest, acquire = CheckpointStore.newest_lease, RunLease.acquire

    def aged(store: CheckpointStore) -> LeaseKey | None:
        found = newest(store)
        return found and replace(found, age_s=now[0])

    def pass_on(seconds: float) -> None:
        now[0] += seconds

    def timed(held: RunLease, *given: float) -> bool:
        slices.extend(given)
        return acquire(held, *given)

    monkeypatch.setattr(leases, "WAIT_S", 150.0)
    monkeypatch.setattr(leases, "LOOK_EVERY_S", 2.0)
    monkeypatch.setattr(CheckpointStore, "newest_lease", aged)
    monkeypatch.setattr(RunLease, "acquire", timed)
    monkeypatch.setitem(RunLease.__init__.__kwdefaults__, "sleep", pass_on)
    monkeypatch.setitem(RunLease.__init__.__kwdefaults__, "clock", lambda: now[0])
    keys = {"checkpoint": {"uri": URI}, "parallel": {"timeout_s": 60.0}}

    status, said = tried_alone(changed(gpt_table(tokens, tmp_path / "run"), **keys), tmp_path)

    assert status == 0, said
    assert now[0] == leases.TAKEN_OVER_AFTER_S
    assert slices == [15.0] * 6  # of 16 s each, as it looks every 2 s


def test_a_trainer_that_stood_still_leaves_all_to_its_successor_and_is_to_be_run_again(
    store, tokens, tmp_path, monkeypatch
):
    """It is taken over in step 4, and learns so at its next save, which is its last one here."""
    table: dict[str, Any] = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"uri": URI})
    take_step, steps = loop.take_step, count(1)

    def taken_over(*given: Any, **named: Any) -> Any:
        if next(steps) == 4:
            store.claim_lease(2, json.dumps(vars(HERE)))
        return take_step(*given, **named)

    monkeypatch.setattr(loop, "take_step", taken_over)

    status, said = tried_alone(table, tmp_path)

    assert status == 75, said
    assert f"error: {URI} was taken over by process 1 on here" in said
    assert "Traceback" not in said
    assert store.steps() == local.steps(tmp_path / "run/checkpoints") == []
    assert not (tmp_path / "run/result.json").exists()
    assert not (tmp_path / "run/failure.json").exists()


def test_a_run_that_has_finished_ends_so_though_another_start_waits_for_its_lease(
    store, tokens, tmp_path, monkeypatch
):
    """The lease is released after the last write, so a new holder changes nothing."""
    table: dict[str, Any] = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"uri": URI})
    release, written = RunLease.release, list[bool]()

    def taken_at_once(held: RunLease) -> None:
        if held.number:
            written.append((tmp_path / "run/result.json").exists())
        release(held)
        if held.number:
            RunLease(store, ELSEWHERE, renew_every_s=1000, sleep=_never).acquire()

    monkeypatch.setattr(RunLease, "release", taken_at_once)

    status, said = tried_alone(table, tmp_path)

    assert (status, written) == (0, [True]), said
    assert '"outcome": "finished"' in (tmp_path / "run/result.json").read_text()


def test_a_bucket_that_lets_nothing_be_removed_holds_no_run_up(store, monkeypatch):
    def denied(**_: str) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "DeleteObject")

    monkeypatch.setattr(store._client, "delete_object", denied)
    for _ in range(2):
        held = RunLease(store, HERE, sleep=_never)
        held.acquire()
        held.release()

    found = store.newest_lease()
    assert (found.number, found.content) == (2, leases.RELEASED)


def _no_locks(_file: Any, _operation: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def _full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _input_output_error(*_: Any, **_named: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def _never(_: float) -> None:
    raise AssertionError("waited")
