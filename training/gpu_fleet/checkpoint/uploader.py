"""Uploads of one process while training runs: the newest checkpoint first, the manifest last."""

import json
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store

from gpu_fleet.checkpoint import local, names
from gpu_fleet.checkpoint.lease import RunClaim
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.errors import CheckpointError, RunLeaseError, StoreError, as_checkpoint_error, reason_of
from gpu_fleet.storage.object_store import NOTICE_PATIENCE_S, patiently

LINE = "checkpoint-line"  # the thread of an upload
ABANDONED = "abandoned"  # a rank's report of an upload that it gave up for a newer one
STANDS_STILL_S = 30.0  # a newer upload may overtake one that moves nothing for this long
LOOK_EVERY_S, HEAR_EVERY_S = 0.5, 0.05
PASSING = "passing"  # kind of an error after which a later try may succeed
LESS_URGENT = 10  # nice(1) value: a tenth of a core that the training also wants, or all of a free core
log = logging.getLogger(__name__)


class AbandonedError(Exception):
    """Raised inside an upload that a newer checkpoint has overtaken."""


def left_behind() -> bool:
    """Return whether an abandoned upload hangs in a socket, and would delay the end of the process."""
    return any(thread.name == LINE for thread in threading.enumerate())


def give_way() -> None:
    """Lower the priority of this thread; on Linux each has a nice value of its own: setpriority(2)."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LESS_URGENT)


@dataclass(frozen=True)
class Team:
    """This rank as a member of the ranks that write a checkpoint together.

    Their messages in the rendezvous store are no collectives, in which the others would hang if one rank
    abandons an upload.
    """

    rank: int
    size: int
    store: Store
    patience_s: float  # longest wait for a message of a rank
    sleep: Callable[[float], None] = time.sleep

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def post(self, step: int, what: str, value: Any = None, error: CheckpointError | None = None) -> None:
        """Report the result of `what` for checkpoint `step` to the other ranks; `value` must fit JSON."""
        kind = PASSING if isinstance(error, StoreError) and error.passing else ""
        said = {"value": value, "error": "" if error is None else str(error), "kind": kind}
        self.store.set(_word(step, what, self.rank), json.dumps(said))

    def hear(self, step: int, what: str, rank: int, poll: Callable[[], None] = lambda: None) -> Any:
        """Return a rank's report; raises its error, that of `poll`, or CheckpointError after `patience_s`."""
        key, waited_s = _word(step, what, rank), 0.0
        while not self.store.check([key]):
            poll()
            if waited_s > self.patience_s:
                raise CheckpointError(
                    f"rank {rank}: reported nothing about {what} for {waited_s:.0f} s, at step {step}"
                )
            self.sleep(HEAR_EVERY_S)
            waited_s += HEAR_EVERY_S
        said = json.loads(self.store.get(key))
        if said["error"]:
            text = said["error"] if said["error"].startswith("rank ") else f"rank {rank}: {said['error']}"
            raise StoreError(text, passing=True) if said["kind"] == PASSING else CheckpointError(text)
        return said["value"]

    def gather(self, step: int, what: str, poll: Callable[[], None] = lambda: None) -> list[Any]:
        """Return the values of all ranks, in rank order; raises CheckpointError as `hear` does."""
        return [self.hear(step, what, rank, poll) for rank in range(self.size)]


def _word(step: int, what: str, rank: int) -> str:
    return f"gpu-fleet/checkpoint/{step}/{what}/{rank}"


@dataclass
class Upload:
    """The files of one checkpoint that this process uploads, and the progress, which two threads use."""

    manifest: local.Manifest
    folder: Path
    names: list[str]
    team: Team | None  # the ranks that upload the checkpoint together; None: this process uploads all
    moved_at: float = field(default_factory=time.monotonic)
    abandoned: threading.Event = field(default_factory=threading.Event)  # a newer one has overtaken it

    def pause(self, seconds: float) -> None:
        self.abandoned.wait(seconds)
        self.poll()

    def moved(self) -> None:
        self.moved_at = time.monotonic()
        self.poll()

    def poll(self) -> None:
        if self.abandoned.is_set():
            raise AbandonedError


class Uploader:
    """Uploader of the checkpoints of one process, or of its part of them."""

    def __init__(
        self, root: Path, store: CheckpointStore, keep: int, claim: RunClaim, *, shared: bool
    ) -> None:
        self._root, self._store, self._keep, self._claim, self._shared = root, store, keep, claim, shared
        self._queue: queue.Queue[Upload | None] = queue.Queue()
        self._newest_queued: local.Manifest | None = None
        self._leads = False
        self.hurried = False  # the run ends: a newer upload overtakes another, at full priority
        self.waiting: set[int] = set()  # steps that wait for an upload or are in one: not pruned
        self.uploaded_step: int | None = None
        self.failure: CheckpointError | None = None  # cleared by the upload of a newer checkpoint
        self.lost: RunLeaseError | None = None  # nothing clears it
        self.thread = threading.Thread(target=self._run, name="checkpoint-upload", daemon=True)
        self.thread.start()

    def add(self, manifest: local.Manifest, team: Team | None) -> None:
        """Upload a checkpoint of this disk, or with a `team` this rank's part of it."""
        self._newest_queued = manifest
        self._leads = team is None or team.leads
        self.waiting.add(manifest.step)
        folder = self._root / names.step_name(manifest.step)
        if not self._shared and team:
            folder = names.staged(self._root, manifest.step)
        own = [name for name in manifest.files if team is None or names.is_of_rank(name, team.rank)]
        self._queue.put(Upload(manifest, folder, own, team))

    def end(self) -> None:
        self._queue.put(None)

    def check(self) -> None:
        """Raise CheckpointError unless a listing shows the newest checkpoint in the store, file by file."""
        if self.failure is not None:
            raise self.failure
        store, newest = self._store, self._newest_queued
        if newest is None:
            return
        if self.uploaded_step != newest.step:
            raise CheckpointError(f"{store.uri}: step {newest.step} is on disk, and was not uploaded")
        if self._leads:
            patiently(lambda: store.check_whole(newest), within_s=NOTICE_PATIENCE_S, refused=True)

    def _run(self) -> None:
        while (upload := self._newest()) is not None:
            upload.moved_at = time.monotonic()
            running = threading.Thread(target=self._upload_one, args=(upload,), name=LINE, daemon=True)
            running.start()
            while running.is_alive() and not self._overtaken(upload):
                running.join(LOOK_EVERY_S)

    def _overtaken(self, upload: Upload) -> bool:
        """Return whether the upload is given up; the thread of one that hangs in a socket is left behind."""
        with self._queue.mutex:
            newer = any(waiting is not None for waiting in self._queue.queue)
        still_s = time.monotonic() - upload.moved_at
        if newer and (self.hurried or still_s > STANDS_STILL_S):
            log.warning("event=upload-abandoned step=%d still_s=%.0f", upload.manifest.step, still_s)
            upload.abandoned.set()
        return upload.abandoned.is_set()

    def _newest(self) -> Upload | None:
        upload = self._queue.get()
        while upload is not None and not self._queue.empty():
            following = self._queue.get()
            if following is None:
                self._queue.put(None)
                break
            self._pass_over(upload)
            upload = following
        return upload

    def _pass_over(self, upload: Upload) -> None:
        """Skip an upload, and report that to the ranks that wait for it."""
        self.waiting.discard(upload.manifest.step)
        if upload.team is not None:
            upload.team.post(upload.manifest.step, "uploaded", ABANDONED)
        if not self._shared:
            shutil.rmtree(upload.folder, ignore_errors=True)

    def _upload_one(self, upload: Upload) -> None:
        step = upload.manifest.step
        if not self.hurried:
            give_way()  # the threads that send parts inherit the priority
        try:
            self._bring_up(upload)
        except AbandonedError:
            self._pass_over(upload)
            return
        except Exception as error:  # noqa: BLE001 - any would end this thread, and nobody would know
            if not upload.abandoned.is_set():
                log.error("event=upload-failed step=%d error=%r", step, reason_of(error))
                self.failure = as_checkpoint_error(error, f"step {step} cannot be uploaded")
            if isinstance(error, RunLeaseError):  # a newer checkpoint cannot clear this failure
                self.lost = error
            return
        finally:
            self.waiting.discard(step)
        if step < (self.uploaded_step or 0):  # overtaken, but it has succeeded
            return
        self.failure = None
        self.uploaded_step = step
        self._after_upload(upload)

    def _bring_up(self, upload: Upload) -> None:
        """Upload the files of this process; rank 0 commits when all ranks have uploaded theirs."""
        store, manifest, team = self._store, upload.manifest, upload.team
        bring = partial(patiently, within_s=NOTICE_PATIENCE_S, sleep=upload.pause, refused=True)
        held = self._claim.lease.check

        def moved(_bytes: int) -> None:
            upload.moved()
            self._claim.lease.check_sometimes()  # else it may overwrite a file of the next holder

        try:
            bring(held)
            bring(lambda: store.upload_files(upload.folder, manifest.step, upload.names, moved))
        except AbandonedError:
            raise
        except Exception as error:
            if team is not None:  # the other ranks wait for a report of any outcome
                failure = as_checkpoint_error(error, f"step {manifest.step} cannot be uploaded")
                team.post(manifest.step, "uploaded", error=failure)
            raise
        if team is not None:
            team.post(manifest.step, "uploaded", "")
        if (
            team is not None
            and team.leads
            and ABANDONED in team.gather(manifest.step, "uploaded", upload.poll)
        ):
            raise AbandonedError
        if team is None or team.leads:
            bring(lambda: store.commit(manifest, held))

    def _after_upload(self, upload: Upload) -> None:
        if not self._shared and upload.team is not None:
            for name in upload.names:
                (upload.folder / name).unlink(missing_ok=True)
        if not self._leads:
            return
        log.info("event=upload step=%d uri=%s", upload.manifest.step, self._store.uri)
        try:
            self._store.prune(upload.manifest.step, self._keep)
        except CheckpointError as error:  # nothing is lost: the store keeps too much
            log.warning("event=prune-failed error=%r", str(error))
