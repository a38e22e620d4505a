"""Saves beside the training: a copy into reused memory, then a thread that writes, commits and uploads."""

import logging
import queue
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.checkpoint import local
from training.checkpoint.store import Store
from training.errors import CheckpointError

STATE = "state.pt"
log = logging.getLogger(__name__)


class Snapshot:
    """A copy of a nested state in CPU memory that is allocated once and used again for every save."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, state: Any) -> Any:
        """The same nesting with every tensor copied; valid until the next call."""
        copied = self._copy(state, "")
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # the copies were only queued
        return copied

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


@dataclass(frozen=True)
class Job:
    """One save on its way to the disk."""

    manifest: local.Manifest
    state: Any


class Saver:
    """Writes the checkpoints of one process; `save` costs the training only the copy."""

    def __init__(self, root: Path, store: Store | None, keep: int) -> None:
        self._root, self._store, self._keep = root, store, keep
        self._snapshot = Snapshot()
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=1)
        self._uploads: queue.Queue[local.Manifest | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self._write_failure: CheckpointError | None = None
        self._upload_failure: CheckpointError | None = None  # made good by the upload of a newer checkpoint
        self.uploaded_step: int | None = None
        self._threads = [threading.Thread(target=self._write, name="checkpoint-write", daemon=True)]
        if store is not None:
            self._threads.append(threading.Thread(target=self._upload, name="checkpoint-upload", daemon=True))
        for thread in self._threads:
            thread.start()

    def save(self, manifest: local.Manifest, state: Any) -> float:
        """Takes a copy of `state` and returns how many seconds the training stood still for it.

        A save that is still being written is waited for. Raises CheckpointError when an earlier one failed.
        """
        begin = time.perf_counter()
        self._idle.wait()
        if self._write_failure is not None:
            raise self._write_failure
        self._idle.clear()
        self._jobs.put(Job(manifest, self._snapshot.take(state)))
        return time.perf_counter() - begin

    def close(self) -> None:
        """Waits until all saves are on disk and the newest is uploaded; raises CheckpointError if not."""
        self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        failure = self._write_failure or self._upload_failure
        if failure is not None:
            raise failure

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                writers: dict[str, local.Writer] = {STATE: partial(torch.save, job.state)}
                manifest = local.commit(self._root, job.manifest, writers)
                local.prune(self._root, self._keep)
                log.info("event=checkpoint step=%d folder=%s", manifest.step, self._root)
                self._uploads.put(manifest)
            except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
                what = f"{self._root}: step {job.manifest.step} cannot be written"
                self._write_failure = CheckpointError(f"{what}: {error}")
            finally:
                self._idle.set()
        self._uploads.put(None)

    def _upload(self) -> None:
        while (manifest := self._newest()) is not None:
            self._upload_one(manifest)

    def _newest(self) -> local.Manifest | None:
        """The next upload; older ones that queued up behind a slow line are passed over."""
        manifest = self._uploads.get()
        while manifest is not None and not self._uploads.empty():
            following = self._uploads.get()
            if following is None:
                self._uploads.put(None)
                return manifest
            manifest = following
        return manifest

    def _upload_one(self, manifest: local.Manifest) -> None:
        assert self._store is not None
        try:
            self._store.upload(self._root / local.folder_name(manifest.step), manifest)
            self._store.prune(self._keep)
        except CheckpointError as error:
            log.error("event=upload-failed step=%d error=%r", manifest.step, str(error))
            self._upload_failure = error
            return
        self._upload_failure = None
        self.uploaded_step = manifest.step
        log.info("event=upload step=%d uri=%s", manifest.step, self._store.uri)
