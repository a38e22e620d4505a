"""The checkpoints of one run: their location, their schedule, save and restore."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gpu_fleet import config, instance_file, outcome, own_code
from gpu_fleet import run_identity as identities
from gpu_fleet.checkpoint import local, restore, sharded
from gpu_fleet.checkpoint.lease import Holder, RunLease
from gpu_fleet.checkpoint.saver import STATE, Saver
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.checkpoint.team import Team, of_world
from gpu_fleet.errors import CheckpointError, IdentityError
from gpu_fleet.files import write_bytes
from gpu_fleet.run_identity import Identity
from gpu_fleet.state import (
    State,
    apply,
    apply_tensors,
    apply_weights,
    capture,
    capture_tensors,
    plain_optimizer,
)
from gpu_fleet.stopping.tries import Tries
from gpu_fleet.storage.object_store import at_start
from gpu_fleet.world import World, ranks_per_replica

FOLDER = "checkpoints"
MEETINGS_PER_TIMEOUT = 4
log = logging.getLogger(__name__)


def location(settings: config.Config) -> str:
    """Return the URI to which the run's checkpoints are uploaded; empty for none.

    It is checkpoint.uri, or else the checkpoint_uri of the instance, followed by owner and id of the run.
    """
    return instance_file.place_of_checkpoints(
        settings.checkpoint.uri, settings.run.owner, Path(settings.run.directory)
    )


def former_location(settings: config.Config) -> str:
    """Return the URI of earlier trainers, which had no owner in it; empty if checkpoint.uri is set."""
    shared = str(instance_file.table().get("checkpoint_uri", "")).rstrip("/")
    return f"{shared}/{Path(settings.run.directory).name}" if shared and not settings.checkpoint.uri else ""


def origin(settings: config.Config) -> config.Config | None:
    """Return the settings with the locations of the run from which a branch begins; None if not a branch."""
    if not settings.run.branch_of:
        return None
    run = settings.run.model_copy(update={"directory": settings.run.branch_of, "branch_of": ""})
    uri = (
        config.LOCAL_ONLY if settings.checkpoint.uri == config.LOCAL_ONLY else settings.checkpoint.branch_uri
    )
    saved = settings.checkpoint.model_copy(update={"uri": uri})
    return settings.model_copy(update={"run": run, "checkpoint": saved})


def fetch_code(settings: config.Config) -> None:
    """Unpack the user's files of the newest checkpoint into the run directory, unless it has such files.

    So a run can resume where only its configuration is present. Raises CheckpointError.
    """
    folder = Path(settings.run.directory)
    if (folder / own_code.FOLDER).exists() or not own_code.is_named(settings):
        return
    uri = location(settings)
    store = CheckpointStore(uri, settings.checkpoint.endpoint) if uri else None
    for step in reversed(at_start(store.steps) if store else []):
        assert store is not None
        if (packed := at_start(partial(store.read, step, own_code.ARCHIVE))) is not None:
            own_code.unpack(packed, folder)
            log.info("event=code-fetched step=%d uri=%s", step, uri)
        return


class Checkpoints:
    """Save and restore of one run. The constructor checks, before the first step, that it can write."""

    def __init__(
        self,
        settings: config.Config,
        where: World,
        samples: int,
        identity: Identity,
        code: bytes = b"",
        *,
        clock: Callable[[], float] = time.monotonic,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take the run and check the locations; raises TrainingError.

        `stopping` ends the wait for a run that another process holds.
        """
        self._settings, self._where, self._samples, self._clock = settings, where, samples, clock
        self._identity, self._code = identity, code
        self._root = Path(settings.run.directory) / FOLDER
        uri = location(settings)
        self._store = (
            where.together(lambda: CheckpointStore(uri, settings.checkpoint.endpoint)) if uri else None
        )
        self._lock: local.FolderLock | None = None  # only rank 0 holds lock and lease
        self._lease: RunLease | None = None
        if self._store is not None:
            self._lease = RunLease(self._store, Holder.this(), stopping=stopping)
        try:
            self._open(where)
        except BaseException:
            self.release()
            raise
        self._saved_step: int | None = None
        self._saved_at = clock()
        self.location = self._store.uri if self._store else str(self._root)

    def _open(self, where: World) -> None:
        where.on_first(self._check_writable)
        self._wait_for_lease()
        number = where.on_first(self._begin)
        if self._store is not None and not where.leads:
            self._lease = RunLease.of_leader(self._store, number)
        self._layout = local.WHOLE if self._settings.parallel.strategy == "ddp" else local.SHARDED
        self._shared = self._layout == local.WHOLE or self._is_shared()
        self._saver = self._opened_saver()

    def _check_writable(self) -> None:
        """Lock the run on this disk, and check that disk and bucket can be written."""
        with self._named():
            self._root.mkdir(parents=True, exist_ok=True)
            self._lock = local.lock(self._root)
            write_bytes(self._root / "write-check", b"")
            (self._root / "write-check").unlink()
            if self._store is not None:
                at_start(self._store.check_writable)

    def _wait_for_lease(self) -> None:
        """Take the lease in the bucket; the ranks meet again and again meanwhile, as in `flush`."""
        within_s = self._settings.parallel.timeout_s / MEETINGS_PER_TIMEOUT
        while not self._where.on_first(partial(self._acquired, within_s)):
            pass

    def _acquired(self, within_s: float) -> bool:
        return self._lease is None or at_start(partial(self._lease.acquire, within_s))

    def _begin(self) -> int:
        """Prepare the folder of the run. Return the number of its lease; 0 without a lease."""
        assert self._lock is not None
        with self._named():
            self._lock.mark()  # only now: without locks, a refused process must leave the holder's mark
            local.sweep(self._root)
            outcome.remove_failure(self._root.parent)
        return self._lease.number if self._lease is not None else 0

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn an OSError into a CheckpointError about a folder that cannot be written."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"run.directory: {self._root} cannot be written: {error.strerror}"
            ) from error

    def _opened_saver(self) -> Saver | None:
        """Return the saver: rank 0 writes a whole model, every rank its part of a sharded one."""
        where = self._where
        if self._layout == local.WHOLE:
            return self._saver_of(None) if where.leads else None
        return self._saver_of(of_world(where.rank, where.size, self._settings.parallel.timeout_s))

    def _saver_of(self, team: Team | None) -> Saver:
        keep, lease, lock = self._settings.checkpoint.keep, self._lease, self._lock
        return Saver(
            self._root, self._store, keep, lease, team, lock=lock, shared=self._shared, code=self._code
        )

    def _is_shared(self) -> bool:
        """Return whether all ranks see one folder; otherwise the bucket joins the parts of a checkpoint.

        Raises CheckpointError if there is no bucket either.
        """
        mark = self._root / "shared-check"
        self._where.on_first(mark.touch)
        seen = all(self._where.gather(mark.exists()))
        self._where.on_first(mark.unlink)
        if not seen and self._store is None:
            raise CheckpointError(
                f"run.directory: {self._root} is not the same folder on all instances, where strategy "
                f"{self._settings.parallel.strategy!r} brings its parts together; set checkpoint.uri, or use "
                "a shared file system, or ddp"
            )
        if not seen:
            self._where.together(lambda: self._check_own_disk() if self._where.local_rank == 0 else None)
        return seen

    def _check_own_disk(self) -> None:
        with self._named():
            self._root.mkdir(parents=True, exist_ok=True)
            if not self._where.leads:
                local.sweep(self._root)

    def restore(self, state: State) -> int | None:
        """Load the newest whole checkpoint into `state`. Return its step; None if there is none.

        Without checkpoint.resume a run begins anew, but it resumes after a restart by torchrun.
        """
        if not self._settings.checkpoint.resume and not outcome.restarted():
            restore.begin_anew(self._where, self._root, self._store)
            return None
        manifest = restore.newest_whole(self._where, self._root, self._store)
        if manifest is None:
            self._where.on_first(self._check_former_location)
            self._branch(state)
            return None
        self._where.together(lambda: self._check_same_run(manifest))
        folder = self._root / local.folder_name(manifest.step)
        self._where.together(lambda: self._apply(state, folder))
        self._saved_step = state.step
        self._where.on_first(lambda: self._saver.upload_if_missing(manifest) if self._saver else None)
        log.info("event=resumed step=%d position=%d folder=%s", state.step, state.position, folder)
        return state.step

    def _check_same_run(self, manifest: local.Manifest) -> None:
        """Raise IdentityError for a checkpoint of another run."""
        restore.check_fits(manifest, self._settings.model.name, self._layout)
        saved = manifest.identity or identities.of_configuration(manifest.config)
        allowed = [*self._settings.checkpoint.allow]
        if manifest.config and self._has_micro_batches_of(manifest):
            allowed.append("run.accumulation")
        identities.check(saved, self._identity, allowed, manifest.step, str(self._root))
        if self._where.leads:
            identities.say_not_compared(saved, self._identity, manifest.step)

    def _has_micro_batches_of(self, manifest: local.Manifest) -> bool:
        """Return whether ranks x accumulation is as saved, as on half the ranks with twice as many each."""
        before, now = config.from_table(manifest.config, "checkpoint"), self._settings
        counts = {
            ranks // ranks_per_replica(settings.parallel) * settings.run.accumulation
            for settings, ranks in ((before, manifest.world_size), (now, self._where.size))
        }
        return len(counts) == 1

    def _check_former_location(self) -> None:
        """Raise IdentityError if an older trainer has begun this run: it must not silently begin anew."""
        former = former_location(self._settings)
        if self._store is None or not former:
            return
        if steps := CheckpointStore(former, self._settings.checkpoint.endpoint).steps():
            raise IdentityError(
                f"{former} has checkpoints of an earlier trainer, up to step {steps[-1]}; they now belong "
                f"into {self._store.uri}: set checkpoint.uri = {former} to go on with them, or choose "
                "another run.directory"
            )

    def _branch(self, state: State) -> None:
        """Load the first weights of a branch from the newest checkpoint of the run from which it begins."""
        before = origin(self._settings)
        if before is None:
            return
        root, uri = Path(before.run.directory) / FOLDER, location(before)
        store = (
            self._where.together(lambda: CheckpointStore(uri, before.checkpoint.endpoint)) if uri else None
        )
        newest = restore.newest_whole(self._where, root, store)
        manifest = self._where.together(lambda: self._checked_origin(newest, before.run.directory))
        folder = root / local.folder_name(manifest.step)
        self._where.together(lambda: self._take_weights(state, folder))
        log.info("event=branched from_step=%d folder=%s", manifest.step, folder)

    def _checked_origin(self, manifest: local.Manifest | None, directory: str) -> local.Manifest:
        """Return the checkpoint of another run to begin from; raises IdentityError if there is none."""
        if manifest is None:
            raise IdentityError(f"run.branch_of = {directory!r}: has no checkpoint to begin from")
        restore.check_fits(manifest, self._settings.model.name, self._layout)
        return manifest

    def _take_weights(self, state: State, folder: Path) -> None:
        if self._layout == local.WHOLE:
            apply_weights(state, restore.read_state(folder / STATE)["model"])
        else:
            sharded.load_weights(folder, state.model, self._where.control)

    def _apply(self, state: State, folder: Path) -> None:
        saved = restore.read_state(folder / STATE)
        if self._layout == local.WHOLE:
            apply_tensors(state, saved)
        else:
            sharded.load(folder, state.model, state.optimizer, state.chosen, self._where.control)
        apply(state, saved, self._settings, self._samples, self._where)

    def begin_try(self, tries: Tries, step: int) -> None:
        """Count this try of the run, on all ranks; raises StandstillError if there were too many."""
        self._where.together(lambda: tries.begin(step, self._store, leads=self._where.leads))
        if self._saver is not None and self._where.leads and not self._settings.checkpoint.resume:
            self._saver.committed = tries.end  # each try begins at step 0: a checkpoint clears the count

    def due_by_time(self) -> bool:
        """Return whether this rank asks for a checkpoint now; the ranks agree before they save one."""
        if not self._where.leads:
            return False
        if self._lease is not None and self._lease.lost:  # the save then fails the run, on all ranks
            return True
        every_s = self._settings.checkpoint.every_s
        return every_s > 0 and self._clock() - self._saved_at >= every_s

    def due_by_step(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step`, by the same rule on every rank."""
        every = self._settings.checkpoint.every_steps
        return every > 0 and step % every == 0

    def save(self, state: State) -> float:
        """Begin a checkpoint on all ranks. Return the seconds that the training stood still for it.

        Nothing happens if this step is saved already. Raises CheckpointError, on all ranks, if an earlier
        save has failed or another process has the run.
        """
        if self._saved_step == state.step:
            return 0.0
        begin = time.perf_counter()
        self._where.together(self._check_earlier)
        saved = capture(state, self._settings, self._samples, self._where)
        written = self._begin_parts(state) if self._layout == local.SHARDED else None
        if self._layout == local.WHOLE and self._where.leads:
            saved |= capture_tensors(state, self._settings)
        if self._saver is not None:
            self._saver.save(self._manifest(state), saved if self._where.leads else {}, written)
        self._saved_step, self._saved_at = state.step, self._clock()
        return time.perf_counter() - begin

    def _check_earlier(self) -> None:
        if self._lease is not None:
            self._lease.raise_if_lost()
        if self._saver is not None:
            self._saver.wait()

    def check_readable(self, state: State) -> None:
        """Raise UnreadableError, on all ranks, for a state that a checkpoint could not give back.

        It is called after the first step, which makes the optimizer's state: not after hours.
        """
        self._where.together(lambda: plain_optimizer(state, self._settings))

    def before_change(self) -> float:
        """Wait, before an update, for the copy of the tensors that it changes. Return the seconds."""
        if self._saver is None:
            return 0.0
        begin = time.perf_counter()
        self._saver.before_change()
        return time.perf_counter() - begin

    def _begin_parts(self, state: State) -> Callable[[], object]:
        """Wait for the save before, and begin to write this rank's part into the stage of its instance."""
        stage = self._where.together(lambda: self._open_stage(state.step))
        self._where.barrier()
        return sharded.begin_save(stage, state.model, state.optimizer, self._where.saving)

    def _open_stage(self, step: int) -> Path:
        assert self._saver is not None
        self._saver.wait()
        where = self._where
        if where.leads or (where.local_rank == 0 and not self._shared):
            return local.open_stage(self._root, step)
        return local.stage(self._root, step)

    def _manifest(self, state: State) -> local.Manifest:
        described = self._settings.model_dump(mode="json")
        name, size = self._settings.model.name, self._where.size
        return local.Manifest(
            state.step, name, size, layout=self._layout, config=described, identity=self._identity
        )

    def wait(self) -> None:
        """Wait until the last save is on this instance's disk; raises CheckpointError."""
        if self._saver is not None:
            self._saver.wait()

    def flush(self) -> None:
        """Wait, on every rank, until the last save is on disk and uploaded; raises CheckpointError.

        The ranks meet again and again meanwhile, so that no collective reaches its timeout.
        """
        within_s = self._settings.parallel.timeout_s / MEETINGS_PER_TIMEOUT
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
        """Check lease and lock, before result and finished model are written; rank 0 asks for all.

        Raises RunLeaseError if another process has taken the run over.
        """
        self._where.on_first(self._ask_held)

    def _ask_held(self) -> None:
        if self._lease is not None:
            self._lease.check_briefly()
        if self._lock is not None:
            self._lock.check()

    def abandon(self) -> None:
        """Finish a save that has begun, after the run has failed for another reason."""
        try:
            self._closed()
        except CheckpointError as error:
            log.error("event=checkpoint-lost error=%r", str(error))

    def release(self) -> None:
        """Release lease and lock to other processes; this process must not write any more."""
        if self._lease is not None:
            self._lease.release()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
