"""Tar shards in the layout of WebDataset, with an index that finds any sample at once.

A sample is the members of one tar that share a name. In kind "shards" these are NNN.png (or another picture)
and NNN.cls, its class as a number. In kind "records" they are any NNN.KEY, which become a dictionary. The
tars are plain: WebDataset reads them, and `prepare index` indexes tars that WebDataset wrote.

The library webdataset itself does not fit. It reads a tar from its start, so a resume at sample n of an epoch
skips n samples. Its shuffle buffer makes the order depend on the number of workers (its issues #188 and
#225). With the place of every sample in an index, a sample takes one read, whatever its position; order,
shares of ranks and resume are the same as for every other kind of data.
"""

import hashlib
import io
import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
import torch

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.bucket import INDEX, BucketFolder, BucketSource, BytesInShard
from gpu_fleet.data.census import HIDDEN, OTHERS, Census, is_hidden, shown, walked
from gpu_fleet.data.class_folders import SUFFIXES
from gpu_fleet.data.dataset import Array, CorruptSampleError, Description, is_bucket
from gpu_fleet.data.images import decode

# A row for a sample: number of its shard in name order, first byte, length and CRC-32 of its picture, its
# class, first byte and length of that.
INDEX_DTYPE = np.dtype(
    [
        *(("shard", "<i4"), ("start", "<i8"), ("size", "<i8"), ("crc32", "<u4"), ("class", "<i4")),
        *(("class_start", "<i8"), ("class_size", "<i4")),
    ]
)
# A row for a member: number of its shard, first byte, length, CRC-32. A sample has a row for each key, in
# order.
RECORDS_DTYPE = np.dtype([("shard", "<i4"), ("start", "<i8"), ("size", "<i8"), ("crc32", "<u4")])
DIGITS = 6  # of the number of a class
OPEN_FILES = 256  # per reader process; below the usual limit of 1,024


def open_split(
    folder: Path, description: Description, settings: config.Data, training: bool
) -> "ShardFolder":
    """Open the pictures of a split; raises DataError if the shards and their index do not fit each other."""
    return ShardFolder(folder_of(settings, folder.name), len(description.classes), settings, training)


def folder_of(settings: config.Data, split: str) -> "Folder":
    """Return the folder of the tars of a split."""
    if is_bucket(settings.path):
        return BucketFolder(BucketSource(settings.path, settings.endpoint, settings.retry_s), split)
    return DiskFolder(Path(settings.path) / split)


class Folder(Protocol):
    """Folder of the tars of a split and their index, on a disk or in a bucket. Picklable."""

    @property
    def label(self) -> str:
        """Name of the folder for users."""
        ...

    def files(self, census: Census) -> dict[str, int]:
        """Return name and size in bytes of each file, by name, at any depth; raises DataError.

        Entries that are no file are counted in `census`.
        """
        ...

    def index(self) -> bytes:
        """Read index.npy; raises OSError or DataError."""
        ...

    def write_index(self, content: bytes) -> None:
        """Write index.npy beside the tars; raises OSError or DataError."""
        ...

    def file(self, name: str) -> AbstractContextManager[Path]:
        """Give a path of a tar on this disk for the block; raises DataError."""
        ...

    def expect(self, places: Iterable[BytesInShard]) -> None:
        """Prepare for reads of `places`: a bucket fetches them all at once. Raises DataError."""
        ...

    def read(self, place: BytesInShard) -> bytes:
        """Read a range of bytes of a tar; raises OSError or DataError."""
        ...


def tars_in(folder: Folder, census: Census) -> list[tuple[str, int]]:
    """Return name and size of the tars of a split; count other files in `census`.

    Raises DataError for a tar that would not be read because it is compressed or in a deeper folder.
    """
    tars = []
    for name, size in folder.files(census).items():
        path = PurePosixPath(name)
        suffixes = [suffix.lower() for suffix in path.suffixes]
        if any(map(is_hidden, path.parts)):
            census.leave(HIDDEN, f"{folder.label}/{name}")
        elif suffixes[-1:] == [".tar"] and len(path.parts) == 1:
            tars.append((name, size))
        elif ".tar" in suffixes[-2:] or suffixes[-1:] == [".tgz"]:
            raise DataError(
                f"{folder.label}/{shown(name)}: would not be read; shards are *.tar, not compressed, in "
                f"{folder.label}"
            )
        elif name != INDEX:
            census.leave(OTHERS, f"{folder.label}/{name}")
    return tars


class DiskFolder:
    """A folder of this computer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[str, int] = OrderedDict()  # tar to file descriptor, longest unused first

    @property
    def label(self) -> str:
        return str(self._folder)

    def files(self, census: Census) -> dict[str, int]:
        if not self._folder.is_dir():
            return {}
        files = {file.relative_to(self._folder).as_posix(): file for file in walked(self._folder, census)}
        return {name: file.stat().st_size for name, file in sorted(files.items())}

    def index(self) -> bytes:
        return (self._folder / INDEX).read_bytes()

    def write_index(self, content: bytes) -> None:
        (self._folder / INDEX).write_bytes(content)

    def file(self, name: str) -> AbstractContextManager[Path]:
        return nullcontext(self._folder / name)

    def expect(self, places: Iterable[BytesInShard]) -> None:
        """Do nothing: a read from a disk takes microseconds."""

    def read(self, place: BytesInShard) -> bytes:
        return os.pread(self._descriptor(place.shard), place.size, place.start)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}  # descriptors are invalid in another process

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone by then
        still_open = self.__dict__.get("_open", {})
        while still_open:
            close(still_open.popitem()[1])

    def _descriptor(self, shard: str) -> int:
        if shard not in self._open:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            self._open[shard] = os.open(self._folder / shard, os.O_RDONLY)
        self._open.move_to_end(shard)
        return self._open[shard]


class Tars:
    """The tars of a split and their index: the bytes of any member in one read."""

    def __init__(self, folder: Folder, dtype: np.dtype[Any]) -> None:
        self._folder, self.census = folder, Census()
        shards = tars_in(folder, self.census)
        self._names = [name for name, _ in shards]
        try:
            content = io.BytesIO(folder.index())
            self.index, indexed = (np.load(content, allow_pickle=False) for _ in range(2))
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"{folder.label}/{INDEX}: cannot be read: {error}; `prepare index` writes it"
            ) from error
        if self.index.dtype != dtype:
            raise DataError(f"{folder.label}/{INDEX}: is no index of shards; `prepare index` writes it")
        self._check_sizes(dict(shards), indexed.tolist())

    def _check_sizes(self, sizes: dict[str, int], indexed: list[int]) -> None:
        """Raise DataError unless these are the tars that were indexed, each of the same size."""
        label = self._folder.label
        if len(sizes) != len(indexed):
            raise DataError(
                f"{label}: {len(sizes)} shards, {INDEX} knows {len(indexed)}: `prepare index` writes it anew"
            )
        for (name, size), before in zip(sizes.items(), indexed, strict=True):
            if size != before:
                raise DataError(
                    f"{label}/{name}: has {size} bytes, {INDEX} wants {before}: bring the tar that was "
                    "indexed, or write the index anew by `prepare index`"
                )
        for number in np.flatnonzero(np.bincount(self.index["shard"], minlength=len(sizes)) == 0):
            self.census.leave(f"tars without a sample in {INDEX}", f"{label}/{self._names[number]}")

    def __len__(self) -> int:
        return len(self._names)

    def name(self, row: int) -> str:
        place, *_ = self._places(*self.index[row].item())
        return f"{self._folder.label}/{place.shard} byte {place.start}"

    def expect(self, rows: Iterable[int]) -> None:
        """Prepare for reads of these rows; raises DataError."""
        self._folder.expect(place for row in rows for place in self._places(*self.index[row].item()))

    def content(self, row: int) -> bytes:
        """Read the member of a row of the index; raises CorruptSampleError, or DataError for a bucket.

        A class that was changed in its tar since it was indexed makes its picture corrupt too.
        """
        record = self.index[row].item()
        content, *classes = map(self._read, self._places(*record))
        if zlib.crc32(content) != record[3]:
            raise CorruptSampleError("its CRC-32 is not that of the index")
        if classes and (now := class_of(classes[0])) != record[4]:
            raise CorruptSampleError(
                f"its .cls holds class {now}, the index {record[4]}: `prepare index` writes it anew"
            )
        return content

    def _read(self, place: BytesInShard) -> bytes:
        try:
            return self._folder.read(place)
        except OSError as error:
            raise CorruptSampleError(str(error)) from error

    def outline(self) -> bytes:
        """Return a digest of the index."""
        return hashlib.sha256(self.index.tobytes()).digest()

    def _places(self, shard: int, start: int, size: int, _crc32: int, *of_class: int) -> list[BytesInShard]:
        """Return the place of a member, and of the class that belongs to a picture."""
        places = [BytesInShard(self._names[shard], start, size)]
        return [*places, BytesInShard(self._names[shard], *of_class[1:])] if of_class else places


def class_of(content: bytes) -> int | None:
    """Return the class in a .cls; None if it is no whole number from 0 to 999999."""
    text = content.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None


class ShardFolder:
    """Pictures with classes from the tars of a split and their index."""

    def __init__(self, folder: Folder, class_count: int, settings: config.Data, training: bool) -> None:
        self._settings, self._training, self._class_count = settings, training, class_count
        self._tars = Tars(folder, INDEX_DTYPE)
        self.census = self._tars.census

    @property
    def parts(self) -> int:
        return len(self._tars)

    def __len__(self) -> int:
        return len(self._tars.index)

    def name(self, index: int) -> str:
        return self._tars.name(index)

    def expect(self, indices: Sequence[int]) -> None:
        """Prepare for reads of these samples; raises DataError."""
        self._tars.expect(indices)

    def outline(self) -> bytes:
        """Return a digest of the index, which has classes and checksums of all pictures."""
        return self._tars.outline()

    def fingerprint(self, index: int) -> bytes:
        """Return the sample's row of the index, which has a checksum of the picture."""
        return bytes(self._tars.index[index].tobytes())

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Read picture (3, height, width) uint8 and class () int64; raises CorruptSampleError."""
        content, number = self._tars.content(index), int(self._tars.index[index]["class"])
        if not 0 <= number < self._class_count:
            raise CorruptSampleError(f"class {number}, dataset.json names {self._class_count}")
        picture = decode(content, self._settings, self._training, chance)
        return picture, np.asarray(number, dtype=np.int64)


class Records:
    """Samples from tars with any keys: each is a dictionary of its decoded members; see `decoded`."""

    def __init__(self, folder: Folder, keys: tuple[str, ...], settings: config.Data, training: bool) -> None:
        self._tars, self._keys = Tars(folder, RECORDS_DTYPE), keys
        self.census = self._tars.census
        self._settings, self._training = settings, training
        for column in settings.columns:
            if column not in keys:
                raise DataError(
                    f"data.columns: {column!r} is no key of {folder.label}; it has {', '.join(sorted(keys))}"
                )
        self._chosen = [n for n, key in enumerate(keys) if key in (settings.columns or keys)]

    def __len__(self) -> int:
        return len(self._tars.index) // len(self._keys)

    def expect(self, indices: Sequence[int]) -> None:
        """Prepare for reads of these samples; raises DataError."""
        self._tars.expect(index * len(self._keys) + n for index in indices for n in self._chosen)

    def outline(self) -> bytes:
        """Return a digest of the index, which has checksums of all members."""
        return self._tars.outline()

    def __getitem__(self, index: int) -> dict[str, Any]:
        first = index * len(self._keys)
        return {self._keys[n]: self._member(first + n, self._keys[n]) for n in self._chosen}

    def _member(self, row: int, key: str) -> Any:
        try:
            return decoded(self._tars.content(row), key, self._settings, self._training)
        except (CorruptSampleError, ValueError) as error:
            raise CorruptSampleError(f"{key} at {self._tars.name(row)}: {error}") from error


def decoded(content: bytes, key: str, settings: config.Data, training: bool) -> Any:
    """Decode a member by the suffix of its key, as WebDataset does; return the bytes for an unknown key.

    Pictures become (3, height, width) uint8. Raises CorruptSampleError or ValueError.
    """
    kind = key.rpartition(".")[2].lower()
    if f".{kind}" in SUFFIXES:
        chance = np.random.default_rng(int(torch.randint(2**62, ())))  # the reader has seeded torch
        return decode(content, settings, training, chance)
    decoder = DECODERS.get(kind)
    return decoder(content) if decoder else content


DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("cls", "index", "id", "count"), int),
    **dict.fromkeys(("txt", "text"), bytes.decode),
    "json": json.loads,
    "npy": lambda content: np.load(io.BytesIO(content), allow_pickle=False),
}
