"""The lease of a run in its bucket: of two processes that train one run, the second is refused.

The holder renews it every RENEW_EVERY_S. Its age is the difference of two times of the object store's own
clock, the Date of an answer and the last change, so no instance's clock counts. One that was not renewed for
TAKEN_OVER_AFTER_S belongs to a holder that is gone, and the next number may be claimed. It may only have
stood still, as a paused instance does: so a holder asks before each commit whether there is a newer number.
If so it has lost the run, and writes nothing more. The newest is never deleted: a number must not become free
again. A holder that lives may be about to end, so a start waits for it for WAIT_S.
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
from pathlib import Path
from typing import Self

from gpu_fleet import outcome
from gpu_fleet.checkpoint.store import RENEWAL, CheckpointStore, LeaseKey
from gpu_fleet.errors import CheckpointError, RunLeaseError, StoppedError, StoreError

RENEW_EVERY_S = 20.0
TAKEN_OVER_AFTER_S = 90.0  # four renewals may fail; an instance takes longer to be replaced
LOOK_EVERY_S = 2.0
WAIT_S = 150.0  # for a holder that lives: a spot notice leaves it two minutes, in which it saves
ASK_S = 10.0  # for an answer of the bucket, before something is written to a disk
RELEASED = "{}"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, for others to know whether it can still be alive."""

    host: str
    boot: str  # changes when the instance starts again; containers of one instance have the same
    process: int  # torchrun's, which outlives a restart of the ranks; else the trainer's own
    space: str = ""  # of process ids: a container has one of its own, where `process` is often 1
    begun: str = ""  # of the process, in clock ticks since the boot: a number is given to others in time

    @classmethod
    def this(cls) -> Self:
        """This run on this instance."""
        process = os.getppid() if outcome.attempt() else os.getpid()
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            space = str(Path("/proc/self/ns/pid").readlink())
        except OSError:
            boot = space = ""
        return cls(platform.node(), boot, process, space, _begun(process))

    def surely_gone(self, now: "Holder") -> bool:
        """Whether `now` need not wait: this is itself, before a restart, or a process that has ended.

        Of another boot or another space of process ids nothing is known: host names occur more than once,
        and containers in the network of their instance have its name.
        """
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
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _begun(process: int) -> str:
    """When a process began, the 22nd field of proc_pid_stat(5); empty where that is not to be seen."""
    try:
        if str(Path("/proc/self").readlink()) != str(os.getpid()):  # /proc is that of another space
            return ""
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]  # the second field, a name in parentheses, may have blanks


class RunLease:
    """Held from `acquire` to `release`; a thread renews it."""

    def __init__(
        self,
        store: CheckpointStore,
        holder: Holder,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        renew_every_s: float = RENEW_EVERY_S,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stopping` ends the wait for another holder, which takes WAIT_S at most."""
        self._store, self._holder, self._sleep, self._renew_every_s = store, holder, sleep, renew_every_s
        self._clock, self._stopping = clock, stopping
        self._waits_since: float | None = None
        self._name = ""
        self._number = 0
        self._asked_at = clock()  # when it was last seen to be ours
        self._loss: str = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    @classmethod
    def of_leader(cls, store: CheckpointStore, number: int) -> Self:
        """For another rank of the run, which writes under the lease `number` of rank 0."""
        lease = cls(store, Holder.this())
        lease._number = number
        return lease

    @property
    def number(self) -> int:
        """Of the lease that is held; 0 before `acquire`."""
        return self._number

    @property
    def lost(self) -> bool:
        """Whether another process is known to have taken the run over."""
        return bool(self._loss)

    def acquire(self, within_s: float = math.inf) -> bool:
        """Waits for another holder, which may be gone or about to end.

        False where that takes longer than `within_s` seconds: then call it again. Raises RunLeaseError if the
        holder stays for WAIT_S, counted from the first call, and StoppedError for a notice meanwhile.
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
                raise RunLeaseError(self._refusal(newest, waited_s))
            if self._clock() - begin >= within_s:
                return False
            self._sleep(LOOK_EVERY_S)
            newest = self._store.newest_lease()
        self._store.drop_leases_before(self._number)
        self._asked_at = self._clock()
        self._thread.start()
        return True

    def _claimed(self, newest: LeaseKey | None) -> bool:
        """Whether the lease was free and is now ours: of several claims at once one comes through."""
        if newest is not None and not self._is_free(newest):
            log.info("event=lease-held by=%r age_s=%.0f", str(_holder(newest)), newest.age_s)
            return False
        number = newest.number + 1 if newest else 1
        self._name = self._store.claim_lease(number, self._content()) or ""
        self._number = number if self._name else 0
        return bool(self._name)

    def _is_free(self, lease: LeaseKey) -> bool:
        holder = _holder(lease)
        gone = holder is not None and holder.surely_gone(self._holder)
        return holder is None or gone or lease.age_s >= TAKEN_OVER_AFTER_S

    def _refusal(self, lease: LeaseKey, waited_s: float) -> str:
        return (
            f"{self._in_use(lease, waited_s)}; run it again later, or choose another run.directory. A "
            f"run whose instance is gone is taken over after {TAKEN_OVER_AFTER_S:.0f} s"
        )

    def _in_use(self, lease: LeaseKey, waited_s: float) -> str:
        return (
            f"{self._store.uri} is in use by {_holder(lease) or 'another process'}, seen {lease.age_s:.0f} s "
            f"ago and waited for {waited_s:.0f} s"
        )

    def check(self) -> None:
        """Asks the bucket. Raises RunLeaseError when another process has taken the run over: this one may
        write no more.
        """
        self.raise_if_lost()
        asked_at = self._clock()
        newest = self._store.newest_lease()
        if newest is not None and newest.number > self._number:
            self._loss = (
                f"{self._store.uri} was taken over by {_holder(newest) or 'another process'}, as nothing was "
                f"heard of this one for {TAKEN_OVER_AFTER_S:.0f} s; this process saves no more"
            )
        self.raise_if_lost()
        self._asked_at = asked_at

    def check_sometimes(self) -> None:
        """The same as `check` where that was long ago; called again and again while a file goes up."""
        self.raise_if_lost()
        if self._clock() - self._asked_at >= self._renew_every_s:
            self.check()

    def check_briefly(self) -> None:
        """The same as `check` before a disk is written to, which a silent bucket does not hold up.

        Where the folder is one that several instances share, its own lock says whose it is.
        """
        asking = threading.Thread(target=self._ask, name="lease-asked", daemon=True)
        asking.start()
        asking.join(ASK_S)
        self.raise_if_lost()

    def _ask(self) -> bool:
        """Whether the lease may still be ours."""
        try:
            self.check()
        except RunLeaseError as error:
            log.error("event=lease-lost error=%r", str(error))
            return False
        except CheckpointError as error:
            log.warning("event=lease-not-asked error=%r", str(error))
        return True

    def raise_if_lost(self) -> None:
        """Raises RunLeaseError where the loss is known already."""
        if self._loss:
            raise RunLeaseError(self._loss)

    def release(self) -> None:
        """The run may be begun elsewhere at once."""
        self._closed.set()
        if not self._name or self.lost:
            return
        try:
            self._store.put_lease(self._name, RELEASED)
        except StoreError as error:  # it ends by itself
            log.warning("event=lease-not-released error=%r", str(error))
        self._name = ""

    def _content(self) -> str:
        return json.dumps(asdict(self._holder))

    def _renew(self) -> None:
        while not self._closed.wait(self._renew_every_s):
            if not self._ask():
                return
            try:
                self._store.put_lease(f"{self._name}{RENEWAL}", "")
            except StoreError as error:  # the next may go through; `check` says whether it was too late
                log.warning("event=lease-not-renewed error=%r", str(error))


def _holder(lease: LeaseKey) -> Holder | None:
    """None of a lease that was released."""
    try:
        table = json.loads(lease.content)
        return Holder(**table) if table else None
    except (ValueError, TypeError):
        return Holder("an unknown host", "", 0)
