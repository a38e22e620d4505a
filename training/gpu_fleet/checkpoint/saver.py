"""Saves while training runs: threads copy the state into reused memory, write, commit and upload it."""

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
from gpu_fleet.checkpoint.claim import RunClaim
from gpu_fleet.checkpoint.restore import read_state
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.checkpoint.team import Team
from gpu_fleet.containers import mapping_like, sequence_like
from gpu_fleet.errors import CheckpointError, RunLeaseError, UnreadableError
from gpu_fleet.own_code import ARCHIVE
from gpu_fleet.storage.object_store import at_start, patiently

STATE = "state.pt"
LINE = "checkpoint-line"  # the thread of an upload
ABANDONED = "abandoned"  # a rank's report of an upload that it gave up for a newer one
STANDS_STILL_S = 30.0  # a newer upload may overtake one that moves nothing for this long
LOOK_EVERY_S = 0.5
UPLOAD_PATIENCE_S = 60.0  # for passing failures of a bucket; an AWS notice leaves two minutes
LESS_URGENT = 10  # nice(1) value: a tenth of a core that the training also wants, or all of a free core
T = TypeVar("T")
log = logging.getLogger(__name__)


class Snapshot:
    """Copy of a nested state in CPU memory that is allocated once and reused for every save.

    Weights and moments do not change until the next update, so the copy runs during the forward and the
    backward pass (as in Mohan et al., "CheckFreq", 2021). `before_change` waits for the rest of it.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._taken = threading.Event()
        self._taken.set()
        self._arrival: torch.cuda.Event | None = None  # end of copies from a GPU that are queued

    def begin(self, state: Any) -> Callable[[], Any]:
        """Begin a copy. Call the result, in any thread, to finish and get it.

        The copy is valid until the next `begin`.
        """
        self._taken.clear()
        return self._queue(state) if torch.cuda.is_available() else partial(self._take, state)

    def before_change(self) -> None:
        """Wait until the tensors of the state may change; call it before each update."""
        if not self._taken.is_set():  # a wait takes 3 us even if there is nothing to wait for
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
        """Queue the copy on a separate CUDA stream, for which the training's stream does not wait yet."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no hints here
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copied = self._take(state)
            arrival = side.record_event()
        self._arrival = arrival
        held = [state]  # keeps the memory of temporary tensors until the copy is done

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
        if isinstance(value, (list, tuple, set)):  # without a copy it may change during the write
            return sequence_like(
                value, [self._copy(item, f"{path}/{place}") for place, item in enumerate(value)]
            )
        return value


class AbandonedError(Exception):
    """Raised inside an upload that a newer checkpoint has overtaken."""


def left_behind() -> bool:
    """Return whether an abandoned upload hangs in a socket, and would delay the end of the process."""
    return any(thread.name == LINE for thread in threading.enumerate())


class UploadProgress:
    """Progress of a running upload; two threads read and write it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_at = clock()
        self._abandoned = threading.Event()

    @property
    def abandoned(self) -> bool:
        """True if a newer checkpoint has overtaken the upload."""
        return self._abandoned.is_set()

    def abandon(self) -> None:
        """Make the upload end at its next `look`, wherever it waits."""
        self._abandoned.set()

    def pause(self, seconds: float) -> None:
        """Wait for the next try; raises AbandonedError if the upload is abandoned."""
        self._abandoned.wait(seconds)
        self.look()

    def moved(self, _bytes: int = 0) -> None:
        """Note that bytes were uploaded; raises AbandonedError if the upload is abandoned."""
        self._moved_at = self._clock()
        self.look()

    def look(self) -> None:
        """Raise AbandonedError if the upload is abandoned."""
        if self.abandoned:
            raise AbandonedError

    def still_s(self) -> float:
        """Return the seconds since bytes were uploaded."""
        return self._clock() - self._moved_at


def politely(action: Callable[[], T]) -> T:
    """Run `action` in a thread with a low priority, so that the training gets the core first.

    A checkpoint takes as much time of a core to hash, write and upload as a step. The caller sleeps until the
    end. On Linux each thread has its own nice value: setpriority(2).
    """
    with ThreadPoolExecutor(1, initializer=_give_way) as pool:
        return pool.submit(action).result()


def _nobody_asks() -> None:
    """Do nothing: the callback of a run without a lease, and of a saver whose owner sets none."""


def _give_way() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LESS_URGENT)


def _reason(error: Exception) -> str:
    """Return the message of an error that a user knows, and for others their kind too."""
    known = isinstance(error, OSError | RuntimeError | CheckpointError)  # torch: RuntimeError for a full disk
    return str(error) if known else f"{type(error).__name__}: {error}"


def _failure_of(step: int, error: Exception) -> CheckpointError:
    if isinstance(error, CheckpointError):
        return error
    return CheckpointError(f"step {step} cannot be uploaded: {_reason(error)}")


@dataclass(frozen=True)
class SaveJob:
    """A save that is to be written to disk."""

    manifest: local.Manifest
    copied: Callable[[], Any]  # finishes the copy of the state and returns it
    written: Callable[[], object] | None  # waits until this rank's part of the model is on disk


@dataclass(frozen=True)
class Upload:
    """The files of one checkpoint that this process uploads."""

    manifest: local.Manifest
    folder: Path
    names: tuple[str, ...]
    team: Team | None  # the ranks that upload the checkpoint together; None: this process uploads all


class Saver:
    """Writer of the checkpoints of one process, or of its part; the training waits only for the copy."""

    def __init__(
        self,
        root: Path,
        store: CheckpointStore | None,
        keep: int,
        claim: RunClaim | None = None,
        team: Team | None = None,
        *,
        shared: bool = True,
        code: bytes = b"",
    ) -> None:
        """Start the threads.

        Args:
            root: the folder of checkpoints.
            store: the bucket; None for none.
            keep: number of checkpoints that stay.
            claim: once another process has it, nothing more is committed. The caller releases it.
            team: the ranks that each write and upload a part; None: this process writes all.
            shared: all instances of the team see `root`. Otherwise checkpoints are only in the store, and
                `root` holds parts of them until they are uploaded.
            code: the archive of the user's files, a file of every checkpoint; empty for none.
        """
        self._root, self._store, self._keep, self._code = root, store, keep, code
        self._claim, self._team, self._shared = claim or RunClaim(), team, shared
        self._snapshot = Snapshot()
        self._jobs: queue.Queue[SaveJob | None] = queue.Queue(maxsize=1)
        self._uploads: queue.Queue[Upload | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self._closing = self._is_read_back = False
        self._write_failure: CheckpointError | None = None
        self._upload_failure: CheckpointError | None = None  # cleared by the upload of a newer checkpoint
        self._uploading: set[int] = set()  # steps that wait for an upload or are in one: not pruned
        self.uploaded_step: int | None = None
        self._queued: local.Manifest | None = None  # of the newest upload
        self.committed: Callable[[], None] = _nobody_asks  # called after each commit, in the saver's thread
        self._threads = [threading.Thread(target=self._write, name="checkpoint-write", daemon=True)]
        if store is not None:
            self._threads.append(threading.Thread(target=self._upload, name="checkpoint-upload", daemon=True))
        for thread in self._threads:
            thread.start()

    def save(self, manifest: local.Manifest, state: Any, written: Callable[[], object] | None = None) -> None:
        """Begin to save `state`, which must not change before `before_change` has returned.

        `written`, if any, waits until DCP has written this rank's part into the stage; the commit calls it.
        `save` itself waits for the save before. Raises CheckpointError if an earlier one failed.
        """
        self.wait()
        self._idle.clear()
        self._jobs.put(SaveJob(manifest, self._snapshot.begin(state), written))

    def upload_if_missing(self, manifest: local.Manifest) -> None:
        """Upload a checkpoint from this disk if the store does not have it."""
        if self._store is not None and manifest.step not in at_start(self._store.steps):
            self._queue_upload(manifest, None)

    def _queue_upload(self, manifest: local.Manifest, team: Team | None) -> None:
        self._queued = manifest
        self._uploading.add(manifest.step)
        own = sharded.FilesOfRank(team.rank) if team else manifest.files
        folder = self._root / local.folder_name(manifest.step)
        if not self._shared and team:
            folder = local.stage(self._root, manifest.step)
        names = tuple(name for name in manifest.files if name in own)
        self._uploads.put(Upload(manifest, folder, names, team))

    def before_change(self) -> None:
        """Wait until the last save no longer needs the tensors of its state."""
        self._snapshot.before_change()

    def wait(self) -> None:
        """Wait until the last save is on disk; raises CheckpointError if it failed."""
        self._idle.wait()
        if self._write_failure is not None:
            raise self._write_failure

    def close(self, within_s: float | None = None) -> bool:
        """Wait until all saves are on disk and the newest is uploaded. Return whether they are.

        False means that `within_s` seconds were not enough: call it again. Raises CheckpointError if a save
        or the newest upload failed.
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
        self._check_uploaded()
        return True

    def _check_uploaded(self) -> None:
        """Raise CheckpointError unless a listing shows the newest checkpoint in the store, file by file."""
        store, newest = self._store, self._queued
        if store is None or newest is None:
            return
        if self.uploaded_step != newest.step:
            raise CheckpointError(f"{store.uri}: step {newest.step} is on disk, and was not uploaded")
        if self._team is None or self._team.leads:
            patiently(lambda: store.check_whole(newest), within_s=UPLOAD_PATIENCE_S)

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                manifest = self._commit(job)
                self._read_back(manifest.step)
                if self._team is None or (self._team.leads and self._shared):
                    local.prune(self._root, manifest.step, self._keep, spared=self._uploading)
                log.info("event=checkpoint step=%d folder=%s", manifest.step, self._root)
                self.committed()
                if self._store is not None:
                    self._queue_upload(manifest, self._team)
            except (RunLeaseError, UnreadableError) as error:
                self._write_failure = error
            except Exception as error:  # noqa: BLE001 - any would end this thread, and the run waits for it
                what = f"{self._root}: step {job.manifest.step} cannot be written"
                self._write_failure = CheckpointError(f"{what}: {_reason(error)}")
            finally:
                self._idle.set()
        self._uploads.put(None)

    def _read_back(self, step: int) -> None:
        """Read the first checkpoint as a restore does; raises UnreadableError if that is refused."""
        file = self._root / local.folder_name(step) / STATE
        if self._is_read_back or not file.exists():
            return
        try:
            read_state(file, mapped=True)
        except Exception as error:  # whatever unpickling raises, a restore would raise it too
            raise UnreadableError(f"{file}: what was saved cannot be read again: {_reason(error)}") from error
        self._is_read_back = True

    def _commit(self, job: SaveJob) -> local.Manifest:
        copied = job.copied()  # the training waits for this
        return politely(lambda: self._written(job, copied))

    def _written(self, job: SaveJob, copied: Any) -> local.Manifest:
        writers: dict[str, local.Writer] = {STATE: partial(torch.save, copied)}
        if self._code:
            writers[ARCHIVE] = lambda file: file.write(self._code)
        if self._team is None:
            self._claim.check_folder()  # the stage is in it
            return local.commit(self._root, job.manifest, writers, self._claim.check)
        step, team = job.manifest.step, self._team
        try:
            self._claim.check_folder()  # the stage is in it
            mine = self._write_part(job, writers if team.leads else {}, team)
        except Exception as error:  # the other ranks wait for a word, whatever it is
            for what in ("written", "committed") if team.leads else ("written",):
                team.post(step, what, error=CheckpointError(_reason(error)))
            raise
        team.post(step, "written", {name: asdict(record) for name, record in mine.items()})
        if not team.leads:
            team.hear(step, "committed", rank=0)
            return replace(job.manifest, files=mine)
        return self._commit_parts(job.manifest, team)

    def _write_part(
        self, job: SaveJob, writers: dict[str, local.Writer], team: Team
    ) -> dict[str, local.FileRecord]:
        """Write the files of this rank to this instance's disk. Return their records."""
        assert job.written is not None
        job.written()
        folder = local.stage(self._root, job.manifest.step)
        return local.write_part(folder, sharded.FilesOfRank(team.rank), writers)

    def _commit_parts(self, manifest: local.Manifest, team: Team) -> local.Manifest:
        """Put the records of all ranks into the manifest, and commit if all parts are in one folder."""
        try:
            parts = team.gather(manifest.step, "written")
            files = {name: local.FileRecord(**record) for part in parts for name, record in part.items()}
            manifest = replace(manifest, files=files)
            if self._shared:
                local.commit_stage(self._root, manifest, self._claim.check)
        except Exception as error:  # as in `_written`
            team.post(manifest.step, "committed", error=CheckpointError(_reason(error)))
            raise
        team.post(manifest.step, "committed")
        return manifest

    def _upload(self) -> None:
        """Upload one checkpoint at a time; a newer checkpoint may overtake one that hangs."""
        _give_way()  # new threads inherit the priority
        while (upload := self._newest()) is not None:
            line = UploadProgress()
            running = threading.Thread(target=self._upload_one, args=(upload, line), name=LINE, daemon=True)
            running.start()
            while running.is_alive() and not self._overtaken(upload, line):
                running.join(LOOK_EVERY_S)

    def _overtaken(self, upload: Upload, line: "UploadProgress") -> bool:
        """Return whether the upload is given up: a newer one waits, and the run ends or this one hangs.

        An upload that hangs in a socket cannot be stopped: its thread is left behind.
        """
        with self._uploads.mutex:
            newer = any(waiting is not None for waiting in self._uploads.queue)
        if newer and (self._closing or line.still_s() > STANDS_STILL_S):
            log.warning("event=upload-abandoned step=%d still_s=%.0f", upload.manifest.step, line.still_s())
            line.abandon()
        return line.abandoned

    def _newest(self) -> Upload | None:
        """Return the newest queued upload; older ones that queued up behind a slow upload are skipped."""
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
        """Skip an upload, and report that to the other ranks, so that they do not wait for it."""
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
        except Exception as error:  # noqa: BLE001 - any would end this thread, and nobody would know
            if not line.abandoned:
                log.error("event=upload-failed step=%d error=%r", step, _reason(error))
                self._upload_failure = _failure_of(step, error)
            if isinstance(error, RunLeaseError):  # a newer checkpoint cannot clear this failure
                self._write_failure = error
            return
        finally:
            self._uploading.discard(step)
        if step < (self.uploaded_step or 0):  # overtaken, but it has succeeded
            return
        self._upload_failure = None
        self.uploaded_step = step
        self._after_upload(upload)

    def _bring_up(self, upload: Upload, line: "UploadProgress") -> None:
        """Upload the files of this process; rank 0 commits when all ranks have uploaded theirs."""
        assert self._store is not None
        store, manifest, team = self._store, upload.manifest, upload.team
        bring = partial(patiently, within_s=UPLOAD_PATIENCE_S, sleep=line.pause)
        held = self._claim.check_bucket

        def moved(size: int) -> None:
            line.moved(size)
            self._claim.check_sometimes()  # a paused upload must not overwrite a file of the next holder

        if team is None:
            bring(held)
            bring(lambda: store.upload(upload.folder, manifest, moved, held))
            return
        try:
            bring(held)
            bring(lambda: store.upload_files(upload.folder, manifest.step, upload.names, moved))
        except AbandonedError:
            raise
        except Exception as error:  # the other ranks wait for a word, whatever it is
            team.post(manifest.step, "uploaded", error=_failure_of(manifest.step, error))
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
        except CheckpointError as error:  # nothing is lost: the store keeps too much
            log.warning("event=prune-failed error=%r", str(error))
