"""A folder of checkpoints and its bucket: interrupted copies, older states, a second process."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import torch.distributed as dist
from click.testing import CliRunner, Result

from gpu_fleet.checkpoint import lease as leases
from gpu_fleet.checkpoint.lease import RunClaim
from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, IdentityError, StoreError
from gpu_fleet.integrations import command as any_command
from gpu_fleet.integrations import guard
from gpu_fleet.integrations.folder_copy.sync import FolderSync
from gpu_fleet.storage.object_store import ObjectStore
from tests.training.ranks import run_ranks

URI = "s3://bucket/mine"
Objects = dict[str, bytes]


class Store:
    """Objects in memory. `before` is called with the verb and the name of an object, and may raise."""

    def __init__(self, objects: Objects, uri: str = URI) -> None:
        self.objects, self.uri = objects, uri
        self.before: Callable[[str, str], object] = lambda _verb, _name: None

    def put(
        self, name: str, content: bytes | Path, moved: Callable[[int], None] = lambda _bytes: None
    ) -> None:
        self.before("put", name)
        moved(0)
        self.objects[f"{self.uri}/{name}"] = content.read_bytes() if isinstance(content, Path) else content

    def get(self, name: str, file: Path | None = None) -> bytes | None:
        self.before("get", name)
        content = self.objects.get(f"{self.uri}/{name}")
        if content is None or file is None:
            return content
        file.write_bytes(content)
        return b""

    check_holds = ObjectStore.check_holds

    def sizes(self, folder: str) -> dict[str, int]:
        root = f"{self.uri}/{folder}/" if folder else f"{self.uri}/"
        return {
            key.removeprefix(root): len(value) for key, value in self.objects.items() if key.startswith(root)
        }

    def delete(self, name: str) -> None:
        self.before("delete", name)
        self.objects.pop(f"{self.uri}/{name}", None)

    def remove_if_allowed(self, name: str) -> bool:
        try:
            self.delete(name)
        except StoreError:
            return False
        return True

    @property
    def names(self) -> set[str]:
        """Names of the files that can be restored."""
        listed = json.loads(self.objects[f"{self.uri}/folder.json"])
        return {
            name
            for name, record in listed.items()
            if f"{self.uri}/contents/{record['sha256']}" in self.objects
        }


@pytest.fixture
def store() -> Store:
    """Return an empty bucket."""
    return Store({})


def sync(folder: Path, store: Store, clock: Callable[[], float] = time.time) -> FolderSync:
    return FolderSync(folder, cast("ObjectStore", store), clock=clock, sleep=lambda _: None)


def files(folder: Path, **content: str) -> Path:
    """Write these files into a folder in this order, one second apart; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for second, (name, text) in enumerate(content.items()):
        (folder / name).write_text(text)
        os.utime(folder / name, (1_000_000 + second, 1_000_000 + second))
    return folder


def content(folder: Path) -> dict[str, str]:
    """Return names and texts of the files, without those of gpu-fleet."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def failing(call: int, *, passing: bool) -> Callable[[str, str], None]:
    """Return a hook that fails the `call`-th request for a content, from 1 on."""
    calls: list[str] = []

    def before(verb: str, name: str) -> None:
        if verb == "get" and name.startswith("contents"):
            calls.append(name)
        if len(calls) == call:
            calls.append("")  # the next one is answered
            raise StoreError("500 InternalError", passing=passing)

    return before


@pytest.fixture
def command(store, monkeypatch) -> Callable[..., Result]:
    """Return a function that calls `run` with a bucket in memory, without a lease."""
    monkeypatch.setattr(any_command, "_kept", lambda folder, _place: (RunClaim(), sync(folder, store)))

    def run(folder: Path, script: str, *more: str) -> Result:
        flags = ("--checkpoints", str(folder), "--uri", URI, *more)
        return CliRunner().invoke(any_command.run, [*flags, "--", "bash", "-c", script])

    return run


@pytest.fixture
def cut_off() -> Iterator[list[int]]:
    """Note each SIGTERM that is not handled, instead of ending the process."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


FOUR = {"a": "1", "b": "2", "c": "3", "d": "4"}


def test_a_command_never_starts_on_a_part_of_its_folder(store, command, tmp_path):
    """After an interrupted restore, the next try restores the whole folder; the bucket keeps its files."""
    sync(files(tmp_path / "here", **FOUR), store).up(last=True)
    there = tmp_path / "there"

    store.before = failing(3, passing=False)
    first = command(there, f"touch {tmp_path}/begun")
    store.before = lambda _verb, _name: None
    begun = (tmp_path / "begun").exists()
    second = command(there, f"ls {there} > {tmp_path}/seen")

    assert (type(first.exception), begun) == (StoreError, False)
    assert (second.exit_code, (tmp_path / "seen").read_text().split()) == (0, list(FOUR))
    assert store.names == set(FOUR)


def test_a_disturbance_of_the_bucket_is_waited_for(store, tmp_path):
    sync(files(tmp_path / "here", **FOUR), store).up(last=True)
    store.before = failing(2, passing=True)

    assert sync(tmp_path / "there", store).down() == 4
    assert content(tmp_path / "there") == FOUR


def test_a_cut_off_restore_resumes_with_no_other_bucket_and_begins_again_where_the_list_went_on(
    store, tmp_path
):
    sync(files(tmp_path / "here", **FOUR), store).up(last=True)
    store.before = failing(3, passing=False)
    with pytest.raises(StoreError):
        sync(tmp_path / "there", store).down()
    store.before = lambda _verb, _name: None

    with pytest.raises(Exception, match=f"has a part of {URI} only"):
        sync(tmp_path / "there", Store({}, "s3://bucket/other")).down()
    (tmp_path / "here/a").unlink()
    sync(tmp_path / "here", store).up(last=True)

    assert sync(tmp_path / "there", store).down() == 3
    assert set(content(tmp_path / "there")) == {"b", "c", "d"}


def test_an_older_disk_takes_the_newer_bucket(store, command, tmp_path):
    """The run begins here, continues elsewhere, and returns: the older state is set aside."""
    here, there = tmp_path / "here", tmp_path / "there"
    results = [
        command(here, f"echo 10 > {here}/step"),
        command(there, f"echo 50 > {there}/step"),
        command(here, f"cat {here}/step > {tmp_path}/seen"),
    ]

    assert [result.exit_code for result in results] == [0, 0, 0]
    assert (tmp_path / "seen").read_text() == "50\n"
    assert content(tmp_path / "here.older") == {"step": "10\n"}
    assert content(here) == {"step": "50\n"}
    assert sync(tmp_path / "third", store).down() == 1
    assert content(tmp_path / "third") == {"step": "50\n"}


def test_a_disk_that_is_newer_than_the_bucket_resumes(store, tmp_path):
    here = files(tmp_path / "here", step="10")
    sync(here, store).up(last=True)
    files(here, step="11", more="1")

    assert sync(here, store).down() == 0
    assert sync(here, store).up(last=True)
    assert (content(here), store.names) == ({"step": "11", "more": "1"}, {"step", "more"})


def test_a_disk_that_lost_touch_while_it_listed_resumes(store, tmp_path):
    """The connection is lost after the list is in the bucket, and before the disk has a note of it."""
    here = files(tmp_path / "here", step="10")
    sync(here, store).up(last=True)
    files(here, step="11")

    def lost(verb: str, _name: str) -> None:
        if verb == "delete":
            raise KeyboardInterrupt

    store.before = lost
    with pytest.raises(KeyboardInterrupt):
        sync(here, store).up(last=True)
    store.before = lambda _verb, _name: None
    files(here, step="12")

    assert sync(here, store).down() == 0
    assert sync(here, store).up(last=True)
    assert (content(here), len(store.sizes("contents"))) == ({"step": "12"}, 1)


def test_of_two_at_once_the_second_overwrites_nothing(store, tmp_path):
    first, second = sync(tmp_path / "first", store), sync(tmp_path / "second", store)
    first.down()
    second.down()
    files(tmp_path / "first", step="1")
    files(tmp_path / "second", step="2")
    first.up(last=True)

    with pytest.raises(IdentityError, match=r"s3://bucket/mine has files that .*second never had") as refused:
        second.up(last=True)
    assert refused.value.exit_status == 65
    assert sync(tmp_path / "third", store).down() == 1
    assert content(tmp_path / "third") == {"step": "1"}


def test_a_folder_that_was_never_in_the_bucket_is_refused(store, tmp_path):
    sync(files(tmp_path / "here", step="10"), store).up(last=True)

    with pytest.raises(
        IdentityError, match=r"there has files that were never in s3://bucket/mine"
    ) as refused:
        sync(files(tmp_path / "there", step="3"), store).down()
    assert refused.value.exit_status == 65
    assert sync(files(tmp_path / "same", step="10"), store).down() == 0


def test_a_signal_does_not_cut_the_last_upload_off(store, command, cut_off, tmp_path):
    def signalled(verb: str, name: str) -> None:
        if verb == "put" and name.startswith("contents"):
            os.kill(os.getpid(), signal.SIGTERM)

    store.before = signalled
    done = command(tmp_path / "here", f"echo 1 > {tmp_path}/here/step")

    assert (cut_off, done.exit_code, store.names) == ([], 0, {"step"})


def test_a_command_that_lost_its_run_is_terminated(store, command, tmp_path):
    """Another process saves meanwhile: the command gets the signal, and 65 says that a retry cannot help."""
    here = tmp_path / "here"

    def taken_over(verb: str, name: str) -> None:
        if verb == "put" and name == "folder.json":
            store.before = lambda _verb, _name: None
            store.objects[f"{URI}/folder.json"] = b"{}"
            raise StoreError("503 SlowDown", passing=True)

    store.before = taken_over
    script = f"echo 1 > {here}/step; touch -d 2000-01-01 {here}/step; sleep 9; touch {tmp_path}/in-vain"
    done = command(here, script, "--every-s", "0.1")

    assert isinstance(done.exception, IdentityError)
    assert not (tmp_path / "in-vain").exists()
    assert store.objects[f"{URI}/folder.json"] == b"{}"


class FreeLease:
    """Lease of a place that no other process wants; see test_claim.py for others."""

    def acquire(self, _within_s: float) -> bool:
        return True

    def check(self) -> None: ...

    def release(self) -> None: ...


def guarding(folder: Path, store: Store) -> guard.Guard:
    """Return a guard on a store that only this process has."""
    guard.CheckpointStore = lambda _uri: store  # type: ignore[misc,assignment]
    leases.RunLease = lambda *_, **__: FreeLease()  # type: ignore[misc,assignment]
    return guard.Guard(folder, URI, pattern="step-*.ckpt")


def wait_for(*files: Path, within_s: float) -> None:
    """Wait until all files exist, or for `within_s` seconds."""
    until_s = time.monotonic() + within_s
    while not all(file.exists() for file in files) and time.monotonic() < until_s:
        time.sleep(0.01)


def bring_rank(folder: Path, objects: Objects) -> str | None:
    """Return the newest checkpoint by one rank's search, before there is a process group.

    The store delays contents until both ranks search and one of them has found something, or a while longer.
    """
    store, looked = Store(objects), folder.with_name("looked")
    others = [folder.with_name(f"looks-{rank}") for rank in range(2)]

    def slowly(_verb: str, name: str) -> None:
        if name.startswith("contents"):
            wait_for(*others, within_s=60)
            wait_for(looked, within_s=0.2)

    store.before = slowly
    guarded = guarding(folder, store)
    others[int(os.environ["RANK"])].touch()
    newest = guarded.newest()
    looked.touch()
    return newest


def test_every_rank_finds_the_checkpoint_before_they_have_met(store, tmp_path):
    """Lightning creates the process group only after `newest()`."""
    sync(files(tmp_path / "here", **{"step-8.ckpt": "8"}), store).up(last=True)

    newest = run_ranks(bring_rank, 2, tmp_path / "there", store.objects)

    assert newest == [str(tmp_path / "there/step-8.ckpt")] * 2


def saved_rank(folder: Path) -> set[str]:
    """Return the files in the bucket once each of two ranks has written its part; the second is late."""
    dist.init_process_group("gloo")
    rank, store, looked = dist.get_rank(), Store({}), folder.with_name("looked")
    store.before = lambda _verb, _name: looked.touch()
    guarded = guarding(folder, store)
    first_saves = folder.with_name("saves-0")
    if rank:
        wait_for(first_saves, within_s=60)
        wait_for(looked, within_s=0.2)
    files(folder, **{f"rng-{rank}": "state"})
    folder.with_name(f"saves-{rank}").touch()
    guarded.saved()
    return store.names if rank == 0 else set()


def test_a_save_is_uploaded_with_the_files_of_all_ranks(tmp_path):
    """With the Trainer of transformers each rank writes the state of its own generators."""
    assert run_ranks(saved_rank, 2, tmp_path / "here")[0] == {"rng-0", "rng-1"}


def test_a_refusal_in_a_callback_is_one_message(store, monkeypatch, capsys, tmp_path):
    """Other libraries do not know our errors; `train run` around them reads that a retry cannot help."""
    sync(files(tmp_path / "here", step="10"), store).up(last=True)
    monkeypatch.setattr(guard, "CheckpointStore", guard.CheckpointStore)  # to be set back
    monkeypatch.setattr(leases, "RunLease", leases.RunLease)
    there = files(tmp_path / "there", step="3")

    with pytest.raises(SystemExit) as brought:
        guarding(there, store).newest()
    with pytest.raises(SystemExit) as saved:
        guarding(there, store).saved()

    said = capsys.readouterr().err.splitlines()
    assert (brought.value.code, saved.value.code, len(said)) == (65, 65, 2)
    assert said[0].startswith(f"error: {there} has files that were never in {URI}")
    assert (there / outcome.FAILURE).exists()


@pytest.mark.parametrize("fault", [{"passing": True}, {"refused": True}], ids=["disturbed", "expired"])
def test_a_bucket_that_is_disturbed_between_two_saves_ends_no_run(fault, store, monkeypatch, tmp_path):
    """The next save makes up for it; only the last one has to succeed."""
    for module, name in ((guard, "CheckpointStore"), (leases, "RunLease")):
        monkeypatch.setattr(module, name, getattr(module, name))  # to be set back
    monkeypatch.setattr(guard, "BETWEEN_S", 0.0)
    monkeypatch.setattr(guard, "PATIENCE_S", 0.0)
    guarded = guarding(files(tmp_path / "here", step="3"), store)
    guarded.begin({}, None)

    def disturbed(_verb: str, _name: str) -> None:
        raise StoreError("not now", **fault)

    store.before = disturbed
    guarded.saved()
    with pytest.raises(SystemExit) as ended:
        guarded.end()
    store.before = lambda _verb, _name: None
    guarded.end()

    assert (ended.value.code, store.names) == (75, {"step", "gpu-fleet.json"})


def test_a_bucket_that_lets_nothing_be_removed_has_the_newest(store, tmp_path):
    def denied(verb: str, _name: str) -> None:
        if verb == "delete":
            raise StoreError("AccessDenied")

    here = files(tmp_path / "here", step="3")
    kept = sync(here, store)
    kept.up(last=True)
    store.before = denied
    (here / "step").write_text("10")

    assert kept.up(last=True)
    assert sync(tmp_path / "there", store).down() == 1
    assert content(tmp_path / "there") == {"step": "10"}


@pytest.mark.parametrize("number", [1, 2], ids=["the list", "a content"])
def test_a_notice_in_a_restore_ends_the_command_before_it_begins(number, store, command, cut_off, tmp_path):
    sync(files(tmp_path / "here", step="10"), store).up(last=True)
    asked: list[str] = []

    def signalled(_verb: str, name: str) -> None:
        asked.append(name)
        if len(asked) == number:
            os.kill(os.getpid(), signal.SIGTERM)

    store.before = signalled
    stopped = command(tmp_path / "there", f"touch {tmp_path}/begun")
    begun = (tmp_path / "begun").exists()
    again = command(tmp_path / "there", f"cat {tmp_path}/there/step > {tmp_path}/begun")

    assert (cut_off, stopped.exit_code, begun, again.exit_code) == ([], 85, False, 0)
    assert (tmp_path / "begun").read_text() == "10"


def test_the_newest_file_stays_the_newest(store, tmp_path):
    """Its time stays the newest, by which many programs find it, among files and among folders."""
    here, there = files(tmp_path / "here", **{"ckpt-9": "9", "ckpt-10": "10"}), tmp_path / "there"
    files(here / "step-9", weights="9")
    files(here / "step-10", first="1", weights="10")
    sync(here, store).up(last=True)

    sync(there, store).down()

    for pattern in ("ckpt-*", "step-*"):
        newest = max(there.glob(pattern), key=lambda path: path.stat().st_mtime)
        assert newest.name.endswith("-10")
    assert (there / "ckpt-9").stat().st_mtime_ns == (here / "ckpt-9").stat().st_mtime_ns


def test_a_folder_that_the_bucket_lacks_at_the_end_is_no_success(store, tmp_path):
    folder = sync(files(tmp_path / "here", x="1"), store)
    folder.up(last=True)
    for key in [key for key in store.objects if "/contents/" in key]:
        del store.objects[key]

    with pytest.raises(CheckpointError, match="is not whole after its upload: contents/"):
        folder.up(last=True, final=True)
    folder.up(last=True, final=True)

    assert sync(tmp_path / "there", store).down() == 1


def test_links_come_back_and_lead_where_they_led(store, tmp_path):
    """This includes a link with an absolute path, which another disk does not have, and odd names."""
    odd = {"latin": os.fsdecode(b"latin \xff"), "lines": "two\r\nlines"}
    here, there = files(tmp_path / "here", x="1", **dict.fromkeys(odd.values(), "1")), tmp_path / "there"
    files(here / "step-10", weights="10")
    targets = {"last": "step-10", "best": (here / "step-10").absolute(), **odd}
    for name, target in targets.items():
        (here / name).symlink_to(target)
    sync(here, store).up(last=True)

    brought = sync(there, store).down()

    assert brought == 8
    led = [str((there / name).readlink()) for name in targets]
    assert led == ["step-10", "step-10", *odd.values()]
    assert [(there / name).read_text() for name in odd] == ["1", "1"]
    assert (there / "last/weights").read_text() == "10"
    assert not sync(there, store).down()
    (there / "last").unlink()
    (there / "last").symlink_to("x")
    assert sync(there, store).up(last=True)
    assert sync(tmp_path / "third", store).down() == 8
    assert (tmp_path / "third/last").read_text() == "1"


def test_links_that_lead_out_are_named_once(store, tmp_path, caplog):
    here = files(tmp_path / "here", x="1")
    (here / "data").symlink_to("../data")
    guarded = sync(here, store)

    guarded.up(last=True)
    guarded.up(last=True)

    (said,) = [record.getMessage() for record in caplog.records if "links" in record.getMessage()]
    assert "names=['data']" in said
    assert store.names == {"x"}


class Clock:
    """Seconds of the epoch, long after the times that `files` gives."""

    now = 2_000_000.0

    def __call__(self) -> float:
        return self.now

    def write(self, file: Path, text: str, ahead_s: float = 0.0) -> None:
        """Write a file with the present time, or one ahead of it."""
        file.write_text(text)
        os.utime(file, (self.now + ahead_s, self.now + ahead_s))


@pytest.mark.parametrize("ahead_s", [-1.0, 3600.0], ids=["by this clock", "by a server whose clock is ahead"])
def test_a_file_that_is_rewritten_stays_in_the_bucket(ahead_s, store, tmp_path):
    """`torch.save(state, "last.pt")` writes into the existing file."""
    clock, here = Clock(), files(tmp_path / "here", last="1")
    (guarded := sync(here, store, clock)).up()

    clock.write(here / "last", "half", ahead_s)
    saved = guarded.up()
    sync(tmp_path / "there", store).down()
    waits = guarded.waits
    clock.now += 3.0

    assert (saved, waits, content(tmp_path / "there")) == (False, True, {"last": "1"})
    assert (guarded.up(), guarded.waits) == (True, False)
    sync(tmp_path / "third", store).down()
    assert content(tmp_path / "third") == {"last": "half"}


def test_no_part_of_a_checkpoint_is_committed(store, tmp_path):
    clock, here = Clock(), files(tmp_path / "here", weights="1", moments="1")
    (guarded := sync(here, store, clock)).up()

    files(here, weights="2")
    os.utime(here / "weights", (1_500_000, 1_500_000))
    clock.write(here / "moments", "2")
    guarded.up()
    sync(tmp_path / "there", store).down()

    assert content(tmp_path / "there") == {"weights": "1", "moments": "1"}


def test_a_file_that_is_never_at_rest_holds_the_others_up_once(store, tmp_path):
    """Each step appends to a log: the bucket keeps its former content, and gets all whole files."""
    clock, here = Clock(), files(tmp_path / "here", log="1", step="1")
    (guarded := sync(here, store, clock)).up()
    saved: list[bool] = []
    for second in range(0, 90, 10):
        clock.now = 2_000_000.0 + second
        (here / "step").write_text(str(second))
        os.utime(here / "step", (1_000_100 + second, 1_000_100 + second))
        clock.write(here / "log", str(second))
        saved.append(guarded.up())
    sync(tmp_path / "there", store).down()

    assert saved == [False] * 6 + [True] * 3
    assert content(tmp_path / "there") == {"log": "1", "step": "80"}


def test_a_file_that_changes_while_others_go_up_is_not_taken_for_what_it_was(store, tmp_path):
    here = files(tmp_path / "here", first="1", second="1")
    guarded = sync(here, store)

    def rewritten(verb: str, name: str) -> None:
        if verb == "put" and name.startswith("contents"):
            store.before = lambda _verb, _name: None
            (here / "second").write_text("other")

    store.before = rewritten
    guarded.up(last=True)
    guarded.up(last=True)

    assert sync(tmp_path / "there", store).down() == 2
    assert content(tmp_path / "there") == {"first": "1", "second": "other"}


def test_a_notice_is_passed_on_while_the_folder_is_uploaded(store, command, no_fleet, tmp_path):
    """An upload may take longer than the grace period; a running one gives way to the last one."""
    here, notified = tmp_path / "here", tmp_path / "notified"
    heard: list[bool] = []

    def slowly(verb: str, name: str) -> None:
        if verb == "put" and name.startswith("contents") and not heard:
            (no_fleet / "stop").write_text("spot\n")
            until_s = time.monotonic() + 120.0
            while not notified.exists() and time.monotonic() < until_s:
                time.sleep(0.01)
            heard.append(notified.exists())

    store.before = slowly
    script = f"""
        trap 'echo 2 > {here}/step; touch {notified}; exit 0' TERM
        echo 1 > {here}/step; touch -d 2000-01-01 {here}/step
        for n in $(seq 6000); do sleep 0.05; done
    """
    done = command(here, script, "--every-s", "0.1")

    assert (done.exit_code, heard) == (85, [True])
    assert sync(tmp_path / "there", store).down() == 1
    assert content(tmp_path / "there") == {"step": "2\n"}


def test_a_killed_command_leaves_what_is_whole_in_the_bucket(store, command, tmp_path):
    """The last write to its log was just before, and no later poll sees it at rest."""
    here = tmp_path / "here"
    script = f"echo 1 > {here}/step; touch -d 2000-01-01 {here}/step; echo x > {here}/log; kill -9 $$"

    done = command(here, script)

    assert (done.exit_code, store.names) == (137, {"step"})
