"""Notices for a library's own loop, and its folder of checkpoints, claimed and copied to the bucket."""

import logging
import os
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

from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, PeerError, StoreError, TrainingError
from gpu_fleet.core.files import on_disk
from gpu_fleet.core.instance_file import place_of_checkpoints
from gpu_fleet.core.world import World, of_script
from gpu_fleet.integrations.claim import FolderClaim
from gpu_fleet.integrations.folder_copy.files import OURS
from gpu_fleet.integrations.folder_copy.sync import FolderSync
from gpu_fleet.preemption.interrupt import Interruption, Reason, sources
from gpu_fleet.step.checks import AttributeCheck, check_weights, look
from gpu_fleet.storage.object_store import NOTICE_PATIENCE_S, PATIENCE_S, ObjectStore, patiently

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
        self._pattern, self._mark = pattern, mark
        self._claim: FolderClaim | None = None
        with self._leaving():
            place = place_of_checkpoints(uri, "", self.directory)
            store = ObjectStore(place) if place else None
        how = f"{name}(allow=[{{keys}}])"
        if _rank() == 0:
            self._claim = FolderClaim(self.directory, place, config or {}, allow, how)
        held = self._claim.check_held if self._claim is not None else lambda: None
        self._sync = FolderSync(self.directory, store, held=held) if store is not None else None
        self._interruption = Interruption(sources())
        self.stopped = False
        self._chosen: list[str | None] = []  # the name that `newest` returned; empty: not called yet
        self._world: World | None = None  # None while there is no process group

    @property
    def _where(self) -> World:
        """This process among the ranks; a library may make their group later."""
        if self._world is None and dist.is_initialized():
            self._world = of_script(torch.device("cpu"))
        return self._world or of_script(torch.device("cpu"))

    def newest(self) -> str | None:
        """Return the newest whole checkpoint, from the bucket if this disk has none; None for a new run.

        Every rank calls it, and waits until rank 0 has the claim: the previous holder may save until then.
        """
        where = self._where  # all ranks make its groups, before rank 0 waits for another holder
        with self._leaving():
            if self._claim is not None:
                self._claim.take()
                self._bring_back()
            _meet(where)
            if self._sync is not None:
                self._sync.down()
            checkpoint = newest(self.directory, self._pattern, self._mark)
            self._chosen = [Path(checkpoint).name if checkpoint else None]
            if self._claim is not None:
                self._claim.check(checkpoint)
        where.barrier()
        return checkpoint

    def begin(self, arguments: Mapping[str, Any], samples: Any) -> None:
        """Listen for notices from now on; refuse a checkpoint of other `arguments` or `samples`."""
        with self._leaving():
            self._check_chosen()
            if self._claim is not None:
                self._claim.take()
                checkpoint = newest(self.directory, self._pattern, self._mark)
                self._claim.check_all(checkpoint, arguments, samples)
        self._interruption.__enter__()

    def _check_chosen(self) -> None:
        """Raise CheckpointError on all ranks if `newest` gave them different checkpoints."""
        first: dict[str | None, int] = {}  # checkpoint -> first rank that resumes from it
        for rank, chosen in enumerate(self._where.gather(self._chosen)):
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
        heard = self._where.gather_numbers(self._interruption.reason is not Reason.NONE)
        self.stopped = self.stopped or any(has for (has,) in heard)
        return self.stopped

    def check_weights(self, models: Iterable[nn.Module], step: int) -> None:
        """End all ranks before a save, or at the end, if the weights are no finite numbers."""
        with self._leaving():
            check_weights(models, self._where, step)

    def look(self, checks: Iterable[AttributeCheck], *, says: bool, saving: bool = False) -> None:
        """Look at a model's attributes; end all ranks if it trains parameters that no checkpoint holds."""
        with self._leaving():
            look(checks, says=says, saving=saving)

    @contextmanager
    def replacing(self, name: str) -> Iterator[None]:
        """Replace checkpoint `name` in the block, on all ranks; if killed, `newest` restores the old one."""
        former = self.directory / OURS / name
        if self._claim is not None and (self.directory / name).is_dir():
            with self._leaving(), on_disk(former):
                shutil.rmtree(former, ignore_errors=True)
                (self.directory / name).rename(former)
        self._where.barrier()
        yield
        self._where.barrier()
        if self._claim is not None:
            shutil.rmtree(former, ignore_errors=True)

    def _bring_back(self) -> None:
        for former in (self.directory / OURS).glob(self._pattern):
            place = self.directory / former.name
            with on_disk(place):
                if (place / self._mark).exists():
                    shutil.rmtree(former)
                else:
                    shutil.rmtree(place, ignore_errors=True)
                    former.rename(place)

    def saved(self, *, last: bool = False) -> None:
        """Upload after a save on all ranks; a silent bucket ends the process only after the `last` one."""
        self._where.barrier()
        with self._leaving():
            if self._claim is None:
                return
            patience_s = NOTICE_PATIENCE_S if self.stopped else PATIENCE_S if last else BETWEEN_S
            try:
                patiently(self._take_over, patience_s, refused=True)
            except StoreError as error:
                if last or not error.passing:
                    raise
                log.warning("event=folder-not-saved error=%r", str(error))

    def _take_over(self) -> None:
        assert self._claim is not None
        self._claim.saved()
        if self._sync is not None:
            self._sync.up(last=True, final=True)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """End the process with one message at a TrainingError, which the calling library does not know."""
        try:
            yield
        except TrainingError as error:
            if self._claim is not None:
                self._claim.release()
            error.shared = error.shared or int(os.environ.get("LOCAL_RANK", "0")) > 0
            outcome.leave(self.directory, error, _rank())

    def finish(self) -> None:
        self.saved(last=True)
        if self._claim is not None:
            self._claim.release()
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
    before, _, after = pattern.partition("*")
    by_step: dict[int, Any] = {}
    for entry in directory.glob(pattern):
        step = entry.name.removeprefix(before).removesuffix(after)
        if step.isascii() and step.isdigit() and (not mark or (entry / mark).exists()):
            by_step[int(step)] = entry
    return str(by_step[max(by_step)]) if by_step else None
