"""Rows of the index of one tar: the position of each part of a sample."""

import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

import numpy as np

from gpu_fleet.core.errors import DataError
from gpu_fleet.data.census import HIDDEN, is_hidden, shown
from gpu_fleet.data.class_folders import SUFFIXES
from gpu_fleet.data.dataset import Array
from gpu_fleet.data.preparation.skipped import Skipped
from gpu_fleet.data.shards import INDEX_DTYPE, RECORDS_DTYPE, class_of

BLOCK, TAIL_BYTES = 512, 1 << 20  # unit of a tar; bytes read after its end, which is 10 KB of zeros
NOT_PLAIN = "links, sparse files and devices in tars"
NO_PART = "members of tars that are no part of a sample"
Place = tuple[int, int, int]  # first byte, length, CRC-32


class RowsOf(Protocol):
    """Function from a tar and its number to rows of the index; `skipped` counts the rest."""

    def __call__(self, file: Path, number: int, skipped: Skipped) -> Array: ...


class FileInTar(NamedTuple):
    """A file in a tar."""

    path: PurePosixPath
    place: Place
    content: bytes


def index_records(file: Path, number: int, skipped: Skipped, *, keys: tuple[str, ...]) -> Array:
    """Return the rows of the index for one tar of any keys.

    A sample's name ends at the first dot of its file name, as in WebDataset. A sample that lacks one of
    `keys` is skipped. Raises DataError for two members of one name.
    """
    samples: dict[str, dict[str, Place]] = {}
    for member in _members(file, skipped):
        name, dot, key = member.path.name.partition(".")
        if not dot or name.startswith("__"):
            skipped.census.leave(NO_PART, f"{file}: {member.path}")
            continue
        places = samples.setdefault(str(member.path.with_name(name)), {})
        if key in places:
            raise _twice(file, member.path)
        places[key] = member.place
        if key not in keys:
            skipped.census.leave("members of tars with other keys", f"{file}: {member.path}")
    rows: list[tuple[int, ...]] = []
    for name, places in samples.items():
        if lacking := [key for key in keys if key not in places]:
            skipped.add(f"{file}: sample {name} has no {lacking[0]}")
        else:
            rows += [(number, *places[key]) for key in keys]
    return np.array(rows, dtype=RECORDS_DTYPE)


def index_shard(file: Path, number: int, skipped: Skipped) -> Array:
    """Return the rows of the index for one tar of pictures; a sample without picture or class is skipped.

    Raises DataError for two members of one sample.
    """
    pictures: dict[str, Place] = {}
    classes: dict[str, tuple[int | None, Place]] = {}
    for member in _members(file, skipped):
        key, suffix = str(member.path.with_suffix("")), member.path.suffix.lower()
        if suffix not in (".cls", *SUFFIXES):
            skipped.census.leave(NO_PART, f"{file}: {member.path}")
        elif key in (classes if suffix == ".cls" else pictures):
            raise _twice(file, member.path)
        elif suffix == ".cls":
            classes[key] = class_of(member.content), member.place
        else:
            pictures[key] = member.place
    rows = []
    for key in sorted(pictures.keys() ^ classes.keys()):
        skipped.add(f"{file}: sample {key} lacks its {'.cls' if key in pictures else 'picture'}")
    for key, place in pictures.items():
        if key not in classes:
            continue
        named, (start, size, _) = classes[key]
        if named is None:
            skipped.add(f"{file}: {key}.cls is no class; allowed: a whole number from 0 to 999999")
        else:
            rows.append((number, *place, named, start, size))
    return np.array(rows, dtype=INDEX_DTYPE)


def _twice(file: Path, name: PurePosixPath) -> DataError:
    """Return the error about a tar with two members for the same part of a sample."""
    return DataError(
        f"{file}: sample {shown(name)} is there twice, and one would be left out; give each sample its "
        "own name"
    )


def _members(file: Path, skipped: Skipped) -> Iterator[FileInTar]:
    """Yield the plain files in a tar, and hard links to those before them; raises DataError."""
    plain: dict[str, tarfile.TarInfo] = {}
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                target = plain.get(member.linkname) if member.islnk() else member
                if any(map(is_hidden, path.parts)):
                    skipped.census.leave(HIDDEN, f"{file}: {path}")
                elif target is not None and target.isreg() and not target.issparse():
                    plain[member.name] = target
                    content = tar.extractfile(target)
                    assert content is not None
                    read = content.read()
                    yield FileInTar(path, (target.offset_data, target.size, zlib.crc32(read)), read)
                elif not member.isdir():
                    skipped.census.leave(NOT_PLAIN, f"{file}: {path}")
            end = tar.offset  # where tarfile stopped: at zeros, at the end, or at unknown bytes
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{file}: is no tar, or is cut off: {error}") from error
    with file.open("rb") as behind:
        behind.seek(end)
        tail = behind.read(TAIL_BYTES)
    if len(tail) < BLOCK or tail.strip(b"\0"):
        reason = "is joined to another one or damaged" if tail.strip(b"\0") else "is cut off"
        raise DataError(f"{file}: {reason}, at byte {end} of {file.stat().st_size}; write it anew")
