"""Saves while training runs: threads copy the state into reused memory, write, commit and upload it."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_fleet.checkpoint import local, names
from gpu_fleet.checkpoint.lease import RunClaim
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.checkpoint.uploader import Team, Uploader, give_way
from gpu_fleet.core.containers import mapping_like, read_state, sequence_like
from gpu_fleet.core.errors import CheckpointError, RunLeaseError, UnreadableError, reason_of
from gpu_fleet.core.user_code import ARCHIVE

Copied = Callable[[], Any]
Written = Callable[[], object] | None
log = logging.getLogger(__name__)


class Snapshot:
    """Copy of a nested state in CPU memory that is allocated once and reused for every save.

    It runs until the next update of the weights, as in Mohan et al., "CheckFreq", 2021.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._taken = threading.Event()
        self._taken.set()
        self._arrival: torch.cuda.Event | None = None  # end of copies from a GPU that are queued

    def begin(self, state: Any) -> Callable[[], Any]:
        """Begin a copy, valid until the next one. Call the result, in any thread, to finish and get it."""
        self._taken.clear()
        return self._queue(state) if torch.cuda.is_available() else partial(self._take, state)

    def before_change(self) -> float:
        """Wait, before an update, for a copy that still reads the tensors. Return the seconds."""
        if self._arrival is None and self._taken.is_set():
            return 0.0
        begin = time.perf_counter()
        self._taken.wait()
        if self._arrival is not None:
            torch.cuda.current_stream().wait_event(self._arrival)
            self._arrival = None
        return time.perf_counter() - begin

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
            return sequence_like(value, (self._copy(item, f"{path}/{n}") for n, item in enumerate(value)))
        return value


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
        """Start the threads; once another process has the `claim`, nothing more is committed.

        Each rank of a `team` writes and uploads a part. If its instances do not see one `shared` root, that
        holds parts until they are uploaded, and checkpoints are only in the store.
        """
        self._root, self._keep, self._code = root, keep, code
        self._claim, self._team, self._shared = claim or RunClaim(), team, shared
        self.snapshot = Snapshot()  # of the last save
        # of each save: its manifest; what finishes the copy of the state; what waits for this rank's part
        self._jobs: queue.Queue[tuple[local.Manifest, Copied, Written] | None] = queue.Queue(maxsize=1)
        self._idle = threading.Event()
        self._idle.set()
        self._closing = self._is_read_back = False
        self._write_failure: CheckpointError | None = None
        self.committed: Callable[[], None] = lambda: None  # called after each commit, in the saver's thread
        self._uploader: Uploader | None = None
        self._threads = [threading.Thread(target=self._write, name="checkpoint-write", daemon=True)]
        self._threads[0].start()
        if store is not None:
            self._uploader = Uploader(root, store, keep, self._claim, shared=shared)
            self._threads.append(self._uploader.thread)

    def save(self, manifest: local.Manifest, state: Any, written: Callable[[], object] | None = None) -> None:
        """Begin to save `state`, which must not change before `snapshot.before_change` has returned."""
        self.wait()
        self._idle.clear()
        self._jobs.put((manifest, self.snapshot.begin(state), written))

    def upload(self, manifest: local.Manifest, team: Team | None = None) -> None:
        """Upload a checkpoint of this disk, or with a `team` this rank's part of it."""
        if self._uploader is not None:
            self._uploader.add(manifest, team)

    def wait(self) -> None:
        self._idle.wait()
        if failure := self._write_failure or (self._uploader and self._uploader.lost):
            raise failure

    def close(self, within_s: float | None = None) -> bool:
        """Return whether, within `within_s`, all is on disk and the newest uploaded; else call it again."""
        if not self._closing:
            self._closing = True
            if self._uploader is not None:
                self._uploader.hurried = True
            self._jobs.put(None)
        until_s = None if within_s is None else time.monotonic() + within_s
        for thread in self._threads:
            thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        self.wait()
        if self._uploader is not None:
            self._uploader.check()
        return True

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            step = job[0].step
            try:
                manifest = self._commit(*job)
                self._read_back(step)
                if self._team is None or (self._team.leads and self._shared):
                    spared = self._uploader.waiting if self._uploader else ()
                    local.prune(self._root, step, self._keep, spared)
                log.info("event=checkpoint step=%d folder=%s", step, self._root)
                self.committed()
                self.upload(manifest, self._team)
            except (RunLeaseError, UnreadableError) as error:
                self._write_failure = error
            except Exception as error:  # noqa: BLE001 - any would end this thread, and the run waits for it
                what = f"{self._root}: step {step} cannot be written"
                self._write_failure = CheckpointError(f"{what}: {reason_of(error)}")
            finally:
                self._idle.set()
        if self._uploader is not None:
            self._uploader.end()

    def _read_back(self, step: int) -> None:
        """Read the first checkpoint as a restore does; raises UnreadableError if that is refused."""
        file = self._root / names.step_name(step) / names.STATE
        if self._is_read_back or not file.exists():
            return
        try:
            read_state(file, mapped=True)
        except UnreadableError:
            local.set_aside(file.parent, "unreadable")  # a next start takes the one before
            raise
        self._is_read_back = True

    def _commit(self, manifest: local.Manifest, copied: Copied, written: Written) -> local.Manifest:
        state = copied()  # the training waits for this
        if self._closing:  # nothing trains any more: other programs must not hold up the last save
            return self._commit_state(manifest, state, written)
        # with a low priority, as it takes as much time of a core as a step
        with ThreadPoolExecutor(1, initializer=give_way) as pool:
            return pool.submit(self._commit_state, manifest, state, written).result()

    def _commit_state(self, manifest: local.Manifest, state: Any, written: Written) -> local.Manifest:
        writers: dict[str, local.Writer] = {names.STATE: partial(torch.save, state)}
        if self._code:
            writers[ARCHIVE] = lambda file: file.write(self._code)
        if self._team is None:
            self._claim.check_folder()  # the stage is in it
            return local.commit(self._root, manifest, writers, self._claim.check)
        step, team = manifest.step, self._team
        try:
            self._claim.check_folder()  # the stage is in it
            assert written is not None
            written()
            folder = names.staged(self._root, step)
            mine = local.write_part(folder, team.rank, writers if team.leads else {})
        except Exception as error:  # the other ranks wait for a report of any outcome
            for what in ("written", "committed") if team.leads else ("written",):
                team.post(step, what, error=CheckpointError(reason_of(error)))
            raise
        team.post(step, "written", {name: asdict(record) for name, record in mine.items()})
        if not team.leads:
            team.hear(step, "committed", rank=0)
            return replace(manifest, files=mine)
        return self._commit_parts(manifest, team)

    def _commit_parts(self, manifest: local.Manifest, team: Team) -> local.Manifest:
        """Put the records of all ranks into the manifest, and commit if all parts are in one folder."""
        try:
            parts = team.gather(manifest.step, "written")
            files = {name: local.FileRecord(**record) for part in parts for name, record in part.items()}
            manifest = replace(manifest, files=files)
            if self._shared:
                local.commit_stage(self._root, manifest, self._claim.check)
        except Exception as error:  # as above
            team.post(manifest.step, "committed", error=CheckpointError(reason_of(error)))
            raise
        team.post(manifest.step, "committed")
        return manifest
