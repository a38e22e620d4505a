"""One record per log interval, who takes it, and metrics.jsonl."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from gpu_fleet.errors import ConfigError
from gpu_fleet.files import DISK_FULL

Record = Mapping[str, float | int | str]
JSON_LINES = "metrics.jsonl"


class MetricsWriter(Protocol):
    """Takes the records of rank 0, in the order of their steps."""

    def write(self, record: Record) -> None:
        """One record: always "kind" (train | evaluation | checkpoint) and "step"; units are in the names."""
        ...

    def close(self) -> None:
        """Everything written is on disk afterwards."""
        ...


class JsonLines:
    """metrics.jsonl: one JSON object a line, flushed at once, appended to by a resumed run."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be opened."""
        self._path = path
        self._file: IO[str] = path.open("a", encoding="utf-8")
        if self._file.tell() and not _ends_with_a_line(path):  # a killed run left the last one half-written
            self._file.write("\n")

    def write(self, record: Record) -> None:
        """Raises ConfigError, of a full disk OSError."""
        with named("run.directory", self._path):
            self._file.write(json.dumps(dict(record)) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def _ends_with_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


@contextmanager
def named(key: str, path: Path) -> Iterator[None]:
    """Turns what the system says about `path` into a ConfigError that names `key`; not of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:  # which may pass: `rank` says what would help
            raise
        raise ConfigError(f"{key} = {str(path)!r}: cannot be written: {error.strerror}") from error


def read_json_lines(path: Path) -> list[dict[str, float | int | str]]:
    """The records of a metrics.jsonl. Raises OSError."""
    return list(parsed(path.read_bytes().splitlines()))


def parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The records of some lines; what is being written, or was left half-written, is passed over."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
