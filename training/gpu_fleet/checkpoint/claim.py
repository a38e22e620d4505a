"""The claim on a run: the lock of its folder on this disk, and its lease in the bucket.

One process takes first the lock, then the lease, and last the mark in the lock file, as a refused process
leaves the folder to its holder. The holder asks before each write: RunLeaseError once another process has it.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from gpu_fleet.checkpoint import local
from gpu_fleet.checkpoint.lease import Holder, NoLease, RunLease
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.files import on_disk
from gpu_fleet.storage.object_store import at_start


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
