"""Count of the tries that began at one step, so that a run that always fails there is not retried for ever.

A try is one start of `launch`, or of `train start` without it. The run notes it, in the bucket or else its
directory, once its checkpoint is loaded. It clears the note when it finishes, stops for a notice, or fails
for good; without checkpoint.resume, each try begins at step 0, its first checkpoint does.
"""

import json
from contextlib import suppress
from pathlib import Path

from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, StandstillError
from gpu_fleet.core.files import on_disk, write_bytes
from gpu_fleet.storage.object_store import ObjectStore, at_start

NOTE = "tries.json"


class Tries:
    """Count of the tries of one run in a row that began at the same step."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._limit = directory, limit
        self._store: ObjectStore | None = None
        self._begun = False

    def begin(self, step: int, store: ObjectStore | None, *, leads: bool) -> None:
        """Note that a try begins at `step`; raises StandstillError beyond the limit, and CheckpointError."""
        self._store = store
        if leads and not outcome.restarted():
            before = self._read()
            number = before.get("tries", 0) + 1 if before.get("step") == step else 1
            if number > self._limit:
                self._write({})
                raise StandstillError(
                    f"{self._limit} tries in a row have begun at step {step} and none reached a later "
                    "checkpoint; the log says why each has failed. Run it once more for as many tries; raise "
                    "checkpoint.tries for more, or lower checkpoint.every_steps to save earlier"
                )
            self._write({"step": step, "tries": number})
        self._begun = True

    def end(self) -> None:
        if self._begun:
            self._begun = False
            with suppress(CheckpointError):  # the other writes to this store report the same error
                self._write({})

    def _read(self) -> dict[str, int]:
        try:
            if self._store is not None:
                content = at_start(lambda: self._store.get(NOTE) if self._store else None)
            else:
                content = (self._directory / NOTE).read_bytes()
            table = json.loads(content or b"{}")
            return {key: int(table[key]) for key in ("step", "tries") if key in table}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write(self, table: dict[str, int]) -> None:
        content = json.dumps(table).encode()
        if self._store is not None:
            self._store.put(NOTE, content)
            return
        if table or (self._directory / NOTE).exists():
            with on_disk(self._directory / NOTE):
                write_bytes(self._directory / NOTE, content)
