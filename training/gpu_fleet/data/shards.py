"""Tar shards as WebDataset lays them out, with an index that finds any sample at once.

A sample is the members of one tar that share a name. In kind "shards" these are NNN.png (or another picture)
and NNN.cls, its class as a number; in kind "records" any NNN.KEY, which become a dictionary. The tars are
plain: WebDataset reads them, and `prepare index` takes in those that it wrote.

Why not the library webdataset: it reads a tar from its start, so resuming at sample n of an epoch means to
skip n samples, and its shuffle buffer makes the order depend on the number of workers (its issues #188 and
#225). With the place of every sample in an index, a sample is one read, whatever its position; order, sharing
out and resume stay those of every other kind of data.
"""

import io
import json
import os
import tarfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from gpu_fleet import config
from gpu_fleet.data.dataset import Array, CorruptSampleError, Description
from gpu_fleet.data.images import SUFFIXES, decode
from gpu_fleet.errors import DataError

INDEX = "index.npy"
# Of a sample: number of its shard in name order, first byte, length and CRC-32 of its picture, its class.
INDEX_DTYPE = np.dtype(
    [("shard", "<i4"), ("start", "<i8"), ("size", "<i8"), ("crc32", "<u4"), ("class", "<i4")]
)
# Of a member: number of its shard, first byte, length and CRC-32. A sample has a row for each key, in order.
RECORDS_DTYPE = np.dtype([("shard", "<i4"), ("start", "<i8"), ("size", "<i8"), ("crc32", "<u4")])
OPEN_FILES = 256  # per reader process; below the usual limit of 1,024


def open_split(
    folder: Path, description: Description, settings: config.Data, training: bool
) -> "ShardFolder":
    """The pictures of a split; raises DataError when the shards and their index do not fit each other."""
    return ShardFolder(folder, len(description.classes), settings, training)


def shard_files(folder: Path) -> list[Path]:
    """The tars of a split in name order."""
    return sorted(folder.glob("*.tar"))


class Tars:
    """The tars of a split and their index: the bytes of any member in one read."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        self._files = shard_files(folder)
        self._open: OrderedDict[int, int] = OrderedDict()  # shard to file descriptor, longest unused first
        try:
            self.index = np.load(folder / INDEX, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"{folder / INDEX}: cannot be read: {error}; `prepare index` writes it"
            ) from error
        if self.index.dtype != dtype:
            raise DataError(f"{folder / INDEX}: is no index of shards; `prepare index` writes it")
        self._check_sizes(folder)

    def _check_sizes(self, folder: Path) -> None:
        """Every sample lies inside its shard."""
        needed = np.zeros(max(len(self._files), int(self.index["shard"].max(initial=-1)) + 1), dtype=np.int64)
        np.maximum.at(needed, self.index["shard"], self.index["start"] + self.index["size"])
        if len(needed) > len(self._files):
            raise DataError(f"{folder}: {len(self._files)} shards, {INDEX} knows {len(needed)}")
        for file, end in zip(self._files, needed.tolist(), strict=True):
            if file.stat().st_size < end:
                raise DataError(
                    f"{file}: has {file.stat().st_size} bytes, {INDEX} wants {end}: it is cut off"
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}  # descriptors mean nothing in another process

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_open", {}).values():
            os.close(descriptor)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, row: int) -> str:
        return f"{self._files[self.index[row]['shard']]} byte {self.index[row]['start']}"

    def content(self, row: int) -> bytes:
        """The member of a row of the index; raises CorruptSampleError."""
        place = self.index[row]
        try:
            content = os.pread(self._descriptor(int(place["shard"])), int(place["size"]), int(place["start"]))
        except OSError as error:
            raise CorruptSampleError(str(error)) from error
        if zlib.crc32(content) != place["crc32"]:
            raise CorruptSampleError("its CRC-32 is not that of the index")
        return content

    def _descriptor(self, shard: int) -> int:
        if shard not in self._open:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            self._open[shard] = os.open(self._files[shard], os.O_RDONLY)
        self._open.move_to_end(shard)
        return self._open[shard]


class ShardFolder:
    """`folder`/*.tar and `folder`/index.npy: pictures of one split."""

    def __init__(self, folder: Path, class_count: int, settings: config.Data, training: bool) -> None:
        self._settings, self._training, self._class_count = settings, training, class_count
        self._tars = Tars(folder, INDEX_DTYPE)

    @property
    def parts(self) -> int:
        return len(self._tars)

    def __len__(self) -> int:
        return len(self._tars.index)

    def name(self, index: int) -> str:
        return self._tars.name(index)

    def fingerprint(self, index: int) -> bytes:
        """Its line of the index, which has a checksum of the picture."""
        return bytes(self._tars.index[index].tobytes())

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Picture (3, height, width) uint8 and class () int64."""
        content, number = self._tars.content(index), self._tars.index[index]["class"]
        if not 0 <= number < self._class_count:
            raise CorruptSampleError(f"class {number}, dataset.json names {self._class_count}")
        picture = decode(content, self._settings, self._training, chance)
        return picture, np.asarray(number, dtype=np.int64)


class Records:
    """Tars of any keys: sample n is a dictionary of its decoded members, by key; see `decoded`."""

    def __init__(self, folder: Path, keys: tuple[str, ...], settings: config.Data, training: bool) -> None:
        self._tars, self._keys = Tars(folder, RECORDS_DTYPE), keys
        self._settings, self._training = settings, training
        for column in settings.columns:
            if column not in keys:
                raise DataError(
                    f"data.columns: {column!r} is no key of {folder}; it has {', '.join(sorted(keys))}"
                )
        self._chosen = [n for n, key in enumerate(keys) if key in (settings.columns or keys)]

    def __len__(self) -> int:
        return len(self._tars.index) // len(self._keys)

    def __getitem__(self, index: int) -> dict[str, Any]:
        first = index * len(self._keys)
        return {self._keys[n]: self._member(first + n, self._keys[n]) for n in self._chosen}

    def _member(self, row: int, key: str) -> Any:
        try:
            return decoded(self._tars.content(row), key, self._settings, self._training)
        except (CorruptSampleError, ValueError) as error:
            raise CorruptSampleError(f"{key} at {self._tars.name(row)}: {error}") from error


def decoded(content: bytes, key: str, settings: config.Data, training: bool) -> Any:
    """A member by the end of its key, as WebDataset decodes them; bytes as they are under an unknown one.

    Pictures become (3, height, width) uint8. Raises CorruptSampleError or ValueError.
    """
    kind = key.rpartition(".")[2].lower()
    if f".{kind}" in SUFFIXES:
        chance = np.random.default_rng(int(torch.randint(2**62, ())))  # which the reader has set by sample
        return decode(content, settings, training, chance)
    decoder = DECODERS.get(kind)
    return decoder(content) if decoder else content


DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("cls", "index", "id", "count"), int),
    **dict.fromkeys(("txt", "text"), bytes.decode),
    "json": json.loads,
    "npy": lambda content: np.load(io.BytesIO(content), allow_pickle=False),
}


def index_records(file: Path, number: int, keys: tuple[str, ...]) -> Array:
    """The rows of the index for one tar of any keys; raises DataError for a sample that lacks one of `keys`.

    A sample's name ends at the first dot of its file name, as in WebDataset.
    """
    samples: dict[str, dict[str, tuple[int, int, int]]] = {}
    for member, content in _members(file):
        path = PurePosixPath(member.name)
        name, _, key = path.name.partition(".")
        if key in keys:
            place = (member.offset_data, member.size, zlib.crc32(content))
            samples.setdefault(str(path.with_name(name)), {})[key] = place
    for name, found in samples.items():
        if lacking := [key for key in keys if key not in found]:
            raise DataError(f"{file}: sample {name} has no {lacking[0]}")
    rows = [(number, *found[key]) for found in samples.values() for key in keys]
    return np.array(rows, dtype=RECORDS_DTYPE)


def _members(file: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The files in a tar and their bytes; raises DataError."""
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is not None:
                    yield member, content.read()
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{file}: is no tar: {error}") from error


def index_shard(file: Path, number: int) -> Array:
    """The rows of the index for one tar; raises DataError naming the sample that is incomplete."""
    pictures: dict[str, tuple[int, int, int]] = {}
    classes: dict[str, int] = {}
    for member, content in _members(file):
        path = PurePosixPath(member.name)
        key, suffix = str(path.with_suffix("")), path.suffix
        if suffix == ".cls":
            classes[key] = _class(file, member.name, content)
        elif suffix.lower() in SUFFIXES:
            pictures[key] = (member.offset_data, member.size, zlib.crc32(content))
    lonely = sorted(pictures.keys() ^ classes.keys())
    if lonely:
        raise DataError(
            f"{file}: sample {lonely[0]} lacks its picture or its .cls; {len(lonely)} such in all"
        )
    rows = [(number, *place, classes[key]) for key, place in pictures.items()]
    return np.array(rows, dtype=INDEX_DTYPE)


def _class(file: Path, name: str, content: bytes) -> int:
    try:
        return int(content)
    except ValueError as error:
        raise DataError(f"{file}: {name} is no class: {error}") from error
