"""A folder of any program's checkpoints, kept in an object store as it was at one moment.

Contents go up under their hash, and then one list of names and hashes, which is the commit: an instance that
is lost in the midst of it leaves the list before, and all that it names. A file that has just been written is
left for the next time, so that no half-written one is taken.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpu_fleet.checkpoint import local
from gpu_fleet.errors import CheckpointError
from gpu_fleet.storage.object_store import ObjectStore

LIST, CONTENTS = "folder.json", "contents"
QUIET_S = 2.0  # a file that was written to more recently may not be whole
log = logging.getLogger(__name__)

Records = dict[str, local.FileRecord]


class FolderSync:
    """Keeps a folder in a store, and brings it back."""

    def __init__(self, folder: Path, store: ObjectStore, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds of the epoch, as the times of files are."""
        self._folder, self._store, self._clock = folder, store, clock
        self._hashed: dict[str, tuple[tuple[int, int], local.FileRecord]] = {}  # with size and time it had
        self._listed: Records = {}  # what the list in the store says
        self._there: set[str] | None = None  # hashes whose contents are in the store

    def down(self) -> int:
        """Brings the folder back where it is empty; the number of files. Raises CheckpointError."""
        if self._folder.is_dir() and any(self._folder.iterdir()):
            return 0
        listed = self._store.get(LIST)
        if listed is None:
            return 0
        records = {name: local.FileRecord(**record) for name, record in json.loads(listed).items()}
        for name, record in records.items():
            self._bring(name, record)
        log.info("event=folder-restored files=%d uri=%s", len(records), self._store.uri)
        return len(records)

    def _bring(self, name: str, record: local.FileRecord) -> None:
        file = self._folder / name
        if not file.resolve().is_relative_to(self._folder.resolve()):
            raise CheckpointError(f"{self._store.uri}: the name {name!r} leads out of {self._folder}")
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.with_name(f"{file.name}.part")
        if (
            self._store.get(f"{CONTENTS}/{record.sha256}", staged) is None
            or local.record_of(staged) != record
        ):
            raise CheckpointError(f"{self._store.uri}: {name} is not what {LIST} says")
        staged.replace(file)

    def up(self, *, last: bool = False) -> bool:
        """Takes over what has changed; whether anything had. Raises CheckpointError.

        `last` says that nobody writes any more, so that all files are whole.
        """
        found = self._files(last=last)
        if found == self._listed and self._there is not None:
            return False
        if self._there is None:
            self._there = set(self._store.sizes(CONTENTS))
        for name, record in found.items():
            if record.sha256 not in self._there:
                self._store.put(f"{CONTENTS}/{record.sha256}", self._folder / name)
                self._there.add(record.sha256)
        listed = {name: {"size": record.size, "sha256": record.sha256} for name, record in found.items()}
        self._store.put(LIST, json.dumps(listed, indent=1, sort_keys=True).encode())
        self._listed = found
        for stale in self._there - {record.sha256 for record in found.values()}:
            self._store.delete(f"{CONTENTS}/{stale}")
            self._there.discard(stale)
        log.info("event=folder-saved files=%d uri=%s", len(found), self._store.uri)
        return True

    def _files(self, *, last: bool) -> Records:
        """All whole files; one that is being written is left out."""
        found: Records = {}
        for file in sorted(self._folder.rglob("*")):
            name = str(file.relative_to(self._folder))
            try:
                if not file.is_file() or file.is_symlink():
                    continue
                before = file.stat()
                key = before.st_size, before.st_mtime_ns
                known = self._hashed.get(name)
                if (known is None or known[0] != key) and (
                    last or self._clock() - before.st_mtime >= QUIET_S
                ):
                    known = self._hashed[name] = key, local.record_of(file)
                if known is not None and known[0] == key:
                    found[name] = known[1]
            except FileNotFoundError:  # removed meanwhile
                continue
        return found
