"""How often a run has begun at one step: what fails there again and again is not tried for ever.

A try is a start of `launch`, or of `train` without it; what torchrun starts again belongs to the same one. It
is noted when it has its checkpoint, and forgotten when the run finishes, stops for a notice, or fails for
good: then nobody tries again, and whoever does so has changed something. A run without checkpoint.resume
begins each try at step 0: there the first checkpoint is what forgets the note. The note is in the bucket, or
in the run directory of a run without one.
"""

import json
from contextlib import suppress
from pathlib import Path

from gpu_fleet import outcome
from gpu_fleet.errors import CheckpointError, StandstillError
from gpu_fleet.files import write_bytes
from gpu_fleet.storage.object_store import ObjectStore, at_start

NOTE = "tries.json"


class Tries:
    """Of one run, in a row from the same step."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._limit = directory, limit
        self._store: ObjectStore | None = None
        self._begun = False

    def begin(self, step: int, store: ObjectStore | None, *, leads: bool) -> None:
        """Notes that one begins at `step`, by the rank that `leads`.

        Raises StandstillError where it would be one more than may, and CheckpointError.
        """
        self._store = store
        if leads and not outcome.restarted():
            before = self._read()
            number = before.get("tries", 0) + 1 if before.get("step") == step else 1
            if number > self._limit:
                self._write({})
                raise StandstillError(
                    f"{self._limit} tries in a row have begun at step {step} and none came to a checkpoint "
                    "after it; the log says why each has failed. Run it once more to try as often again; "
                    "checkpoint.tries allows more, checkpoint.every_steps shortens the way to a checkpoint"
                )
            self._write({"step": step, "tries": number})
        self._begun = True

    def end(self) -> None:
        """Nothing is left to count: the run has ended as it should, or for good, or has come on."""
        if self._begun:
            self._begun = False
            with suppress(CheckpointError):  # which is said by what else could not be written there
                self._write({})

    def _read(self) -> dict[str, int]:
        """Nothing where there is no note, or none that can be read."""
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
        try:
            if table or (self._directory / NOTE).exists():
                write_bytes(self._directory / NOTE, content)
        except OSError as error:
            raise CheckpointError(
                f"run.directory: {self._directory / NOTE} cannot be written: {error.strerror}"
            ) from error
