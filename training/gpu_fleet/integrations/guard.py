"""Notices for a library's own loop, and its folder of checkpoints, claimed and copied to the bucket.

The file gpu-fleet.json, beside the checkpoints, has the values that decided the result at the last save.
"""

import atexit
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import default_collate

from gpu_fleet.checkpoint import run_identity
from gpu_fleet.checkpoint.lease import RunClaim
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core import outcome
from gpu_fleet.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    IdentityError,
    PeerError,
    StoreError,
    TrainingError,
    UntrainedError,
    UserCodeError,
)
from gpu_fleet.core.files import on_disk, write_bytes
from gpu_fleet.core.instance_file import place_of_checkpoints
from gpu_fleet.core.world import World, of_script
from gpu_fleet.data.loader import explain_ended_readers
from gpu_fleet.data.own_data import adapted
from gpu_fleet.integrations.folder_copy.files import OURS
from gpu_fleet.integrations.folder_copy.sync import FolderSync
from gpu_fleet.preemption.interrupt import Interruption, Reason, sources
from gpu_fleet.step.checks import NO_UPDATE, AttributeCheck, GradientWatch, check_weights, look
from gpu_fleet.storage.object_store import NOTICE_PATIENCE_S, PATIENCE_S, patiently

IDENTITY = "gpu-fleet.json"  # a file of the folder, which the bucket holds too
ARGUMENTS, DATA = LATER = ("arguments", "data")  # sections in the keys of an identity
BETWEEN_S = 30.0  # longest wait for a disturbed bucket while the loop waits
# Numbers of a process from Lightning's own launcher, srun and mpirun: all are 0 only in the first process.
PLACES = ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
CLAIM_WITHIN = timedelta(minutes=10)  # rank 0 may wait for a disturbed bucket or for another holder
MEETINGS = count()  # meetings of this process so far: the same number on every rank
log = logging.getLogger(__name__)


class Guard:
    """Listener for notices from `begin` to `end`. Every rank has one and makes the same calls."""

    def __init__(
        self,
        directory: str | Path,
        uri: str = "",
        *,
        pattern: str,
        mark: str = "",
        config: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
        name: str = "FleetCallback",
    ) -> None:
        """Open the folder of checkpoints; `uri`, `config` and `allow` mean the same as in Run.

        The `pattern` of their names has one * for the step; only a whole one has a file `mark`.
        """
        self.directory = Path(directory)
        self._pattern, self._mark, self._leads = pattern, mark, _rank() == 0
        self._config, self._allow, self._how = dict(config or {}), allow, f"{name}(allow=[{{keys}}])"
        self._claim: RunClaim | None = None  # of rank 0, from `_take` on
        self._identity = run_identity.ScriptIdentity({}, (), self._how, later=LATER)
        with self._leaving():
            place = place_of_checkpoints(uri, "", self.directory)
            self._store = CheckpointStore(place) if place else None
        self._sync: FolderSync | None = None
        if self._store is not None:
            self._sync = FolderSync(self.directory, self._store, held=self._check_held)
        self._interruption = Interruption(sources())
        self.stopped = self._begun = False
        self._chosen: list[str | None] = []  # the name that `newest` returned; empty: not called yet
        self._watch: GradientWatch | None = None  # of a new run, if all its updates can be heard
        self._world: World | None = None  # None while there is no process group

    @property
    def where(self) -> World:
        """This process among the ranks; a library may make their group later."""
        if self._world is None and dist.is_initialized():
            self._world = of_script(torch.device("cpu"))
        return self._world or of_script(torch.device("cpu"))

    def newest(self) -> str | None:
        """Return the newest whole checkpoint, from the bucket if this disk has none; None for a new run.

        Every rank calls it, and waits until rank 0 has the claim: the previous holder may save until then.
        """
        where = self.where  # all ranks make its groups, before rank 0 waits for another holder
        with self._leaving():
            if self._leads:
                self._take()
                self._bring_back()
            _meet(where)
            if self._sync is not None:
                self._sync.down()
            checkpoint = newest(self.directory, self._pattern, self._mark)
            self._chosen = [Path(checkpoint).name if checkpoint else None]
            if self._leads:
                self._compare(checkpoint)
        where.barrier()
        return checkpoint

    def begin(self, arguments: Mapping[str, Any], samples: Any) -> None:
        """Listen for notices from now on; refuse a checkpoint of other `arguments` or `samples`."""
        explain_ended_readers()
        with self._leaving():
            if self._begun:
                raise ConfigError(f"{self.directory}: each training needs a callback and a folder of its own")
            self._begun = True
            self._check_chosen()
            if self._leads:
                self._take()
                checkpoint = newest(self.directory, self._pattern, self._mark)
                self._compare(checkpoint)
                further = {ARGUMENTS: arguments, DATA: _described(samples)}
                self._identity.add(dict(run_identity.flattened(further)))
                if checkpoint is None:
                    self._write_identity()
        self._interruption.__enter__()

    def _take(self) -> None:
        if self._claim is None:
            self._claim = RunClaim.of(self._store)
            atexit.register(self._release)  # however the library's loop ends
            self._claim.take(self.directory / OURS)

    def _check_held(self) -> None:
        if self._claim is not None:
            self._claim.lease.check()

    def _release(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()
            atexit.unregister(self._release)

    def _compare(self, checkpoint: str | None) -> None:
        """Compare the code and the configuration with those of a checkpoint, if any."""
        known = run_identity.of_script(self._config, self.directory)
        self._identity = run_identity.ScriptIdentity(known, self._allow, self._how, later=LATER)
        if checkpoint is not None:
            step = int("".join(filter(str.isdigit, Path(checkpoint).name)))
            self._identity.compare_with(self._saved_identity(), step, str(self.directory))

    def _saved_identity(self) -> run_identity.Identity:
        """Return the identity at the last save; empty (nothing to compare) if another program saved."""
        file = self.directory / IDENTITY
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise IdentityError(f"{file}: cannot be read: {error}") from error

    def _write_identity(self) -> None:
        file, staged = self.directory / IDENTITY, self.directory / OURS / IDENTITY
        with on_disk(file):
            write_bytes(staged, (json.dumps(self._identity.known, indent=1, sort_keys=True) + "\n").encode())
            staged.replace(file)

    def _check_chosen(self) -> None:
        """Raise CheckpointError on all ranks if `newest` gave them different checkpoints."""
        first: dict[str | None, int] = {}  # checkpoint -> first rank that resumes from it
        for rank, chosen in enumerate(self.where.gather(self._chosen)):
            for name in chosen:
                first.setdefault(name, rank)
        if len(first) > 1:
            differing = ", ".join(f"rank {rank}: {name or 'none'}" for name, rank in first.items())
            error = CheckpointError(
                f"{self.directory}: the ranks would resume from different checkpoints ({differing}): one was "
                "saved during their search, or their disks differ; run it again"
            )
            error.shared = True
            raise error

    def stopping(self) -> bool:
        if self._watch is not None:
            self._watch.settle()
        heard = self.where.gather_numbers(self._interruption.reason is not Reason.NONE)
        self.stopped = self.stopped or any(has for (has,) in heard)
        return self.stopped

    def watch(self, optimizers: Sequence[Any]) -> None:
        """Listen for the gradients and updates of a run that has made none yet."""
        # torch marks so each class whose steps its hooks hear of; of another one an update may be missed
        if all(getattr(getattr(type(each), "step", None), "hooked", False) for each in optimizers):
            self._watch = GradientWatch(optimizers, (), self.where, anywhere=True)

    def check(self, models: Iterable[nn.Module], step: int, *, ended: bool = False) -> bool:
        """End all ranks if weights are not finite, or unchanged at the end; return whether no update came."""
        with self._leaving():
            check_weights(models, self.where, step)
            idle = self._watch is not None and self._watch.is_idle()
            if idle and ended:
                raise UntrainedError(f"the {NO_UPDATE}")
        return idle

    def look(self, checks: Iterable[AttributeCheck], *, says: bool, saving: bool = False) -> None:
        """Look at a model's attributes; end all ranks if it trains parameters that no checkpoint holds."""
        with self._leaving():
            look(checks, says=says, saving=saving)

    @contextmanager
    def replacing(self, name: str) -> Iterator[None]:
        """Replace checkpoint `name` in the block, on all ranks; if killed, `newest` restores the old one."""
        former = self.directory / OURS / name
        if self._leads and (self.directory / name).is_dir():
            with self._leaving(), on_disk(former):
                if former.exists():
                    shutil.rmtree(former)
                (self.directory / name).rename(former)
        self.where.barrier()
        yield
        self.where.barrier()
        if self._leads:
            shutil.rmtree(former, ignore_errors=True)

    def _bring_back(self) -> None:
        for former in (self.directory / OURS).glob(self._pattern):
            place = self.directory / former.name
            with on_disk(place):
                if (place / self._mark).exists():
                    shutil.rmtree(former)
                else:
                    if place.exists():
                        shutil.rmtree(place)
                    former.rename(place)

    def saved(self, *, last: bool = False) -> None:
        """Upload after a save on all ranks; a silent bucket ends the process only after the `last` one."""
        self.where.barrier()
        if not self._leads:
            return
        with self._leaving():
            patience_s = NOTICE_PATIENCE_S if self.stopped else PATIENCE_S if last else BETWEEN_S
            try:
                patiently(self._take_over, patience_s, refused=True)
            except StoreError as error:
                if last or not error.passing:
                    raise
                log.warning("event=folder-not-saved error=%r", str(error))

    def _take_over(self) -> None:
        self._check_held()
        if self._identity.known != self._saved_identity():
            self._write_identity()
        if self._sync is not None:
            self._sync.up(last=True, final=True)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """End the process with one message at a TrainingError, which the calling library does not know."""
        try:
            yield
        except TrainingError as error:
            self._release()
            error.shared = error.shared or int(os.environ.get("LOCAL_RANK", "0")) > 0
            outcome.leave(self.directory, error, _rank())

    def finish(self) -> None:
        self.saved(last=True)
        self._release()
        self._interruption.__exit__(None, None, None)  # last, so that no signal cuts the upload off

    def end(self) -> None:
        self.finish()
        if self.stopped:
            log.warning("event=stopped reason=%s", self._interruption.reason.label)
            outcome.leave_stopped()


def _meet(where: World) -> None:
    """Wait until rank 0 makes the same call (by count); raises PeerError if it does not in CLAIM_WITHIN.

    Without a group, torchrun's store serves; without torchrun `begin` compares the chosen checkpoints.
    """
    where.barrier()
    by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if dist.is_initialized() or not by_torchrun or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    key = f"gpu-fleet/claimed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(MEETINGS)}"
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, but not in the module's __all__
            host, port, is_master=False, timeout=CLAIM_WITHIN, wait_for_workers=False
        )
        if _rank() == 0:
            store.set(key, "")
        else:
            store.wait([key], CLAIM_WITHIN)
    except dist.DistError as error:
        raise PeerError(f"rank 0 has not taken the folder of checkpoints: {error}") from error


def _rank() -> int:
    """Return the rank; without a process group and RANK, a number that is 0 for the first process alone."""
    if dist.is_initialized():
        return dist.get_rank()
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    return sum(int(os.environ.get(name, "0")) for name in PLACES)


def newest(directory: Path, pattern: str, mark: str = "") -> str | None:
    """Return the entry of the greatest step with the file `mark` in it; None if there is none."""
    name = re.compile(re.escape(pattern).replace(r"\*", "([0-9]+)"))
    saved = [(int(of[1]), entry) for entry in directory.glob(pattern) if (of := name.fullmatch(entry.name))]
    whole = [(step, entry) for step, entry in saved if not mark or (entry / mark).exists()]
    return str(max(whole)[1]) if whole else None


def _described(samples: Any) -> dict[str, Any]:
    """Return the length and content digest of a data set; empty if it cannot be read by number."""
    if samples is None:
        return {}
    try:
        return run_identity.of_data(adapted(samples, "the data set", default_collate, ConfigError))
    except (ConfigError, DataError, UserCodeError) as error:  # the library may index it in another way
        log.warning("event=data-not-compared error=%r", str(error))
        return {}
