"""Records of a run, the interface of their writers, and metrics.jsonl."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.core.files import DISK_FULL

Record = Mapping[str, float | int | str]
JSON_LINES = "metrics.jsonl"


class MetricsWriter(Protocol):
    """Interface of a writer, which gets the records of rank 0 in the order of their steps."""

    def write(self, record: Record) -> None:
        """Write a record of a "kind" (train, evaluation, checkpoint, time) and "step"; units are in names."""
        ...

    def close(self) -> None:
        """Flush and close; a writer that sends records to a server may give up after a while."""
        ...


class JsonLines:
    """metrics.jsonl: one JSON object a line, flushed at once, appended to by a resumed run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] = path.open("a+", encoding="utf-8")
        end = self._file.tell()
        if end and os.pread(self._file.fileno(), 1, end - 1) != b"\n":  # a killed run left half a line
            self._file.write("\n")

    def write(self, record: Record) -> None:
        """Append one record; raises ConfigError, or OSError for a full disk."""
        with named("run.directory", self._path):
            self._file.write(json.dumps(dict(record)) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


@contextmanager
def named(key: str, path: Path) -> Iterator[None]:
    """Turn an OSError about `path` into a ConfigError that names `key`, except for a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:  # it may pass: rank.py explains it to the user
            raise
        raise ConfigError(f"{key} = {str(path)!r}: cannot be written: {error.strerror}") from error


def read_json_lines(path: Path) -> list[dict[str, float | int | str]]:
    """Read the records of a metrics.jsonl. Raises OSError."""
    return list(parsed(path.read_bytes().splitlines()))


def unit_of(record: Record) -> str:
    return "tokens" if "tokens_per_s" in record else "samples"


def tokens_per_sample(record: Mapping[str, Any]) -> float | None:
    """Return the tokens of a sample in the steps of a `train` record; None where samples have none."""
    tokens, samples = record.get("tokens_per_s"), record.get("samples_per_s")
    return tokens / samples if tokens and samples else None


def parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of some lines; skip half-written lines."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
