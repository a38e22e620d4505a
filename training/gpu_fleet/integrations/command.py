"""`run`: any other program. It gets a signal at a notice; its checkpoint folder is copied to the bucket."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Self

import click

from gpu_fleet.checkpoint.lease import Holder, RunClaim
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core import exit_codes, outcome, processes
from gpu_fleet.core.errors import (
    CheckpointError,
    CommandError,
    ConfigError,
    IdentityError,
    RunLeaseError,
    SilentStoreError,
    as_checkpoint_error,
    reason_of,
)
from gpu_fleet.core.files import on_disk, write_bytes
from gpu_fleet.core.instance_file import place_of_checkpoints
from gpu_fleet.core.lazy_groups import FiniteRange, FolderPath
from gpu_fleet.integrations.folder_copy.files import OURS
from gpu_fleet.integrations.folder_copy.sync import FolderSync
from gpu_fleet.preemption.interrupt import Interruption, Reason, nothing_to_save, sources
from gpu_fleet.storage.object_store import NOTICE_PATIENCE_S, PATIENCE_S, ObjectStore, patiently

SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}
LOOK_EVERY_S = 0.2
RUNNING = f"{OURS}/command.json"  # the process of COMMAND, which outlives a killed `run`
LEASED = "folder"  # prefix of the lease below the URI of the checkpoints
SILENT_S = 30.0  # the last upload is given up if nothing moves for this long
RELEASE_S = 5.0  # longest time to release the lease
AGAIN_S = 2.5  # pause before the next sync, after one waited for a file that was being written
log = logging.getLogger(__name__)


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\b\nExample:\n  gpu-fleet train run --checkpoints runs/mine -- python train.py --out runs/mine",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--checkpoints", type=FolderPath(), help="Folder to copy to the bucket.")
@click.option("--uri", default="", help="s3:// or oss://bucket/prefix; default: the stack's bucket.")
@click.option("--every-s", type=FiniteRange(min=0.1), default=60.0, show_default=True, help="Sync interval.")
@click.option("--signal", "notice", type=click.Choice(list(SIGNALS)), default="TERM", show_default=True)
@click.option(
    "--grace-s", type=FiniteRange(min=0), default=80.0, show_default=True, help="From signal to kill."
)
def run(
    *,
    command: tuple[str, ...],
    checkpoints: Path | None,
    uri: str,
    every_s: float,
    notice: str,
    grace_s: float,
) -> None:
    """Run COMMAND, which saves by itself. It gets a signal at a notice, and can be run again elsewhere.

    An empty folder of --checkpoints is restored from the bucket. Changes in it are copied to the bucket.
    Exits with 0 when COMMAND has finished, 85 when it was stopped for a notice (run it again), else with its
    status.
    """
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    place = place_of_checkpoints(uri, "", checkpoints) if checkpoints else ""
    claim, sync = _kept(checkpoints, place) if checkpoints and place else (RunClaim(), None)
    if uri and not checkpoints:
        raise click.UsageError("--uri needs --checkpoints FOLDER")
    if command[0].startswith("-"):
        raise click.UsageError(f"no such option: {command[0]}")
    if checkpoints:
        with on_disk(f"--checkpoints = {str(checkpoints)!r}"):
            (checkpoints / OURS).mkdir(parents=True, exist_ok=True)
    start = partial(Child, command, notice=SIGNALS[notice], grace_s=grace_s)
    try:
        with ExitStack() as held:
            with nothing_to_save():
                if checkpoints:
                    _check_outer(checkpoints / RUNNING)
                held.enter_context(_held(claim))
                if checkpoints:
                    _check_left(checkpoints / RUNNING)
                if sync is not None:
                    sync.down()
            ends_with = _run_child(start, checkpoints, sync, every_s)
    except SilentStoreError as error:
        outcome.show(error, rank=0)
        outcome.leave_at_once(error.exit_status)
    sys.exit(ends_with)


def _kept(folder: Path, place: str) -> tuple[RunClaim, FolderSync]:
    """Return the claim and the sync of a folder; the lease is another than COMMAND may hold at `place`."""
    claim = RunClaim.of(CheckpointStore(f"{place.rstrip('/')}/{LEASED}"))
    return claim, FolderSync(folder, ObjectStore(place), held=claim.lease.check)


@contextmanager
def _held(claim: RunClaim) -> Iterator[None]:
    claim.acquire()
    try:
        yield
    finally:  # do not wait long for a silent bucket: the lease expires without renewals
        releasing = threading.Thread(target=claim.release, name="release", daemon=True)
        releasing.start()
        releasing.join(RELEASE_S)


def _left(file: Path) -> Holder | None:
    """Return the running command of another `run` on the folder; None if there is none."""
    try:
        left = Holder(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):  # there is none, or the disk was full
        return None
    process = processes.process_of(left.process)
    alive = process and process.state != processes.ZOMBIE and left.begun
    return left if alive and left == Holder.of(left.process) else None


def _check_outer(file: Path) -> None:
    """Raise ConfigError if this `run` is a part of the command of another one on the folder."""
    outer = _left(file)
    if outer is not None and outer.process == os.getsid(0):  # each command has a session of its own
        raise ConfigError(
            f"--checkpoints = {str(file.parents[1])!r}: this `run` is process {os.getpid()} of {outer}, the "
            "command of another `run`, which copies the folder already: leave --checkpoints out of one"
        )


def _check_left(file: Path) -> None:
    """Raise RunLeaseError if the command of an earlier `run`, which was killed, still works on the folder."""
    if (left := _left(file)) is not None:
        raise RunLeaseError(
            f"--checkpoints = {str(file.parents[1])!r}: {left}, the command of another `run`, still works on "
            "it; wait until it ends, or terminate it"
        )


def _note_running(file: Path, process: int) -> None:
    """Note the process of COMMAND for `_check_left`; a full disk does not end it."""
    try:
        write_bytes(file, json.dumps(asdict(Holder.of(process))).encode())
    except OSError as error:
        log.warning("event=command-not-noted file=%s error=%r", file, reason_of(error))


def _run_child(
    start: Callable[[Interruption], "Child"],
    checkpoints: Path | None,
    sync: FolderSync | None,
    every_s: float,
) -> int:
    with Interruption(sources()) as interruption:
        word = outcome.NewWord(checkpoints) if checkpoints else None
        child = start(interruption)
        if checkpoints:
            _note_running(checkpoints / RUNNING, child.process)
        with Keeper(sync, every_s) as keeper:
            status = child.wait(lambda: keeper.lost, keeper.soon)
        ends_with = status_of(status, interruption.reason, word)
        if sync is not None:  # inside the context, so that no signal cuts the upload off
            patience_s = PATIENCE_S if interruption.reason is Reason.NONE else NOTICE_PATIENCE_S
            keeper.finish(last=child.whole, within_s=patience_s)
    return ends_with


class Keeper:
    """Sync of a folder at intervals while the program runs: a notice may be too short for one upload."""

    def __init__(self, sync: FolderSync | None, every_s: float) -> None:
        self._sync, self._every_s = sync, every_s
        self.lost = False  # another process has the run: nothing more is saved
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="folder", daemon=True)

    def soon(self) -> None:
        self._wake.set()

    def __enter__(self) -> Self:
        if self._sync is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread and a running upload; the last upload follows."""
        self._ended.set()
        self._wake.set()
        if self._sync is not None:
            self._sync.give_up()

    def finish(self, *, last: bool, within_s: float) -> None:
        """Upload the final state; raises SilentStoreError after SILENT_S, sooner than the client itself."""
        sync, failures = self._sync, list[CheckpointError]()
        assert sync is not None

        def take_over() -> None:
            self._thread.join()
            try:
                patiently(lambda: sync.up(last=last, final=True), within_s, refused=True)
            except Exception as error:  # noqa: BLE001 - any would end this thread, and nobody would know
                failures.append(as_checkpoint_error(error, f"{sync.uri}: {sync.folder} cannot be uploaded"))

        thread = threading.Thread(target=take_over, name="folder-last", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_EVERY_S)
            if thread.is_alive() and (still_s := sync.still_s()) >= SILENT_S:
                raise SilentStoreError(
                    f"{sync.uri} has not answered for {still_s:.0f} s: changes in {sync.folder} since its "
                    "last sync are on this disk alone; run it again here"
                )
        if failures:
            raise failures[0]

    def _keep(self) -> None:
        assert self._sync is not None
        pause_s = self._every_s
        while not self.lost:
            self._wake.wait(pause_s)
            if self._ended.is_set():
                return
            self._wake.clear()
            try:
                self._sync.up()
            except (IdentityError, RunLeaseError) as error:
                self.lost = True
                log.warning("event=folder-lost error=%r", str(error))
            except Exception as error:  # noqa: BLE001 - only the last upload must succeed
                if not self._ended.is_set():
                    log.warning("event=folder-not-saved error=%r", reason_of(error))
            pause_s = min(self._every_s, AGAIN_S) if self._sync.waits else self._every_s


class Child:
    """The running command in a session of its own, with all the processes that it starts."""

    def __init__(
        self, command: Sequence[str], interruption: Interruption, notice: signal.Signals, grace_s: float
    ) -> None:
        self._interruption, self._notice, self._grace_s = interruption, notice, grace_s
        self._notified_at_s: float | None = None
        self._notified: set[int] = set()
        self.whole = False  # its files are whole; a killed program may leave a half-written file
        try:
            self._process = subprocess.Popen(command, start_new_session=True)
        except OSError as error:
            raise CommandError(f"{command[0]}: cannot be run: {error.strerror}") from error
        self.process = self._process.pid

    def wait(self, lost: Callable[[], bool], left: Callable[[], None]) -> int:
        """Wait for the command. It gets the signal at a notice or if `lost`, and a kill after the grace.

        After a notice, wait also for processes that a shell leaves behind; `left` is called first.
        """
        while True:
            processes.reap(self._process.pid)
            try:
                status = self._process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                self._pass_on(lost=lost())
                continue
            self.whole = status >= 0
            if self._notified_at_s is not None:
                self._wait_for_rest(status, left)
            return status

    def _pass_on(self, *, lost: bool) -> None:
        if self._interruption.reason is Reason.NONE and not lost:
            return
        if self._notified_at_s is None:
            self._notified_at_s = time.monotonic()
            self._send(self._notice)
        elif self._grace_is_over():
            self._send(signal.SIGKILL)

    def _grace_is_over(self) -> bool:
        return self._notified_at_s is not None and time.monotonic() - self._notified_at_s >= self._grace_s

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to the command, or to its session: a kill, or SIGINT to bash."""
        with suppress(ProcessLookupError):
            # bash expects the terminal to interrupt its program too
            if number is signal.SIGKILL or (number is signal.SIGINT and self._is_bash()):
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def _is_bash(self) -> bool:
        try:
            return Path(f"/proc/{self._process.pid}/comm").read_text(encoding="ascii").strip() == "bash"
        except (OSError, ValueError):
            return False

    def _wait_for_rest(self, status: int, left: Callable[[], None]) -> None:
        """Signal each process left behind, once, and wait in the grace period without a kill."""
        rest = processes.running(self._process.pid)
        if not rest:
            return
        left()
        while rest:
            for number in set(processes.orphans(rest)) - self._notified:
                self._notified.add(number)
                with suppress(ProcessLookupError):
                    os.kill(number, self._notice)
            if self._grace_is_over():
                break
            time.sleep(LOOK_EVERY_S)
            processes.reap(self._process.pid)
            rest = processes.running(self._process.pid)
        self.whole = not rest and status != -signal.SIGKILL


def status_of(status: int, reason: Reason, word: outcome.NewWord | None) -> int:
    """Return the exit status (see exit_codes) for a command's `status` (below 0: ended by a signal)."""
    if status and word is not None and word.failed:
        return exit_codes.FAILED_FOR_GOOD
    noticed = reason is not Reason.NONE and status not in (exit_codes.USAGE, exit_codes.FAILED_FOR_GOOD)
    if noticed or (word is not None and word.ended == "stopped"):
        return exit_codes.STOPPED
    return exit_codes.of_process(status)
