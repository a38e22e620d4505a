"""Claim on a folder of checkpoints: one process at a time holds it, and no other run continues in it.

The claim has three parts, as in `Run`: a lock on this disk, a lease in the bucket, and gpu-fleet.json beside
the checkpoints, with the values that decided the result at the last save. Rank 0 holds all three.
"""

import atexit
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import default_collate

from gpu_fleet import run_identity
from gpu_fleet.checkpoint import local
from gpu_fleet.checkpoint.folder_files import OURS
from gpu_fleet.checkpoint.lease import Holder, RunLease
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.data.own_data import adapted
from gpu_fleet.errors import CheckpointError, ConfigError, DataError, IdentityError, OwnCodeError
from gpu_fleet.files import write_bytes
from gpu_fleet.run_identity import Identity
from gpu_fleet.storage.object_store import at_start

IDENTITY = "gpu-fleet.json"  # a file of the folder, which the bucket holds too
ARGUMENTS = "arguments"  # section of the library's arguments in the keys of an identity
log = logging.getLogger(__name__)


class FolderClaim:
    """Claim on a folder, and on its URI in the bucket (empty for none)."""

    def __init__(
        self, directory: Path, place: str, config: Mapping[str, Any], allow: Sequence[str], how: str
    ) -> None:
        """Prepare the claim; `how` is the code, with {keys}, by which a user allows some differences."""
        self._directory, self._place, self._how = directory, place, how
        self._config, self._allow = dict(config), tuple(allow)
        self._lock: local.FolderLock | None = None
        self._lease: RunLease | None = None
        self._identity: Identity = {}

    def take(self) -> None:
        """Take the lock and the lease.

        Raises CheckpointError while another process has the folder, RunLeaseError while one has the URI.
        """
        if self._lock is not None:
            return
        ours = self._directory / OURS
        try:
            ours.mkdir(parents=True, exist_ok=True)
            self._lock = local.lock(ours)
            if self._place:
                lease = RunLease(CheckpointStore(self._place), Holder.this())
                at_start(lease.acquire)
                self._lease = lease
                atexit.register(self.release)  # however the library's loop ends
            self._lock.mark()  # only now: a refused process leaves the folder to its holder
        except OSError as error:
            raise CheckpointError(f"{self._directory}: cannot be written: {error.strerror}") from error

    def check(self, checkpoint: str | None) -> None:
        """Raise IdentityError if the checkpoint is of another configuration or of other code."""
        self._identity = run_identity.of_script(self._config, self._directory)
        allowed = [key for key in self._allow if key.startswith(run_identity.OF_SCRIPT)]
        self._compare(checkpoint, allowed)
        if checkpoint is not None:
            run_identity.say_not_compared(self._saved(), self._identity, _step_of(checkpoint))

    def check_all(self, checkpoint: str | None, arguments: Mapping[str, Any], samples: Any) -> None:
        """Check configuration, code, the library's `arguments` and the data set; raises IdentityError.

        The arguments and the data set are known later than configuration and code, which `check` compares.
        """
        further = dict(run_identity.flattened({ARGUMENTS: arguments, "data": _described(samples)}))
        self._identity = run_identity.of_script(self._config, self._directory) | further
        self._compare(checkpoint, self._allow)
        if checkpoint is None:
            self._write()

    def _compare(self, checkpoint: str | None, allowed: Sequence[str]) -> None:
        saved = self._saved() if checkpoint is not None else {}
        if checkpoint is not None and saved:
            where = str(self._directory)
            run_identity.check_script(
                saved, self._identity, allowed, _step_of(checkpoint), where, how=self._how
            )

    def _saved(self) -> Identity:
        """Return the identity at the last save; empty (nothing to compare) if an earlier trainer saved."""
        file = self._directory / IDENTITY
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise IdentityError(f"{file}: cannot be read: {error}") from error

    def _write(self) -> None:
        file = self._directory / IDENTITY
        staged = self._directory / OURS / IDENTITY
        try:
            write_bytes(staged, (json.dumps(self._identity, indent=1, sort_keys=True) + "\n").encode())
            staged.replace(file)
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be written: {error.strerror}") from error

    def saved(self) -> None:
        """Record the identity after a save; raises RunLeaseError if another process has taken the run."""
        if self._lease is not None:
            self._lease.check()
        if self._identity != self._saved():
            self._write()

    def release(self) -> None:
        """Release lease and lock, so that another process may take the folder."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
            atexit.unregister(self.release)
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _step_of(checkpoint: str) -> int:
    return int("".join(filter(str.isdigit, Path(checkpoint).name)))


def _described(samples: Any) -> dict[str, Any]:
    """Return the length and content digest of a data set; empty if it cannot be read by number."""
    if samples is None:
        return {}
    try:
        data = adapted(samples, "the data set", default_collate, ConfigError)
        return {"samples": len(data), **run_identity.of_data(data)}
    except (
        ConfigError,
        DataError,
        OwnCodeError,
    ) as error:  # the library's sampler may index it by something other than numbers
        log.warning("event=data-not-compared error=%r", str(error))
        return {}
