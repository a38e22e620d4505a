"""State and log of a submitted run, written for its user to `runs/words/` in the stack's records bucket."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_fleet.core.errors import CheckpointError
from gpu_fleet.storage.object_store import ObjectStore

LOG_PART_BYTES = 4 << 20
log = logging.getLogger(__name__)


def places(table: Mapping[str, Any], account: str, run: str, who: str) -> tuple[ObjectStore, ObjectStore]:
    """Return the store of the run's job, and the store to which one of its instances reports.

    See image/gpu_fleet_image/core/runs.py. `table` is the instance file. Raises ConfigError.
    """
    records = str(table.get("records_uri", "")).removesuffix("/reaper")
    jobs = ObjectStore(f"{records}/runs/jobs/{account}/{run}", key="records_uri")
    return jobs, ObjectStore(
        f"{records}/runs/words/{account}/{table.get('pool')}/{run}/{who}", key="records_uri"
    )


def is_cancelled(jobs: ObjectStore) -> bool:
    """Return whether the user has cancelled the run; raises CheckpointError.

    It lists instead of reading: S3 denies reading an absent key to a role that may list few prefixes only.
    """
    return "cancel" in jobs.sizes("")


def now_text() -> str:
    """Return the present time in UTC, as reports carry it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Reporter:
    """Reporter of the run's state and log to the bucket. A report that fails is made up for by the next.

    Attributes:
        sent_bytes: of the log, by all tries.
        lost_bytes: those of them that the file no longer has.
    """

    store: ObjectStore
    started_at: str = field(default_factory=now_text)
    sent_bytes: int = 0
    lost_bytes: int = 0

    def say(self, phase: str, detail: str = "", figures: Mapping[str, Any] | None = None) -> None:
        """Write the newest state; an unreachable bucket does not end the run."""
        word = {"phase": phase, "at": now_text(), "started_at": self.started_at, "detail": detail}
        self._put("state.json", json.dumps({**word, **(figures or {})}).encode())

    def send(self, file: Path) -> None:
        """Send the lines that were added to the log since the last call.

        A program empties its own log by opening ``/dev/stdout`` or ``/dev/stderr`` to write: all of it is new
        then.
        """
        try:
            with file.open("rb") as opened:
                if opened.seek(0, os.SEEK_END) < self.sent_bytes - self.lost_bytes:
                    self.lost_bytes = self.sent_bytes
                opened.seek(self.sent_bytes - self.lost_bytes)
                while part := opened.read(LOG_PART_BYTES):
                    if not self._put(f"log/{self.sent_bytes:015d}.txt", part):
                        return
                    self.sent_bytes += len(part)
        except OSError as error:
            log.warning("event=log-not-read error=%r", str(error))

    def _put(self, name: str, content: bytes) -> bool:
        try:
            self.store.put(name, content)
        except CheckpointError as error:
            log.warning("event=not-said name=%s error=%r", name, str(error))
            return False
        return True


def sent_bytes(store: ObjectStore) -> int:
    """Return the bytes of the log that earlier tries sent; 0 if the bucket cannot be listed."""
    try:
        parts = store.sizes("log")
    except CheckpointError as error:
        log.warning("event=log-not-listed error=%r", str(error))
        return 0
    return max((int(Path(name).stem) + size for name, size in parts.items()), default=0)
