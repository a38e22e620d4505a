"""Pictures in tar shards as WebDataset lays them out, with an index that finds any sample at once.

A sample is two members of one tar that share a name: NNN.png (or another picture) and NNN.cls, its class as a
number. The tars are plain: WebDataset reads them, and `prepare index` takes in those that it wrote.

Why not the library webdataset: it reads a tar from its start, so resuming at sample n of an epoch means to
skip n samples, and its shuffle buffer makes the order depend on the number of workers (its issues #188 and
#225). With the place of every sample in an index, a sample is one read, whatever its position; order, sharing
out and resume stay those of every other kind of data.
"""

import os
import tarfile
import zlib
from collections import OrderedDict
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gpu_fleet import config
from gpu_fleet.data.dataset import Array, CorruptSampleError, Description
from gpu_fleet.data.images import SUFFIXES, decode
from gpu_fleet.errors import DataError

INDEX = "index.npy"
# Of a sample: number of its shard in name order, first byte, length and CRC-32 of its picture, its class.
INDEX_DTYPE = np.dtype(
    [("shard", "<i4"), ("start", "<i8"), ("size", "<i8"), ("crc32", "<u4"), ("class", "<i4")]
)
OPEN_FILES = 256  # per reader process; below the usual limit of 1,024


def open_split(
    folder: Path, description: Description, settings: config.Data, training: bool
) -> "ShardFolder":
    """The pictures of a split; raises DataError when the shards and their index do not fit each other."""
    return ShardFolder(folder, len(description.classes), settings, training)


def shard_files(folder: Path) -> list[Path]:
    """The tars of a split in name order."""
    return sorted(folder.glob("*.tar"))


class ShardFolder:
    """`folder`/*.tar and `folder`/index.npy: pictures of one split."""

    def __init__(self, folder: Path, class_count: int, settings: config.Data, training: bool) -> None:
        self._settings, self._training, self._class_count = settings, training, class_count
        self._files = shard_files(folder)
        self._open: OrderedDict[int, int] = OrderedDict()  # shard to file descriptor, longest unused first
        try:
            self._index = np.load(folder / INDEX, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"{folder / INDEX}: cannot be read: {error}; `prepare index` writes it"
            ) from error
        if self._index.dtype != INDEX_DTYPE:
            raise DataError(f"{folder / INDEX}: is no index of shards; `prepare index` writes it")
        self._check_sizes(folder)

    def _check_sizes(self, folder: Path) -> None:
        """Every sample lies inside its shard."""
        needed = np.zeros(
            max(len(self._files), int(self._index["shard"].max(initial=-1)) + 1), dtype=np.int64
        )
        np.maximum.at(needed, self._index["shard"], self._index["start"] + self._index["size"])
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

    @property
    def parts(self) -> int:
        return len(self._files)

    def __len__(self) -> int:
        return len(self._index)

    def name(self, index: int) -> str:
        place = self._index[index]
        return f"{self._files[place['shard']]} byte {place['start']}"

    def fingerprint(self, index: int) -> bytes:
        """Its line of the index, which has a checksum of the picture."""
        return bytes(self._index[index].tobytes())

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Picture (3, height, width) uint8 and class () int64."""
        place = self._index[index]
        try:
            content = os.pread(self._descriptor(int(place["shard"])), int(place["size"]), int(place["start"]))
        except OSError as error:
            raise CorruptSampleError(str(error)) from error
        if zlib.crc32(content) != place["crc32"]:
            raise CorruptSampleError("its CRC-32 is not that of the index")
        if not 0 <= place["class"] < self._class_count:
            raise CorruptSampleError(f"class {place['class']}, dataset.json names {self._class_count}")
        picture = decode(content, self._settings, self._training, chance)
        return picture, np.asarray(place["class"], dtype=np.int64)

    def _descriptor(self, shard: int) -> int:
        if shard not in self._open:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            self._open[shard] = os.open(self._files[shard], os.O_RDONLY)
        self._open.move_to_end(shard)
        return self._open[shard]


def index_shard(file: Path, number: int) -> Array:
    """The rows of the index for one tar; raises DataError naming the sample that is incomplete."""
    pictures: dict[str, tuple[int, int, int]] = {}
    classes: dict[str, int] = {}
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is None:
                    continue
                path = PurePosixPath(member.name)
                key, suffix = str(path.with_suffix("")), path.suffix
                if suffix == ".cls":
                    classes[key] = int(content.read())
                elif suffix.lower() in SUFFIXES:
                    pictures[key] = (member.offset_data, member.size, zlib.crc32(content.read()))
    except (OSError, tarfile.TarError, ValueError) as error:
        raise DataError(f"{file}: is no tar of pictures and classes: {error}") from error
    lonely = sorted(pictures.keys() ^ classes.keys())
    if lonely:
        raise DataError(
            f"{file}: sample {lonely[0]} lacks its picture or its .cls; {len(lonely)} such in all"
        )
    rows = [(number, *place, classes[key]) for key, place in pictures.items()]
    return np.array(rows, dtype=INDEX_DTYPE)
