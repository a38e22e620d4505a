"""Restore of a folder from its copy in a store: every file with its own content, time and link."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from gpu_fleet.checkpoint import local
from gpu_fleet.core.errors import CheckpointError
from gpu_fleet.integrations.folder_copy.files import CONTENTS, LIST, OURS, Entry, Records


class FolderRestore:
    """Restore of one folder; a second try completes what the first one began."""

    def __init__(self, folder: Path, uri: str, fetch: Callable[[str, Path], bytes | None]) -> None:
        """Prepare the restore of `folder`; `fetch` writes an object of the store to a file."""
        self._folder, self._uri, self._fetch = folder, uri, fetch

    def restore(self, records: Records) -> None:
        for name, record in records.items():
            self._bring(name, record)
        self._date_folders(records)
        shutil.rmtree(self._folder / OURS / "part", ignore_errors=True)

    def _date_folders(self, records: Records) -> None:
        """Give every folder the time of its newest file: programs choose the newest checkpoint by it."""
        times: dict[Path, int] = {}
        for name, record in records.items():
            for parent in Path(name).parents[:-1]:
                times[parent] = max(times.get(parent, 0), record.mtime_ns or 0)
        for parent, mtime_ns in times.items():
            if mtime_ns:
                os.utime(self._folder / parent, ns=(mtime_ns, mtime_ns))

    def _bring(self, name: str, record: Entry) -> None:
        file = self._folder / name
        if not file.resolve().is_relative_to(self._folder.resolve()):
            raise CheckpointError(f"{self._uri}: the name {name!r} leads out of {self._folder}")
        if file.is_file() and not file.is_symlink() and local.record_of(file) == record.record:
            return  # an earlier try has restored it
        staged = self._folder / OURS / "part" / str(os.getpid())
        staged.parent.mkdir(parents=True, exist_ok=True)
        answer = self._fetch(f"{CONTENTS}/{record.sha256}", staged)
        if answer is None or local.record_of(staged) != record.record:
            raise CheckpointError(f"{self._uri}: {name} is not what {LIST} says")
        file.parent.mkdir(parents=True, exist_ok=True)
        if record.link:
            staged = self._linked(staged, file)
        elif record.mtime_ns is not None and record.mode is not None:
            staged.chmod(record.mode)
            os.utime(staged, ns=(record.mtime_ns, record.mtime_ns))
        staged.replace(file)

    def _linked(self, staged: Path, file: Path) -> Path:
        """Turn a staged text with the target of a link into a symbolic link for `file`."""
        target = os.fsdecode(staged.read_bytes())
        place = os.path.normpath(file.parent.absolute() / target)
        if not Path(place).is_relative_to(self._folder.absolute()):
            raise CheckpointError(f"{self._uri}: the link {file.name!r} leads out of {self._folder}")
        link = staged.with_name(f"{staged.name}.link")
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        return link
