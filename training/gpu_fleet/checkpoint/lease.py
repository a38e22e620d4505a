"""The claim on a run, of which the second process is refused: a lock of its folder, a lease in its bucket.

A process takes first the lock, then the lease, and last the mark in the lock file, as a refused process
leaves the folder to its holder. The holder renews the lease every RENEW_EVERY_S. Its age is the difference of
two times of the object store's clock. If it was not renewed for TAKEN_OVER_AFTER_S, its holder counts as
gone, and another process may claim the next number. The holder may only have been paused, so before each
commit it checks for a newer number, and then writes nothing more. The newest lease is never deleted, so that
no number is used twice.
"""

import json
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Self

from gpu_fleet.checkpoint import local
from gpu_fleet.checkpoint.names import RENEWAL
from gpu_fleet.checkpoint.store import CheckpointStore, LeaseKey
from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, RunLeaseError, StoppedError, StoreError
from gpu_fleet.core.files import on_disk
from gpu_fleet.core.processes import process_of
from gpu_fleet.storage.object_store import at_start

RENEW_EVERY_S = 20.0
TAKEN_OVER_AFTER_S = 90.0  # four renewals may fail; the replacement of an instance takes longer
LOOK_EVERY_S = 2.0
WAIT_S = 150.0  # longest wait for a live holder: after a spot notice it has two minutes to save
ASK_S = 10.0  # longest wait for an answer of the bucket before a write to a disk
RELEASED = "{}"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """Holder of a lease, described so that others can find out whether it may still be alive."""

    host: str
    boot: str  # boot id of the instance; the same in all its containers
    process: int  # id of torchrun, which outlives a restart of the ranks; else of the trainer itself
    space: str = ""  # namespace of process ids: a container has its own, where `process` is often 1
    begun: str = ""  # start of the process in clock ticks since boot: the kernel reuses process ids

    @classmethod
    def this(cls) -> Self:
        return cls.of(os.getppid() if outcome.attempt() else os.getpid())

    @classmethod
    def of(cls, process: int) -> Self:
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            space = str(Path("/proc/self/ns/pid").readlink())
        except OSError:
            boot = space = ""
        return cls(platform.node(), boot, process, space, _begun(process))

    def surely_gone(self, now: "Holder") -> bool:
        """Return whether it is `now` before a restart, or its process on this host has surely ended."""
        known = now.boot and now.space
        if not known or (self.host, self.boot, self.space) != (now.host, now.boot, now.space):
            return False
        if self.process == now.process or not _runs(self.process):
            return True
        begun = _begun(self.process)
        return bool(self.begun and begun) and self.begun != begun

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _begun(process: int) -> str:
    """Return the start time of a process; empty if it is not visible."""
    try:
        is_ours = str(Path("/proc/self").readlink()) == str(os.getpid())  # else of another namespace
    except OSError:
        return ""
    seen = process_of(process) if is_ours else None
    return seen.begun if seen else ""


class RunLease:
    """Lease of a run, held from `acquire` to `release`; a thread renews it."""

    def __init__(
        self,
        store: CheckpointStore,
        holder: Holder,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        renew_every_s: float = RENEW_EVERY_S,
        stopping: Callable[[], bool] = lambda: False,
        number: int = 0,
    ) -> None:
        """Prepare the lease; `stopping` ends the wait for a holder. `number` is that of rank 0 on others."""
        self._store, self._holder, self._sleep, self._renew_every_s = store, holder, sleep, renew_every_s
        self._clock, self._stopping = clock, stopping
        self._waits_since: float | None = None
        self._name = ""
        self.number = number  # of the lease that is held; 0 before `acquire`
        self._asked_at = clock()  # when the bucket last showed the lease as ours
        self.lost = ""  # why, once another process is known to have taken the run over
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def acquire(self, within_s: float = math.inf) -> bool:
        """Wait up to `within_s` for the holder. Return whether the lease is ours; else call it again.

        Raises RunLeaseError if the holder stays for WAIT_S, and StoppedError for a notice during the wait.
        """
        begin = self._clock()
        if self._waits_since is None:
            self._waits_since = begin
        newest = self._store.newest_lease()
        while not self._claimed(newest):
            waited_s = self._clock() - self._waits_since
            if newest is not None and self._stopping():
                raise StoppedError(f"stopped before the first step: {self._in_use(newest, waited_s)}")
            if newest is not None and waited_s >= WAIT_S:
                raise RunLeaseError(
                    f"{self._in_use(newest, waited_s)}; run it again later, or choose another run.directory. "
                    f"A run whose instance is gone is taken over after {TAKEN_OVER_AFTER_S:.0f} s"
                )
            if self._clock() - begin >= within_s:
                return False
            self._sleep(LOOK_EVERY_S)
            newest = self._store.newest_lease()
        self._store.drop_leases_before(self.number)
        self._asked_at = self._clock()
        self._thread.start()
        return True

    def _claimed(self, newest: LeaseKey | None) -> bool:
        """Return whether the lease was free and is now ours; only one of several claims at once succeeds."""
        holder = newest and _holder(newest)
        if newest and holder and newest.age_s < TAKEN_OVER_AFTER_S and not holder.surely_gone(self._holder):
            log.info("event=lease-held by=%r age_s=%.0f", str(holder), newest.age_s)
            return False
        number = newest.number + 1 if newest else 1
        self._name = self._store.claim_lease(number, json.dumps(asdict(self._holder))) or ""
        self.number = number if self._name else 0
        return bool(self._name)

    def _in_use(self, lease: LeaseKey, waited_s: float) -> str:
        return (
            f"{self._store.uri} is in use by {_holder(lease) or 'another process'}, seen {lease.age_s:.0f} s "
            f"ago and waited for {waited_s:.0f} s"
        )

    def check(self) -> None:
        """Ask the bucket; raises RunLeaseError if another process has the run: this one writes no more."""
        self.raise_if_lost()
        asked_at = self._clock()
        newest = self._store.newest_lease()
        if newest is not None and newest.number > self.number:
            self.lost = (
                f"{self._store.uri} was taken over by {_holder(newest) or 'another process'}, as nothing was "
                f"heard of this one for {TAKEN_OVER_AFTER_S:.0f} s; this process saves no more"
            )
        self.raise_if_lost()
        self._asked_at = asked_at

    def check_sometimes(self) -> None:
        """Run `check` if the last one was long ago; for repeated calls during an upload."""
        self.raise_if_lost()
        if self._clock() - self._asked_at >= self._renew_every_s:
            self.check()

    def check_briefly(self) -> None:
        """Run `check` before a write to a disk, but wait only ASK_S for a silent bucket."""
        asking = threading.Thread(target=self._ask, name="lease-asked", daemon=True)
        asking.start()
        asking.join(ASK_S)
        self.raise_if_lost()

    def _ask(self) -> bool:
        try:
            self.check()
        except RunLeaseError as error:
            log.error("event=lease-lost error=%r", str(error))
            return False
        except CheckpointError as error:
            log.warning("event=lease-not-asked error=%r", str(error))
        return True

    def raise_if_lost(self) -> None:
        if self.lost:
            raise RunLeaseError(self.lost)

    def release(self) -> None:
        self._closed.set()
        if not self._name or self.lost:
            return
        try:
            self._store.put_lease(self._name, RELEASED)
        except StoreError as error:  # the lease expires without renewals
            log.warning("event=lease-not-released error=%r", str(error))
        self._name = ""

    def _renew(self) -> None:
        while not self._closed.wait(self._renew_every_s):
            if not self._ask():
                return
            try:
                self._store.put_lease(f"{self._name}{RENEWAL}", "")
            except StoreError as error:  # the next may succeed; `check` shows whether it was too late
                log.warning("event=lease-not-renewed error=%r", str(error))


class NoLease:
    """Lease of a run without a bucket: nobody else can take the run, so every answer is known."""

    number, lost = 0, ""

    def acquire(self, within_s: float = math.inf) -> bool:  # noqa: ARG002 - as RunLease.acquire
        return True

    def raise_if_lost(self) -> None:
        pass

    check = check_briefly = check_sometimes = release = raise_if_lost


def _holder(lease: LeaseKey) -> Holder | None:
    """Return the holder of a lease; None if the lease was released."""
    try:
        table = json.loads(lease.content)
        return Holder(**table) if table else None
    except (ValueError, TypeError):
        return Holder("an unknown host", "", 0)


class RunClaim:
    """Claim of this process on a folder, on its place in a bucket, or on both."""

    def __init__(self, lease: RunLease | None = None, lock: local.FolderLock | None = None) -> None:
        """Wrap a lease and a lock that are held already; without them, every check passes."""
        self.lease: RunLease | NoLease = lease or NoLease()
        self._lock = lock

    @classmethod
    def of(cls, store: CheckpointStore | None, stopping: Callable[[], bool] = lambda: False) -> Self:
        """Return a claim that is not taken yet; `stopping` ends the wait for another holder."""
        return cls(RunLease(store, Holder.this(), stopping=stopping) if store is not None else None)

    def take(self, folder: Path) -> None:
        self.lock(folder)
        self.acquire()
        self.mark()

    def lock(self, folder: Path) -> None:
        """Lock the folder; raises CheckpointError if another process has it, or if it cannot be written."""
        with on_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = local.lock(folder)

    def acquire(self, within_s: float = math.inf) -> bool:
        return at_start(partial(self.lease.acquire, within_s))

    def mark(self) -> None:
        if self._lock is not None:
            with on_disk(self._lock.root):
                self._lock.mark()

    def check(self) -> None:
        """Ask the bucket, for some seconds, and the folder, right before a write to the disk."""
        self.lease.check_briefly()
        self.check_folder()

    def check_folder(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def release(self) -> None:
        self.lease.release()
        if self._lock is not None:
            self._lock.close()
