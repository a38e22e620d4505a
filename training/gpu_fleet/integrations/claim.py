"""Claim on a folder of checkpoints: a lock on this disk, a lease in the bucket, and gpu-fleet.json.

That file, beside the checkpoints, has the values that decided the result at the last save.
"""

import atexit
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import default_collate

from gpu_fleet.checkpoint import run_identity
from gpu_fleet.checkpoint.claim import RunClaim
from gpu_fleet.checkpoint.run_identity import Identity
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.errors import ConfigError, DataError, IdentityError, UserCodeError
from gpu_fleet.core.files import on_disk, write_bytes
from gpu_fleet.data.own_data import adapted
from gpu_fleet.integrations.folder_copy.files import OURS

IDENTITY = "gpu-fleet.json"  # a file of the folder, which the bucket holds too
ARGUMENTS, DATA = LATER = ("arguments", "data")  # sections in the keys of an identity
log = logging.getLogger(__name__)


class FolderClaim:
    """Claim on a folder, and on its URI in the bucket (empty for none)."""

    def __init__(
        self, directory: Path, place: str, config: Mapping[str, Any], allow: Sequence[str], how: str
    ) -> None:
        self._directory, self._place, self._how = directory, place, how
        self._config, self._allow = dict(config), tuple(allow)
        self._claim: RunClaim | None = None  # None: not taken
        self._identity = run_identity.ScriptIdentity({}, (), how, later=LATER)

    def take(self) -> None:
        if self._claim is None:
            self._claim = RunClaim.of(CheckpointStore(self._place) if self._place else None)
            atexit.register(self.release)  # however the library's loop ends
            self._claim.take(self._directory / OURS)

    def check(self, checkpoint: str | None) -> None:
        known = run_identity.of_script(self._config, self._directory)
        self._identity = run_identity.ScriptIdentity(known, self._allow, self._how, later=LATER)
        if checkpoint is not None:
            step = int("".join(filter(str.isdigit, Path(checkpoint).name)))
            self._identity.compare_with(self._saved(), step, str(self._directory))

    def check_all(self, checkpoint: str | None, arguments: Mapping[str, Any], samples: Any) -> None:
        """Check the library's `arguments` and the data set too, which are known later."""
        self.check(checkpoint)
        further = {ARGUMENTS: arguments, DATA: _described(samples)}
        self._identity.add(dict(run_identity.flattened(further)))
        if checkpoint is None:
            self._write()

    def _saved(self) -> Identity:
        """Return the identity at the last save; empty (nothing to compare) if another program saved."""
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
        with on_disk(file):
            write_bytes(staged, (json.dumps(self._identity.known, indent=1, sort_keys=True) + "\n").encode())
            staged.replace(file)

    def check_held(self) -> None:
        if self._claim is not None:
            self._claim.lease.check()

    def saved(self) -> None:
        """Record the identity after a save; raises RunLeaseError."""
        self.check_held()
        if self._identity.known != self._saved():
            self._write()

    def release(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()
            atexit.unregister(self.release)


def _described(samples: Any) -> dict[str, Any]:
    """Return the length and content digest of a data set; empty if it cannot be read by number."""
    if samples is None:
        return {}
    try:
        return run_identity.of_data(adapted(samples, "the data set", default_collate, ConfigError))
    except (ConfigError, DataError, UserCodeError) as error:  # the library may index it in another way
        log.warning("event=data-not-compared error=%r", str(error))
        return {}
