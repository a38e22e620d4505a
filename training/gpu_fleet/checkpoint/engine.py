"""The engine of `train` (manager.py) and `Run`: claim, newest checkpoint, saves, uploads and end of a run."""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from gpu_fleet.checkpoint import local, names
from gpu_fleet.checkpoint.lease import Holder, RunClaim, RunLease
from gpu_fleet.checkpoint.saver import Saver
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.checkpoint.uploader import Team
from gpu_fleet.core import outcome
from gpu_fleet.core.containers import read_state
from gpu_fleet.core.errors import CheckpointError, IdentityError, StoreError
from gpu_fleet.core.files import on_disk, write_bytes
from gpu_fleet.core.world import World, store_of_world
from gpu_fleet.storage.object_store import at_start, patiently

MEETINGS_PER_TIMEOUT = 4
log = logging.getLogger(__name__)


class CheckpointEngine:
    """Checkpoints of one run on all its ranks. The constructor checks that they can be written."""

    def __init__(
        self,
        where: World,
        directory: Path,
        store: CheckpointStore | None,
        *,
        keep: int,
        every_s: float,
        timeout_s: float,
        layout: str = local.WHOLE,
        code: bytes = b"",
        clock: Callable[[], float] = time.monotonic,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Claim the run in `directory` and in `store`; raises TrainingError on all ranks.

        The last `keep` checkpoints stay, one each `every_s` (0: none by time). A rank waits for another up to
        `timeout_s`. `code` is the archive of the user's files; `stopping` ends the wait for another holder.
        """
        self._where, self._root, self._store = where, directory / names.CHECKPOINTS, store
        self._keep, self._every_s, self._timeout_s = keep, every_s, timeout_s
        self._layout, self._code, self._clock = layout, code, clock
        self._saver: Saver | None = None
        self._saved_step: int | None = None
        self._saved_at = clock()
        self.location = store.uri if store else str(self._root)
        self._claim = RunClaim.of(store, stopping)
        try:
            self._open()
        except BaseException:
            self.release()
            raise

    def _open(self) -> None:
        where = self._where
        where.on_first(self._lock)
        within_s = self._timeout_s / MEETINGS_PER_TIMEOUT
        while not where.on_first(partial(self._claim.acquire, within_s)):  # so no collective times out
            pass
        number = where.on_first(self._begin)
        if self._store is not None and not where.leads:
            self._claim = RunClaim(RunLease(self._store, Holder.this(), number=number))
        whole = self._layout == local.WHOLE
        self._shared = whole or self._is_shared()
        if whole and not where.leads:
            return
        team = None if whole else Team(where.rank, where.size, store_of_world(), self._timeout_s)
        self._saver = Saver(
            self._root, self._store, self._keep, self._claim, team, shared=self._shared, code=self._code
        )

    def _lock(self) -> None:
        self._claim.lock(self._root)
        with on_disk(self._root):
            write_bytes(self._root / "write-check", b"")
            (self._root / "write-check").unlink()
        if self._store is not None:
            at_start(self._store.check_writable)

    def _begin(self) -> int:
        """Prepare the folder of the run. Return the number of its lease; 0 without a lease."""
        self._claim.mark()
        with on_disk(self._root):
            local.sweep(self._root)
            outcome.remove(self._root.parent, outcome.FAILURE)
        return self._claim.lease.number

    def _is_shared(self) -> bool:
        """Return whether all ranks see one folder; else a bucket must join the parts of a checkpoint."""
        mark = self._root / "shared-check"
        self._where.on_first(mark.touch)
        seen = all(self._where.gather(mark.exists()))
        self._where.on_first(mark.unlink)
        if not seen and self._store is None:
            raise CheckpointError(
                f"run.directory: {self._root} is not the same folder on all instances, where a sharded "
                "checkpoint brings its parts together; set checkpoint.uri, or use a shared file system, or "
                "parallel.strategy = 'ddp'"
            )
        if not seen:
            self._where.together(self._check_own_disk)
        return seen

    def _check_own_disk(self) -> None:
        if self._where.local_rank == 0 and not self._where.leads:
            with on_disk(self._root):
                self._root.mkdir(parents=True, exist_ok=True)
                local.sweep(self._root)

    def newest(self) -> local.Manifest | None:
        return newest_whole(self._where, self._root, self._store)

    def begin_anew(self) -> None:
        """Rename an earlier run's checkpoints, which a later resume would take; refuse those of a bucket."""
        self._where.on_first(lambda: self._leave_earlier(self._store))
        self._where.together(lambda: self._leave_earlier(None) if self._where.local_rank == 0 else None)

    def _leave_earlier(self, store: CheckpointStore | None) -> None:
        if store is not None and (uploaded := at_start(store.steps)):
            raise IdentityError(
                f"checkpoint.resume = false: {store.uri} has checkpoints of an earlier run, up to step "
                f"{uploaded[-1]}, which would count as this run's; choose another checkpoint.uri or "
                "run.directory"
            )
        _set_aside(self._root, local.steps(self._root), "earlier")

    def resume(
        self,
        manifest: local.Manifest,
        check: Callable[[local.Manifest], None],
        apply: Callable[[Any, Path], None],
    ) -> None:
        """Check a checkpoint on all ranks, `apply` its state and its folder, and upload it if missing."""
        folder = self._root / names.step_name(manifest.step)
        self._where.together(lambda: check(manifest))
        self._where.together(lambda: apply(read_state(folder / names.STATE), folder))
        self._saved_step = manifest.step
        self._where.on_first(lambda: self._upload_if_missing(manifest))
        log.info("event=resumed step=%d folder=%s", manifest.step, folder)

    def _upload_if_missing(self, manifest: local.Manifest) -> None:
        if self._saver and self._store and manifest.step not in at_start(self._store.steps):
            self._saver.upload(manifest)

    def due_by_time(self) -> bool:
        """Return whether this rank asks for a checkpoint now; the ranks agree before they save one."""
        if not self._where.leads:
            return False
        lost = bool(self._claim.lease.lost)  # the save fails it on all ranks
        return lost or 0 < self._every_s <= self._clock() - self._saved_at

    def is_saved(self, step: int) -> bool:
        return self._saved_step == step

    def check_earlier(self) -> None:
        self._claim.lease.raise_if_lost()
        self.wait()

    def begin_save(
        self, manifest: local.Manifest, state: Any, written: Callable[[], object] | None = None
    ) -> None:
        """Begin a checkpoint, on all ranks; see Saver.save. The `state` of rank 0 is written."""
        if self._saver is not None:
            self._saver.save(manifest, state if self._where.leads else {}, written)
        self._saved_step, self._saved_at = manifest.step, self._clock()

    def open_stage(self, step: int) -> Path:
        """Open the folder into which all ranks of this instance write; waits for the save before."""
        self.wait()
        if self._where.leads or (self._where.local_rank == 0 and not self._shared):
            return local.open_stage(self._root, step)
        return names.staged(self._root, step)

    def before_change(self) -> float:
        return self._saver.snapshot.before_change() if self._saver is not None else 0.0

    def wait(self) -> None:
        if self._saver is not None:
            self._saver.wait()

    def flush(self) -> None:
        """Wait, on every rank, until the last save is on disk and in the bucket; raises CheckpointError."""
        within_s = self._timeout_s / MEETINGS_PER_TIMEOUT  # so no collective times out
        while not all(self._where.gather(self._where.together(lambda: self._closed(within_s)))):
            log.info("event=flushing uri=%s", self.location)

    def _closed(self, within_s: float | None = None) -> bool:
        if self._saver is None:
            return True
        try:
            closed = self._saver.close(within_s)
        except CheckpointError:
            self._saver = None
            raise
        if closed:
            self._saver = None
        return closed

    def check_held(self) -> None:
        """Check the claim before result and model are written; raises RunLeaseError."""
        self._where.on_first(self._claim.check)

    def conclude(self, result: outcome.Outcome) -> None:
        """Write result.json, the last file, once per instance: each has a `launch` that reads it."""
        self.check_held()
        directory, first_here = self._root.parent, self._where.local_rank == 0
        self._where.together(lambda: outcome.write(directory, result) if first_here else None)

    def abandon(self) -> None:
        """Finish a save that has begun, after the run has failed for another reason."""
        try:
            self._closed()
        except CheckpointError as error:
            log.error("event=checkpoint-lost error=%r", str(error))

    def release(self) -> None:
        self._claim.release()


def newest_whole(where: World, root: Path, store: CheckpointStore | None) -> local.Manifest | None:
    """Fetch the newest checkpoint that is whole on every instance; raises CheckpointError if none is."""
    damaged: set[int] = set()
    while True:
        here = where.together(lambda: _steps_here(where, root, store))
        held = [steps for steps in where.gather(here) if steps is not None]
        common = set.intersection(*held) - damaged
        if not common and damaged:
            raise CheckpointError(f"{root}: none of the checkpoints {sorted(damaged)} is whole")
        if not common and any(held):
            raise CheckpointError(
                f"{root}: {len(held)} instances have no checkpoint in common; set checkpoint.uri, or a "
                "run.directory on a file system that all of them share"
            )
        if not common:
            return None
        step = max(common)
        if _brought(where, step, root, store):
            where.on_first(lambda: _set_aside(root, damaged, "damaged"))
            return local.read_manifest(root / names.step_name(step))
        damaged.add(step)


def _brought(where: World, step: int, root: Path, store: CheckpointStore | None) -> bool:
    """Return whether every instance has a verified copy; rank 0 is first, as all may share `root`."""
    first = where.on_first(lambda: _bring(step, root, store))
    spared = where.local_rank != 0 or where.leads
    return first and all(where.gather(where.together(lambda: spared or _bring(step, root, store))))


def _set_aside(root: Path, steps: Iterable[int], why: str) -> None:
    for step in set(steps) & set(local.steps(root)):
        local.set_aside(root / names.step_name(step), why)


def _steps_here(where: World, root: Path, store: CheckpointStore | None) -> set[int] | None:
    """Return the checkpoints that this instance can reach; None on all but one of its ranks."""
    if where.local_rank != 0:
        return None
    return set(local.steps(root)) | (set(at_start(store.steps)) if store else set())


def _bring(step: int, root: Path, store: CheckpointStore | None) -> bool:
    """Return whether a verified copy is in `root`; a silent store raises StoreError: it is no damage."""
    folder = root / names.step_name(step)
    if folder.exists() and _is_whole(step, lambda: local.verify(folder)):
        return True
    return store is not None and _is_whole(step, lambda: patiently(lambda: store.download(step, root)))


def _is_whole(step: int, verified: Callable[[], object]) -> bool:
    try:
        verified()
    except StoreError:
        raise
    except CheckpointError as error:
        log.warning("event=checkpoint-damaged step=%d error=%r", step, str(error))
        return False
    return True
