"""Tar shards in the layout of WebDataset, with an index that finds any sample at once.

The members of a sample share a name: NNN.png and NNN.cls in kind "shards", any NNN.KEY in kind "records". The
library webdataset does not fit: it reads a tar from its start, so a resume at sample n skips n samples, and
its shuffle buffer makes the order depend on the number of workers (its issues #188 and #225).
"""

import hashlib
import io
import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.bucket import INDEX, BucketFolder, BucketSource, BytesInShard
from gpu_fleet.data.census import HIDDEN, OTHERS, Census, is_hidden, shown, walked
from gpu_fleet.data.class_folders import SUFFIXES
from gpu_fleet.data.dataset import Array, CorruptSampleError, Dataset, Description, is_bucket
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


class DiskFolder:
    """Folder of the tars of a split and their index, on this computer; see BucketFolder for one elsewhere."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[str, int] = OrderedDict()  # tar to file descriptor, longest unused first

    @property
    def label(self) -> str:
        return str(self._folder)

    def files(self, census: Census) -> dict[str, int]:
        """Return name and size of each file at any depth, by name; count other entries in `census`."""
        if not self._folder.is_dir():
            return {}
        files = {file.relative_to(self._folder).as_posix(): file for file in walked(self._folder, census)}
        return {name: file.stat().st_size for name, file in sorted(files.items())}

    def index(self) -> bytes:
        return (self._folder / INDEX).read_bytes()

    def write_index(self, content: bytes) -> None:
        (self._folder / INDEX).write_bytes(content)

    def file(self, name: str) -> AbstractContextManager[Path]:
        """Give a path of a tar on this disk for the block."""
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


Folder = DiskFolder | BucketFolder  # of the tars of a split and their index


def folder_of(settings: config.Data, split: str) -> Folder:
    if is_bucket(settings.path):
        return BucketFolder(BucketSource(settings.path, settings.endpoint, settings.retry_s), split)
    return DiskFolder(Path(settings.path) / split)


def tars_in(folder: Folder, census: Census) -> list[tuple[str, int]]:
    """Return name and size of the tars of a split; raises DataError for those compressed or deeper."""
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

    @property
    def parts(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        place, *_ = self._places(*self.index[index].item())
        return f"{self._folder.label}/{place.shard} byte {place.start}"

    def expect(self, indices: Iterable[int]) -> None:
        """Prepare for reads of these rows; raises DataError."""
        self._folder.expect(place for row in indices for place in self._places(*self.index[row].item()))

    def content(self, row: int) -> bytes:
        """Read the member of a row; raises CorruptSampleError, also for a changed class, or DataError."""
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
        return hashlib.sha256(self.index.tobytes()).digest()

    def _places(self, shard: int, start: int, size: int, _crc32: int, *of_class: int) -> list[BytesInShard]:
        places = [BytesInShard(self._names[shard], start, size)]
        return [*places, BytesInShard(self._names[shard], *of_class[1:])] if of_class else places


def class_of(content: bytes) -> int | None:
    """Return the class in a .cls; None if it is no whole number from 0 to 999999."""
    text = content.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None


class ShardFolder(Tars, Dataset):
    """Pictures with classes from the tars of a split and their index."""

    def __init__(self, folder: Folder, class_count: int, settings: config.Data, training: bool) -> None:
        super().__init__(folder, INDEX_DTYPE)
        self._settings, self._training, self._class_count = settings, training, class_count

    def __len__(self) -> int:
        return len(self.index)

    def fingerprint(self, index: int) -> bytes:
        return bytes(self.index[index].tobytes())

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Read picture (3, height, width) uint8 and class () int64; raises CorruptSampleError."""
        content, number = self.content(index), int(self.index[index]["class"])
        if not 0 <= number < self._class_count:
            raise CorruptSampleError(f"class {number}, dataset.json names {self._class_count}")
        return decode(content, self._settings, self._training, chance), np.asarray(number, dtype=np.int64)


class Records(Tars):
    """Samples from tars with any keys: each is a dictionary of its decoded members; see `decoded`."""

    def __init__(self, folder: Folder, keys: tuple[str, ...], settings: config.Data, training: bool) -> None:
        super().__init__(folder, RECORDS_DTYPE)
        self._keys, self._settings, self._training = keys, settings, training
        for column in settings.columns:
            if column not in keys:
                raise DataError(
                    f"data.columns: {column!r} is no key of {folder.label}; it has {', '.join(sorted(keys))}"
                )
        self._chosen = [n for n, key in enumerate(keys) if key in (settings.columns or keys)]

    def __len__(self) -> int:
        return len(self.index) // len(self._keys)

    def expect(self, indices: Iterable[int]) -> None:
        super().expect(index * len(self._keys) + n for index in indices for n in self._chosen)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {self._keys[n]: self._member(index * len(self._keys) + n, self._keys[n]) for n in self._chosen}

    def _member(self, row: int, key: str) -> Any:
        try:
            return decoded(self.content(row), key, self._settings, self._training)
        except (CorruptSampleError, ValueError) as error:
            raise CorruptSampleError(f"{key} at {self.name(row)}: {error}") from error


def decoded(content: bytes, key: str, settings: config.Data, training: bool) -> Any:
    """Decode a member by its suffix as WebDataset does; pictures become (3, height, width) uint8."""
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
