"""Saves beside the training: a thread that copies into reused memory, writes, commits and uploads."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_fleet.checkpoint import local
from gpu_fleet.checkpoint.store import Store
from gpu_fleet.errors import CheckpointError
from gpu_fleet.own import ARCHIVE

STATE = "state.pt"
STANDS_STILL_S = 30.0  # an upload that moves nothing for so long lets a newer one pass
LOOK_EVERY_S = 0.5
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
            return {key: self._copy(item, f"{path}/{key}") for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._copy(item, f"{path}/{place}") for place, item in enumerate(value)]
        return value


class AbandonedError(Exception):
    """Ends an upload from within, where a newer checkpoint has overtaken it."""


class Line:
    """What is known of an upload while it runs; asked and told by two threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_at = clock()
        self.abandoned = False

    def moved(self, _bytes: int = 0) -> None:
        """Some bytes have gone up. Raises AbandonedError when the upload is to end."""
        self._moved_at = self._clock()
        if self.abandoned:
            raise AbandonedError

    def still_s(self) -> float:
        """Seconds since something moved."""
        return self._clock() - self._moved_at


@dataclass(frozen=True)
class Job:
    """One save on its way to the disk."""

    manifest: local.Manifest
    copied: Callable[[], Any]  # ends the copy of the state and returns it
    written: Callable[[], object] | None  # waits until the files that other ranks write are down


class Saver:
    """Writes the checkpoints of one process; the training waits for no more than the copy."""

    def __init__(self, root: Path, store: Store | None, keep: int, code: bytes = b"") -> None:
        """`code` is the archive of the user's files, which every checkpoint carries; empty for none."""
        self._root, self._store, self._keep, self._code = root, store, keep, code
        self._snapshot = Snapshot()
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=1)
        self._uploads: queue.Queue[local.Manifest | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self._closing = False
        self._write_failure: CheckpointError | None = None
        self._upload_failure: CheckpointError | None = None  # made good by the upload of a newer checkpoint
        self._uploading: set[int] = set()  # waiting for the line or on it: not to be pruned
        self.uploaded_step: int | None = None
        self._threads = [threading.Thread(target=self._write, name="checkpoint-write", daemon=True)]
        if store is not None:
            self._threads.append(threading.Thread(target=self._upload, name="checkpoint-upload", daemon=True))
        for thread in self._threads:
            thread.start()

    def save(self, manifest: local.Manifest, state: Any, written: Callable[[], object] | None = None) -> None:
        """Begins to save `state`, which must not change before `before_change` has returned.

        `written`, if any, is waited for before the commit: other files of the checkpoint, in its stage.

        A save that is still being written is waited for. Raises CheckpointError when an earlier one failed.
        """
        self.wait()
        self._idle.clear()
        self._jobs.put(Job(manifest, self._snapshot.begin(state), written))

    def upload_if_missing(self, manifest: local.Manifest) -> None:
        """Uploads a checkpoint that was found on this disk, and that the store may never have got."""
        if self._store is not None and manifest.step not in self._store.steps():
            self._uploading.add(manifest.step)
            self._uploads.put(manifest)

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
                local.prune(self._root, manifest.step, self._keep, spared=self._uploading)
                log.info("event=checkpoint step=%d folder=%s", manifest.step, self._root)
                if self._store is not None:
                    self._uploading.add(manifest.step)
                    self._uploads.put(manifest)
            except (OSError, RuntimeError, CheckpointError) as error:  # a full disk: RuntimeError of torch
                what = f"{self._root}: step {job.manifest.step} cannot be written"
                self._write_failure = CheckpointError(f"{what}: {error}")
            finally:
                self._idle.set()
        self._uploads.put(None)

    def _commit(self, job: Job) -> local.Manifest:
        writers: dict[str, local.Writer] = {STATE: partial(torch.save, job.copied())}
        if self._code:
            writers[ARCHIVE] = lambda file: file.write(self._code)
        if job.written is None:
            return local.commit(self._root, job.manifest, writers)
        job.written()
        return local.commit_with_others(self._root, job.manifest, writers)

    def _upload(self) -> None:
        """One upload at a time, until a newer checkpoint has to overtake it."""
        while (manifest := self._newest()) is not None:
            line = Line()
            running = threading.Thread(
                target=self._upload_one, args=(manifest, line), name="checkpoint-line", daemon=True
            )
            running.start()
            while running.is_alive() and not self._overtaken(manifest, line):
                running.join(LOOK_EVERY_S)

    def _overtaken(self, manifest: local.Manifest, line: "Line") -> bool:
        """Whether the upload is given up: a newer checkpoint waits, and time is short or this one stands.

        One that hangs in a socket cannot be ended; it is left behind, and nobody waits for it.
        """
        with self._uploads.mutex:
            newer = any(waiting is not None for waiting in self._uploads.queue)
        if newer and (self._closing or line.still_s() > STANDS_STILL_S):
            log.warning("event=upload-abandoned step=%d still_s=%.0f", manifest.step, line.still_s())
            line.abandoned = True
        return line.abandoned

    def _newest(self) -> local.Manifest | None:
        """The next upload; older ones that queued up behind a slow line are passed over."""
        manifest = self._uploads.get()
        while manifest is not None and not self._uploads.empty():
            following = self._uploads.get()
            if following is None:
                self._uploads.put(None)
                break
            self._uploading.discard(manifest.step)
            manifest = following
        return manifest

    def _upload_one(self, manifest: local.Manifest, line: "Line") -> None:
        assert self._store is not None
        try:
            self._store.upload(self._root / local.folder_name(manifest.step), manifest, line.moved)
        except AbandonedError:
            return
        except CheckpointError as error:
            if not line.abandoned:
                log.error("event=upload-failed step=%d error=%r", manifest.step, str(error))
                self._upload_failure = error
            return
        finally:
            self._uploading.discard(manifest.step)
        if manifest.step < (self.uploaded_step or 0):  # overtaken, and through all the same
            return
        self._upload_failure = None
        self.uploaded_step = manifest.step
        log.info("event=upload step=%d uri=%s", manifest.step, self._store.uri)
        try:
            self._store.prune(manifest.step, self._keep)
        except CheckpointError as error:  # all is saved; too much is kept
            log.warning("event=prune-failed error=%r", str(error))
