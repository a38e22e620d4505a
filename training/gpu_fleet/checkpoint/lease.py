"""The lease of a run in its bucket: of two processes that train one run, the second is refused.

The holder renews it every RENEW_EVERY_S. Its age is the difference of two times of the object store's own
clock, the Date of an answer and the last change, so no instance's clock counts. One that was not renewed for
TAKEN_OVER_AFTER_S belongs to a holder that is gone, and the next number may be claimed; a holder of which a
newer number exists has lost the run and commits nothing more. The newest is never deleted: a number must not
become free again.
"""

import json
import logging
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
from gpu_fleet.errors import RunLeaseError, StoreError

RENEW_EVERY_S = 20.0
TAKEN_OVER_AFTER_S = 90.0  # four renewals may fail; an instance takes longer to be replaced
LOOK_EVERY_S = 2.0
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
        renew_every_s: float = RENEW_EVERY_S,
    ) -> None:
        self._store, self._holder, self._sleep, self._renew_every_s = store, holder, sleep, renew_every_s
        self._name = ""
        self._number = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def acquire(self) -> None:
        """Waits while it is not known whether the holder lives; raises RunLeaseError when it does."""
        newest = self._store.newest_lease()
        while newest is not None and not self._is_free(newest):
            log.info("event=lease-held by=%r age_s=%.0f", str(_holder(newest)), newest.age_s)
            self._sleep(LOOK_EVERY_S)
            later = self._store.newest_lease()
            if later is not None and later.changed_at != newest.changed_at and not self._is_free(later):
                raise RunLeaseError(self._refusal(later))
            newest = later
        self._number = newest.number + 1 if newest else 1
        name = self._store.claim_lease(self._number, self._content())
        if name is None:
            raise RunLeaseError(
                f"{self._store.uri}: another process has just begun this run; choose another name"
            )
        self._name = name
        self._store.drop_leases_before(self._number)
        self._thread.start()

    def _is_free(self, lease: LeaseKey) -> bool:
        holder = _holder(lease)
        gone = holder is not None and holder.surely_gone(self._holder)
        return holder is None or gone or lease.age_s >= TAKEN_OVER_AFTER_S

    def _refusal(self, lease: LeaseKey) -> str:
        return (
            f"{self._store.uri} is in use by {_holder(lease)}, seen {lease.age_s:.0f} s ago; wait for it, or "
            "choose another run.directory. A run whose instance is gone is taken over after "
            f"{TAKEN_OVER_AFTER_S:.0f} s"
        )

    def check(self) -> None:
        """Raises RunLeaseError when another process has taken the run over: this one may write no more."""
        newest = self._store.newest_lease()
        if newest is not None and newest.number > self._number:
            raise RunLeaseError(
                f"{self._store.uri} was taken over by {_holder(newest) or 'another process'}, as nothing was "
                f"heard of this one for {TAKEN_OVER_AFTER_S:.0f} s; this process saves no more"
            )

    def release(self) -> None:
        """The run may be begun elsewhere at once."""
        self._closed.set()
        if not self._name:
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
