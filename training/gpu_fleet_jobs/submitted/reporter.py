"""What becomes of a submitted run, said where its user looks: `runs/words/` in the stack's records bucket."""

import json
import logging
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
    """Where the job of a run lies, and where one of its instances speaks.

    See image/gpu_fleet_image/core/runs.py.

    `table` is the instance file. Raises ConfigError.
    """
    records = str(table.get("records_uri", "")).removesuffix("/reaper")
    jobs = ObjectStore(f"{records}/runs/jobs/{account}/{run}", key="records_uri")
    return jobs, ObjectStore(
        f"{records}/runs/words/{account}/{table.get('pool')}/{run}/{who}", key="records_uri"
    )


def is_cancelled(jobs: ObjectStore) -> bool:
    """Return whether the run is asked to end; raises CheckpointError.

    By listing: S3 denies to read what is not there to whom it lets list a few prefixes alone.
    """
    return "cancel" in jobs.sizes("")


def now_text() -> str:
    """The time as words of an instance carry it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Reporter:
    """Says in the bucket what becomes of the run. What cannot be said now is said later."""

    store: ObjectStore
    started_at: str = field(default_factory=now_text)
    sent_bytes: int = 0

    def say(self, phase: str, detail: str = "", figures: Mapping[str, Any] | None = None) -> None:
        """The newest word; a bucket that does not answer is no reason to end the run."""
        word = {"phase": phase, "at": now_text(), "started_at": self.started_at, "detail": detail}
        self._put("state.json", json.dumps({**word, **(figures or {})}).encode())

    def send(self, file: Path) -> None:
        """What was written to the log since the last time."""
        try:
            with file.open("rb") as opened:
                opened.seek(self.sent_bytes)
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
    """How much of the log was sent by tries before this one; 0 where the bucket does not say."""
    try:
        parts = store.sizes("log")
    except CheckpointError as error:
        log.warning("event=log-not-listed error=%r", str(error))
        return 0
    return max((int(Path(name).stem) + size for name, size in parts.items()), default=0)
