"""Search for the newest checkpoint that is whole on every instance of the run."""

import logging
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from gpu_fleet.checkpoint import local, names
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.errors import CheckpointError, IdentityError, StoreError, UnreadableError
from gpu_fleet.core.world import World
from gpu_fleet.storage.object_store import at_start, patiently

log = logging.getLogger(__name__)


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


def begin_anew(where: World, root: Path, store: CheckpointStore | None) -> None:
    """Rename an earlier run's checkpoints, which a later resume would take; refuse those of a bucket."""
    where.on_first(lambda: _leave_earlier(root, store))
    where.together(lambda: _leave_earlier(root, None) if where.local_rank == 0 else None)


def _leave_earlier(root: Path, store: CheckpointStore | None) -> None:
    if store is not None and (uploaded := at_start(store.steps)):
        raise IdentityError(
            f"checkpoint.resume = false: {store.uri} has checkpoints of an earlier run, up to step "
            f"{uploaded[-1]}, which would count as this run's; choose another checkpoint.uri or run.directory"
        )
    _set_aside(root, local.steps(root), "earlier")


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


def check_fits(manifest: local.Manifest, model: str, layout: str) -> None:
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


def read_state(path: Path, *, mapped: bool = False) -> Any:
    """Load the nested state of a file, `mapped` or into memory; raises UnreadableError."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        why = str(error).partition("\n")[0]
        raise UnreadableError(f"{path}: what was saved cannot be read again: {why}") from error
