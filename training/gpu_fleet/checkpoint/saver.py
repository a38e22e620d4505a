"""Saves beside the training: a thread that copies into reused memory, writes, commits and uploads."""

import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gpu_fleet.checkpoint import local, sharded
from gpu_fleet.checkpoint.containers import mapping_like, sequence_like
from gpu_fleet.checkpoint.lease import RunLease
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.checkpoint.team import Team
from gpu_fleet.errors import CheckpointError, RunLeaseError
from gpu_fleet.own_code import ARCHIVE
from gpu_fleet.storage.object_store import at_start, patiently

STATE = "state.pt"
LINE = "checkpoint-line"  # the thread of an upload
ABANDONED = "abandoned"  # what a rank says of an upload that it gave up for a newer one
STANDS_STILL_S = 30.0  # an upload that moves nothing for so long lets a newer one pass
LOOK_EVERY_S = 0.5
UPLOAD_PATIENCE_S = 60.0  # with a bucket that fails in a way that may pass; a notice gives two minutes on AWS
LESS_URGENT = 10  # of nice(1): a tenth of a core that the training wants, all of one that is free
T = TypeVar("T")
log = logging.getLogger(__name__)


class Snapshot:
    """A copy of a nested state in CPU memory that is allocated once and used again for every save.

    Weights and moments stay as they are until the next update, so a copy goes on beside the forward and the
    backward pass (as in Mohan et al., "CheckFreq", 2021); `before_change` waits for what is left of it.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._taken = threading.Event()
        self._taken.set()
        self._arrival: torch.cuda.Event | None = None  # of copies from a GPU that are only queued yet

    def begin(self, state: Any) -> Callable[[], Any]:
        """Begins a copy. Call the result, in any thread, to end it and have it until the next `begin`."""
        self._taken.clear()
        return self._queue(state) if torch.cuda.is_available() else partial(self._take, state)

    def before_change(self) -> None:
        """Call it before the tensors of the state change."""
        if not self._taken.is_set():  # asked before each update: a wait takes 3 us where there is none
            self._taken.wait()
        if self._arrival is not None:
            torch.cuda.current_stream().wait_event(self._arrival)
            self._arrival = None

    def _take(self, state: Any) -> Any:
        try:
            return self._copy(state, "")
        finally:
            self._taken.set()

    def _queue(self, state: Any) -> Callable[[], Any]:
        """The same on a stream of its own, for which the training's stream does not wait yet."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no hints here
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copied = self._take(state)
            arrival = side.record_event()
        self._arrival = arrival
        held = [state]  # the memory of what nobody else holds must not be given away before the copy is done

        def arrived() -> Any:
            arrival.synchronize()
            held.clear()
            return copied

        return arrived

    def _copy(self, value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            buffer = self._buffers.get(path)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
                self._buffers[path] = buffer
            return buffer.copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            return mapping_like(value, {k: self._copy(item, f"{path}/{k}") for k, item in value.items()})
        if isinstance(value, (list, tuple, set)):  # one that is not copied may change while it is written
            return sequence_like(
                value, [self._copy(item, f"{path}/{place}") for place, item in enumerate(value)]
            )
        return value


class AbandonedError(Exception):
    """Ends an upload from within, where a newer checkpoint has overtaken it."""


def left_behind() -> bool:
    """Whether an upload that was given up hangs in a socket, and would hold the end of the process up."""
    return any(thread.name == LINE for thread in threading.enumerate())


class UploadProgress:
    """What is known of an upload while it runs; read and written by two threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_at = clock()
        self._abandoned = threading.Event()

    @property
    def abandoned(self) -> bool:
        """Whether a newer checkpoint has overtaken it."""
        return self._abandoned.is_set()

    def abandon(self) -> None:
        """Lets it end at its next `look`, wherever it waits."""
        self._abandoned.set()

    def pause(self, seconds: float) -> None:
        """Waits for the next try. Raises AbandonedError when the upload is to end."""
        self._abandoned.wait(seconds)
        self.look()

    def moved(self, _bytes: int = 0) -> None:
        """Some bytes have gone up. Raises AbandonedError when the upload is to end."""
        self._moved_at = self._clock()
        self.look()

    def look(self) -> None:
        """Raises AbandonedError when the upload is to end."""
        if self.abandoned:
            raise AbandonedError

    def still_s(self) -> float:
        """Seconds since something moved."""
        return self._clock() - self._moved_at


def politely(action: Callable[[], T]) -> T:
    """Runs `action` to its end in a thread that gets a core only when the training does not want it.

    To hash, write and upload a checkpoint takes as much of a core as a step; who waits for its end leaves the
    core free. Linux gives each thread a nice value of its own: setpriority(2).
    """
    with ThreadPoolExecutor(1, initializer=_give_way) as pool:
        return pool.submit(action).result()


def _nobody_asks() -> None:
    """Of a run without a bucket, or without a lease in it."""


def _give_way() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LESS_URGENT)


@dataclass(frozen=True)
class SaveJob:
    """One save on its way to the disk."""

    manifest: local.Manifest
    copied: Callable[[], Any]  # ends the copy of the state and returns it
    written: Callable[[], object] | None  # waits until what this rank writes of the model is down


@dataclass(frozen=True)
class Upload:
    """What this process brings up of one checkpoint."""

    manifest: local.Manifest
    folder: Path
    names: tuple[str, ...]
    team: Team | None  # with which the checkpoint is brought up; None: all of it by this process


class Saver:
    """Writes the checkpoints of one process, or its part of them; the training waits for the copy only."""

    def __init__(
        self,
        root: Path,
        store: CheckpointStore | None,
        keep: int,
        lease: RunLease | None = None,
        team: Team | None = None,
        *,
        lock: local.FolderLock | None = None,
        shared: bool = True,
        code: bytes = b"",
    ) -> None:
        """With a `team` each rank writes and uploads its part. Under a `lease` or `lock` that another process
        has by now nothing more is committed; both stay the caller's, who releases them.

        Where `root` is not `shared` by the instances of the team, checkpoints are in the store alone, and
        parts of them here only until they are up. `code` is the archive of the user's files, which every
        checkpoint carries; empty for none.
        """
        self._root, self._store, self._keep, self._code = root, store, keep, code
        self._lease, self._lock, self._team, self._shared = lease, lock, team, shared
        self._snapshot = Snapshot()
        self._jobs: queue.Queue[SaveJob | None] = queue.Queue(maxsize=1)
        self._uploads: queue.Queue[Upload | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self._closing = False
        self._write_failure: CheckpointError | None = None
        self._upload_failure: CheckpointError | None = None  # made good by the upload of a newer checkpoint
        self._uploading: set[int] = set()  # waiting for the line or on it: not to be pruned
        self.uploaded_step: int | None = None
        self.committed: Callable[[], None] = _nobody_asks  # called after each commit, in the saver's thread
        self._threads = [threading.Thread(target=self._write, name="checkpoint-write", daemon=True)]
        if store is not None:
            self._threads.append(threading.Thread(target=self._upload, name="checkpoint-upload", daemon=True))
        for thread in self._threads:
            thread.start()

    def save(self, manifest: local.Manifest, state: Any, written: Callable[[], object] | None = None) -> None:
        """Begins to save `state`, which must not change before `before_change` has returned.

        `written`, if any, is waited for before the commit: what DCP writes into the stage on this rank.

        A save that is still being written is waited for. Raises CheckpointError when an earlier one failed.
        """
        self.wait()
        self._idle.clear()
        self._jobs.put(SaveJob(manifest, self._snapshot.begin(state), written))

    def upload_if_missing(self, manifest: local.Manifest) -> None:
        """Uploads a checkpoint that was found on this disk, and that the store may never have got."""
        if self._store is not None and manifest.step not in at_start(self._store.steps):
            self._queue_upload(manifest, None)

    def _queue_upload(self, manifest: local.Manifest, team: Team | None) -> None:
        self._uploading.add(manifest.step)
        own = sharded.FilesOfRank(team.rank) if team else manifest.files
        folder = self._root / local.folder_name(manifest.step)
        if not self._shared and team:
            folder = local.stage(self._root, manifest.step)
        names = tuple(name for name in manifest.files if name in own)
        self._uploads.put(Upload(manifest, folder, names, team))

    def before_change(self) -> None:
        """Waits until the last save needs the tensors of its state no more."""
        self._snapshot.before_change()

    def wait(self) -> None:
        """Waits until the last save is on disk; raises CheckpointError when it could not be."""
        self._idle.wait()
        if self._write_failure is not None:
            raise self._write_failure

    def close(self, within_s: float | None = None) -> bool:
        """Waits until all saves are on disk and the newest is uploaded; raises CheckpointError if not.

        False when that takes longer than `within_s` seconds; then call it again.
        """
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        until_s = None if within_s is None else time.monotonic() + within_s
        for thread in self._threads:
            thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        failure = self._write_failure or self._upload_failure
        if failure is not None:
            raise failure
        return True

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                manifest = self._commit(job)
                if self._team is None or (self._team.leads and self._shared):
                    local.prune(self._root, manifest.step, self._keep, spared=self._uploading)
                log.info("event=checkpoint step=%d folder=%s", manifest.step, self._root)
                self.committed()
                if self._store is not None:
                    self._queue_upload(manifest, self._team)
            except RunLeaseError as error:
                self._write_failure = error
            except (OSError, RuntimeError, CheckpointError) as error:  # a full disk: RuntimeError of torch
                what = f"{self._root}: step {job.manifest.step} cannot be written"
                self._write_failure = CheckpointError(f"{what}: {error}")
            finally:
                self._idle.set()
        self._uploads.put(None)

    def _commit(self, job: SaveJob) -> local.Manifest:
        copied = job.copied()  # the training waits for this
        return politely(lambda: self._written(job, copied))

    def _check_held(self) -> None:
        """Raises RunLeaseError where the run is another process's by now: called right before a commit."""
        if self._lease is not None:
            self._lease.check_briefly()
        if self._lock is not None:
            self._lock.check()

    def _written(self, job: SaveJob, copied: Any) -> local.Manifest:
        writers: dict[str, local.Writer] = {STATE: partial(torch.save, copied)}
        if self._code:
            writers[ARCHIVE] = lambda file: file.write(self._code)
        if self._team is None:
            self._check_stage()
            return local.commit(self._root, job.manifest, writers, self._check_held)
        step, team = job.manifest.step, self._team
        try:
            self._check_stage()
            mine = self._write_part(job, writers if team.leads else {}, team)
        except (OSError, RuntimeError, CheckpointError) as error:
            for what in ("written", "committed") if team.leads else ("written",):
                team.post(step, what, error=CheckpointError(str(error)))
            raise
        team.post(step, "written", {name: asdict(record) for name, record in mine.items()})
        if not team.leads:
            team.hear(step, "committed", rank=0)
            return replace(job.manifest, files=mine)
        return self._commit_parts(job.manifest, team)

    def _check_stage(self) -> None:
        """Raises RunLeaseError where the folder is another process's by now, and with it the stage."""
        if self._lock is not None:
            self._lock.check()

    def _write_part(
        self, job: SaveJob, writers: dict[str, local.Writer], team: Team
    ) -> dict[str, local.FileRecord]:
        """Files of this rank, on this instance's disk."""
        assert job.written is not None
        job.written()
        folder = local.stage(self._root, job.manifest.step)
        return local.write_part(folder, sharded.FilesOfRank(team.rank), writers)

    def _commit_parts(self, manifest: local.Manifest, team: Team) -> local.Manifest:
        """Puts the records of all ranks into the manifest, and commits where all parts are in one folder."""
        try:
            parts = team.gather(manifest.step, "written")
            files = {name: local.FileRecord(**record) for part in parts for name, record in part.items()}
            manifest = replace(manifest, files=files)
            if self._shared:
                local.commit_stage(self._root, manifest, self._check_held)
        except (OSError, CheckpointError) as error:
            team.post(manifest.step, "committed", error=CheckpointError(str(error)))
            raise
        team.post(manifest.step, "committed")
        return manifest

    def _upload(self) -> None:
        """One upload at a time, until a newer checkpoint has to overtake it."""
        _give_way()  # and the threads that come from this one
        while (upload := self._newest()) is not None:
            line = UploadProgress()
            running = threading.Thread(target=self._upload_one, args=(upload, line), name=LINE, daemon=True)
            running.start()
            while running.is_alive() and not self._overtaken(upload, line):
                running.join(LOOK_EVERY_S)

    def _overtaken(self, upload: Upload, line: "UploadProgress") -> bool:
        """Whether the upload is given up: a newer checkpoint waits, and time is short or this one stands.

        One that hangs in a socket cannot be ended; it is left behind, and nobody waits for it.
        """
        with self._uploads.mutex:
            newer = any(waiting is not None for waiting in self._uploads.queue)
        if newer and (self._closing or line.still_s() > STANDS_STILL_S):
            log.warning("event=upload-abandoned step=%d still_s=%.0f", upload.manifest.step, line.still_s())
            line.abandon()
        return line.abandoned

    def _newest(self) -> Upload | None:
        """The next upload; older ones that queued up behind a slow line are passed over."""
        upload = self._uploads.get()
        while upload is not None and not self._uploads.empty():
            following = self._uploads.get()
            if following is None:
                self._uploads.put(None)
                break
            self._pass_over(upload)
            upload = following
        return upload

    def _pass_over(self, upload: Upload) -> None:
        """The other ranks must not wait for an upload that this one gives up."""
        self._uploading.discard(upload.manifest.step)
        if upload.team is not None:
            upload.team.post(upload.manifest.step, "uploaded", ABANDONED)
        if not self._shared:
            shutil.rmtree(upload.folder, ignore_errors=True)

    def _upload_one(self, upload: Upload, line: "UploadProgress") -> None:
        step = upload.manifest.step
        try:
            self._bring_up(upload, line)
        except AbandonedError:
            self._pass_over(upload)
            return
        except CheckpointError as error:
            if not line.abandoned:
                log.error("event=upload-failed step=%d error=%r", step, str(error))
                self._upload_failure = error
            if isinstance(error, RunLeaseError):  # no newer checkpoint makes that good
                self._write_failure = error
            return
        finally:
            self._uploading.discard(step)
        if step < (self.uploaded_step or 0):  # overtaken, and through all the same
            return
        self._upload_failure = None
        self.uploaded_step = step
        self._after_upload(upload)

    def _bring_up(self, upload: Upload, line: "UploadProgress") -> None:
        """Files of this process; when all ranks have brought up theirs, rank 0 commits."""
        assert self._store is not None
        store, manifest, team = self._store, upload.manifest, upload.team
        bring = partial(patiently, within_s=UPLOAD_PATIENCE_S, sleep=line.pause)
        held = self._lease.check if self._lease is not None else _nobody_asks

        def moved(size: int) -> None:
            line.moved(size)
            if self._lease is not None:  # one that stood still must not end a file over its successor's
                self._lease.check_sometimes()

        if team is None:
            bring(held)
            bring(lambda: store.upload(upload.folder, manifest, moved, held))
            return
        try:
            bring(held)
            bring(lambda: store.upload_files(upload.folder, manifest.step, upload.names, moved))
        except CheckpointError as error:
            team.post(manifest.step, "uploaded", error=error)
            raise
        team.post(manifest.step, "uploaded", "")
        if not team.leads:
            return
        if ABANDONED in team.gather(manifest.step, "uploaded", line.look):
            raise AbandonedError
        bring(lambda: store.commit(manifest, held))

    def _after_upload(self, upload: Upload) -> None:
        assert self._store is not None
        if not self._shared and upload.team is not None:
            for name in upload.names:
                (upload.folder / name).unlink(missing_ok=True)
        if upload.team is not None and not upload.team.leads:
            return
        log.info("event=upload step=%d uri=%s", upload.manifest.step, self._store.uri)
        try:
            self._store.prune(upload.manifest.step, self._keep)
        except CheckpointError as error:  # all is saved; too much is kept
            log.warning("event=prune-failed error=%r", str(error))
