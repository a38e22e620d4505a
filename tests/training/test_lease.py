"""The lease of a run in its bucket: a second process is refused, a dead holder followed, a live one never."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from torch import nn

from gpu_fleet import Run
from gpu_fleet.checkpoint import lease as leases
from gpu_fleet.checkpoint import local
from gpu_fleet.checkpoint.lease import Holder, RunLease
from gpu_fleet.checkpoint.saver import Saver
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.errors import RunLeaseError
from tests.training.commands import tried_alone
from tests.training.examples import changed, gpt_table

URI = "s3://checkpoints/alice/run"
OSS_URI = "oss://checkpoints/alice/run"
ELSEWHERE, HERE = Holder("elsewhere", "boot", 1), Holder("here", "boot", 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow at once. Who is alive may stand still for seconds, as a busy computer does."""
    monkeypatch.setattr(leases, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("gpu_fleet.checkpoint.store.SETTLED_AFTER_S", 0.05)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Object stores tell times in whole seconds: two of them are a long time where nobody is alive."""
    monkeypatch.setattr(leases, "TAKEN_OVER_AFTER_S", 2.0)


@pytest.fixture
def store(bucket: str, request: pytest.FixtureRequest) -> CheckpointStore:
    uri = getattr(request, "param", URI)
    return CheckpointStore(uri, os.environ["AWS_ENDPOINT_URL"])


@pytest.fixture
def living(store: CheckpointStore) -> Iterator[RunLease]:
    """A lease of another instance, which renews it."""
    held = RunLease(store, ELSEWHERE, renew_every_s=0.1)
    held.acquire()
    yield held
    held.release()


both_clouds = pytest.mark.parametrize("store", [URI, OSS_URI], ids=["S3", "OSS"], indirect=True)


@both_clouds
def test_a_second_process_is_refused_while_the_first_lives(store: CheckpointStore, living: RunLease) -> None:
    with pytest.raises(RunLeaseError, match=r"in use by process 1 on elsewhere.*taken over after 90 s"):
        RunLease(store, HERE).acquire()

    living.check()


@both_clouds
def test_a_run_that_finished_is_taken_at_once(store: CheckpointStore, living: RunLease) -> None:
    living.release()

    RunLease(store, HERE, sleep=_never).acquire()


@both_clouds
def test_a_holder_that_died_is_followed_after_the_stated_time_and_commits_nothing_more(
    store: CheckpointStore, impatient: None, tmp_path: Path
) -> None:
    dead = RunLease(store, ELSEWHERE, renew_every_s=1000)
    dead.acquire()

    follower = RunLease(store, HERE)
    follower.acquire()

    follower.check()
    with pytest.raises(RunLeaseError, match="was taken over by process 1 on here"):
        dead.check()
    late = Saver(tmp_path, store, keep=1, lease=dead)
    late.save(local.Manifest(1, "model", 1), {})
    with pytest.raises(RunLeaseError, match="was taken over"):
        late.close()
    assert store.steps() == []


def test_ages_are_measured_by_the_clock_of_the_object_store_alone(
    store: CheckpointStore, living: RunLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = store._client.list_objects_v2(Bucket="checkpoints")
    for item in listed["Contents"]:
        item["LastModified"] = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    listed["ResponseMetadata"]["HTTPHeaders"]["date"] = "Sat, 03 Feb 2001 04:05:16 GMT"
    monkeypatch.setattr(store._client, "list_objects_v2", lambda **_: listed)

    found = store.newest_lease()

    assert found is not None
    assert found.age_s == 10


@both_clouds
def test_of_several_that_follow_at_the_same_moment_one_wins(
    store: CheckpointStore, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunLease(store, ELSEWHERE, renew_every_s=1000).acquire()
    begin, won, claim = threading.Barrier(4), list[RunLease](), CheckpointStore.claim_lease

    def claimed(store: CheckpointStore, number: int, content: str) -> str | None:
        name = claim(store, number, content)
        monkeypatch.setattr(leases, "TAKEN_OVER_AFTER_S", 90.0)  # who has won may stand still for seconds
        return name

    monkeypatch.setattr(CheckpointStore, "claim_lease", claimed)

    def follow(number: int) -> None:
        contender = RunLease(store, Holder(f"host-{number}", "boot", 1), renew_every_s=0.1)
        begin.wait()
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
    ids=[
        "itself",
        "ended",
        "replaced",
        "alive",
        "elsewhere",
        "another boot",
        "container",
        "not seen here",
        "earlier trainer",
    ],
)
def test_what_is_known_of_a_holder_on_this_instance_spares_the_wait(before: Holder, gone: bool) -> None:
    assert before.surely_gone(NOW) is gone


def test_where_nothing_is_known_of_processes_a_holder_may_be_alive() -> None:
    unknown = Holder("here", "", os.getpid())

    assert not unknown.surely_gone(unknown)


def test_train_is_refused_for_good_and_gives_its_own_lease_back(
    store: CheckpointStore, living: RunLease, tokens: Path, tmp_path: Path
) -> None:
    table: dict[str, Any] = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"uri": URI})

    refused = tried_alone(table, tmp_path)
    living.release()
    finished = tried_alone(table, tmp_path)

    assert refused[0] == 65
    assert "is in use by process 1 on elsewhere" in refused[1]
    assert finished == (0, finished[1])
    found = store.newest_lease()
    assert found is not None
    assert found.content == leases.RELEASED
    names = [each["Key"] for each in boto3.client("s3").list_objects_v2(Bucket="checkpoints")["Contents"]]
    assert sum("/lease/" in name and not name.endswith(".renewed") for name in names) == 1


def test_a_bucket_that_lets_nothing_be_removed_holds_no_run_up(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: str) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "DeleteObject")

    monkeypatch.setattr(store._client, "delete_object", denied)
    for _ in range(2):
        held = RunLease(store, HERE, sleep=_never)
        held.acquire()
        held.release()

    found = store.newest_lease()
    assert found is not None
    assert (found.number, found.content) == (2, leases.RELEASED)


def test_a_start_that_is_refused_leaves_the_result_of_the_run(
    store: CheckpointStore, tokens: Path, tmp_path: Path
) -> None:
    table: dict[str, Any] = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"uri": URI})
    finished = tried_alone(table, tmp_path)
    result = (tmp_path / "run/result.json").read_bytes()
    other = RunLease(store, ELSEWHERE, renew_every_s=0.1)
    other.acquire()

    refused = tried_alone(table, tmp_path)
    other.release()

    assert (finished[0], refused[0]) == (0, 65)
    assert (tmp_path / "run/result.json").read_bytes() == result


def test_a_loop_of_ones_own_is_refused_and_gives_its_lease_back_too(
    store: CheckpointStore, living: RunLease, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, Run(tmp_path / "run", uri=URI, model=nn.Linear(1, 1)):
        raise AssertionError("began")
    living.release()
    with Run(tmp_path / "run", uri=URI, model=nn.Linear(1, 1)) as run:
        list(run.steps(1))

    assert ended.value.code == 65
    assert "is in use by process 1 on elsewhere" in capsys.readouterr().err
    found = store.newest_lease()
    assert found is not None
    assert found.content == leases.RELEASED


def _never(_: float) -> None:
    raise AssertionError("waited")
