"""The checkpoints of a run of a configuration: their location, and the State that they save and restore."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gpu_fleet.checkpoint import local, names, sharded
from gpu_fleet.checkpoint import run_identity as identities
from gpu_fleet.checkpoint.engine import CheckpointEngine, newest_whole
from gpu_fleet.checkpoint.run_identity import Identity
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core import config, instance_file, outcome, user_code
from gpu_fleet.core.containers import read_state
from gpu_fleet.core.errors import IdentityError
from gpu_fleet.core.world import World, ranks_per_replica
from gpu_fleet.preemption.tries import Tries
from gpu_fleet.step.state import State, apply, apply_tensors, apply_weights, capture, capture_tensors
from gpu_fleet.storage.object_store import at_start

log = logging.getLogger(__name__)


def location(settings: config.Config) -> str:
    """Return the URI to which the run's checkpoints are uploaded; empty for none."""
    run = settings.run
    return instance_file.place_of_checkpoints(settings.checkpoint.uri, run.owner, Path(run.directory))


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
    """Unpack the user's files of the newest checkpoint into the run directory, unless it has such files."""
    folder = Path(settings.run.directory)
    if (folder / user_code.FOLDER).exists() or not any(map(user_code.is_own, config.names_of_code(settings))):
        return
    uri = location(settings)
    store = _store(settings, uri)
    for step in reversed(at_start(store.steps) if store else []):
        assert store is not None
        if (packed := at_start(partial(store.read, step, user_code.ARCHIVE))) is not None:
            user_code.unpack(packed, folder)
            log.info("event=code-fetched step=%d uri=%s", step, uri)
        return


class Checkpoints(CheckpointEngine):
    """Checkpoints of a run of a configuration: its State, saved and restored by the engine."""

    def __init__(
        self,
        settings: config.Config,
        where: World,
        identity: Identity,
        code: bytes = b"",
        *,
        clock: Callable[[], float] = time.monotonic,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._identity = settings, identity
        uri = location(settings)
        super().__init__(
            where,
            Path(settings.run.directory),
            where.together(lambda: _store(settings, uri)),
            keep=settings.checkpoint.keep,
            every_s=settings.checkpoint.every_s,
            timeout_s=settings.parallel.timeout_s,
            layout=local.WHOLE if settings.parallel.strategy == "ddp" else local.SHARDED,
            code=code,
            clock=clock,
            stopping=stopping,
        )

    def restore(self, state: State) -> int | None:
        """Load the newest whole checkpoint into `state`. Return its step; None if there is none."""
        if not self._settings.checkpoint.resume and not outcome.restarted():
            self.begin_anew()
            return None
        manifest = self.newest()
        if manifest is None:
            self._branch(state)
            return None
        self.resume(manifest, self._check_same_run, partial(self._apply, state))
        return state.step

    def _check_same_run(self, manifest: local.Manifest) -> None:
        _check_fits(manifest, self._settings.model.name, self._layout)
        allowed = [*self._settings.checkpoint.allow]
        if self._has_micro_batches_of(manifest):
            allowed.append("run.accumulation")
        identities.check(manifest.identity, self._identity, allowed, manifest.step, str(self._root))

    def _has_micro_batches_of(self, manifest: local.Manifest) -> bool:
        """Return whether ranks x accumulation is as saved; half the ranks with twice the accumulation fit."""
        before, now = config.from_table(manifest.config, "checkpoint"), self._settings
        counts = {
            ranks // ranks_per_replica(settings.parallel) * settings.run.accumulation
            for settings, ranks in ((before, manifest.world_size), (now, self._where.size))
        }
        return len(counts) == 1

    def _branch(self, state: State) -> None:
        """Load the first weights of a branch from the newest checkpoint of the run from which it begins."""
        before = origin(self._settings)
        if before is None:
            return
        root, uri = Path(before.run.directory) / names.CHECKPOINTS, location(before)
        store = self._where.together(lambda: _store(before, uri))
        newest = newest_whole(self._where, root, store)
        self._where.together(lambda: self._take_weights(state, newest, root))

    def _take_weights(self, state: State, manifest: local.Manifest | None, root: Path) -> None:
        if manifest is None:
            raise IdentityError(
                f"run.branch_of = {self._settings.run.branch_of!r}: has no checkpoint to begin from"
            )
        _check_fits(manifest, self._settings.model.name, self._layout)
        folder = root / names.step_name(manifest.step)
        if self._layout == local.WHOLE:
            apply_weights(state, read_state(folder / names.STATE)["model"])
        else:
            sharded.load_weights(folder, state.model, self._where.control)
        log.info("event=branched from_step=%d folder=%s", manifest.step, folder)

    def _apply(self, state: State, saved: Any, folder: Path) -> None:
        if self._layout == local.WHOLE:
            apply_tensors(state, saved)
        else:
            sharded.load(folder, state.model, state.optimizer, state.chosen, self._where.control)
        apply(state, saved, self._settings, self._where)

    def begin_try(self, tries: Tries, step: int) -> None:
        """Count this try of the run, on all ranks; raises StandstillError if there were too many."""
        self._where.together(lambda: tries.begin(step, self._store, leads=self._where.leads))
        if self._saver is not None and self._where.leads and not self._settings.checkpoint.resume:
            self._saver.committed = tries.end  # each try begins at step 0: a checkpoint clears the count

    def due_by_step(self, step: int) -> bool:
        every = self._settings.checkpoint.every_steps
        return every > 0 and step % every == 0

    def save(self, state: State) -> float:
        """Begin a checkpoint of this step, if there is none. Return the seconds that training stood still."""
        if self.is_saved(state.step):
            return 0.0
        begin = time.perf_counter()
        self._where.together(self.check_earlier)
        saved = capture(state, self._settings, self._where)
        written = None
        if self._layout == local.SHARDED:
            stage = self._where.together(lambda: self.open_stage(state.step))
            self._where.barrier()
            written = sharded.begin_save(stage, state.model, state.optimizer, self._where.saving)
        elif self._where.leads:
            saved |= capture_tensors(state, self._settings)
        described, name = self._settings.model_dump(mode="json"), self._settings.model.name
        size, identity = self._where.size, self._identity
        manifest = local.Manifest(state.step, name, size, self._layout, config=described, identity=identity)
        self.begin_save(manifest, saved, written)
        return time.perf_counter() - begin


def _check_fits(manifest: local.Manifest, model: str, layout: str) -> None:
    if manifest.model != model:
        raise IdentityError(
            f"checkpoint of step {manifest.step} is of the model {manifest.model!r}, not of {model!r}; "
            "choose another run.directory or checkpoint.uri, or set checkpoint.resume = false"
        )
    if manifest.layout != layout:
        raise IdentityError(
            f"checkpoint of step {manifest.step} is {manifest.layout}, this strategy needs a {layout} one; "
            "ddp reads whole ones; fsdp, tensor and pipeline read one another's"
        )


def _store(settings: config.Config, uri: str) -> CheckpointStore | None:
    return CheckpointStore(uri, settings.checkpoint.endpoint) if uri else None
