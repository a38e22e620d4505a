"""Labelled texts: the ids of all texts of a split in a row, and the position where each text begins."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.census import Census
from gpu_fleet.data.dataset import Array, CorruptSampleError, Description
from gpu_fleet.data.tokens import dtype_of

TOKENS = "tokens.bin"
STARTS = "starts.npy"  # (texts + 1,) int64: the start of each text, and the end of the last
CLASSES = "classes.npy"  # (texts,) int64
PADDING = 0


def open_split(folder: Path, description: Description, settings: config.Data, training: bool) -> "TextFile":
    """Open the texts of a split; raises DataError if a file is missing or does not fit the others."""
    del training  # nothing is augmented
    return TextFile(folder, description, settings.sequence_length)


class TextFile:
    """Texts of `folder`, each cut or padded to `length` tokens."""

    parts = 0  # any number of processes may read it

    def __init__(self, folder: Path, description: Description, length: int) -> None:
        self._folder, self._length = folder, length
        self._vocabulary, self._class_count = description.vocabulary, len(description.classes)
        self._dtype = dtype_of(description.vocabulary)
        self._starts, self._classes = _load(folder / STARTS), _load(folder / CLASSES)
        self._tokens: Array | None = None
        self._check()
        self.census = Census()
        longer = np.flatnonzero(np.diff(self._starts) > length)
        for first in longer[:1].tolist():
            self.census.leave("texts cut to data.sequence_length", self.name(first), len(longer))

    def _check(self) -> None:
        file = self._folder / TOKENS
        if len(self._starts) != len(self._classes) + 1:
            raise DataError(
                f"{self._folder}: {STARTS} is for {len(self._starts) - 1} texts, "
                f"{CLASSES} for {len(self._classes)}"
            )
        wanted = int(self._starts[-1]) * self._dtype.itemsize
        size = file.stat().st_size if file.exists() else 0
        if size != wanted:
            raise DataError(f"{file}: has {size} bytes, {STARTS} wants {wanted}: it is not the file it was")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None}  # pickle would copy the mapped data to reader processes

    def __len__(self) -> int:
        return len(self._classes)

    def name(self, index: int) -> str:
        return f"{self._folder} text {index}"

    def outline(self) -> bytes:
        """Return a digest of all classes, and of the starts of the texts."""
        return hashlib.sha256(self._starts.tobytes() + self._classes.tobytes()).digest()

    def fingerprint(self, index: int) -> bytes:
        """Return the tokens of the text, and its class."""
        return bytes(self._ids(index).tobytes() + self._classes[index].tobytes())

    def _ids(self, index: int) -> Array:
        """Return the first tokens of a text, at most `length`, in the type of the file."""
        if self._tokens is None:
            self._tokens = np.memmap(self._folder / TOKENS, dtype=self._dtype, mode="r")
        start, end = int(self._starts[index]), int(self._starts[index + 1])
        return self._tokens[start : min(end, start + self._length)]

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Read ids (length,) int64, padded with 0, and class () int64; raises CorruptSampleError."""
        del chance
        ids = self._ids(index).astype(np.int64)
        target = int(self._classes[index])
        if not ids.size or ids.max() >= self._vocabulary or not 0 <= target < self._class_count:
            raise CorruptSampleError(
                f"{ids.size} tokens up to {ids.max(initial=0)} of {self._vocabulary}, "
                f"class {target} of {self._class_count}"
            )
        padded = np.full(self._length, PADDING, dtype=np.int64)
        padded[: ids.size] = ids
        return padded, np.asarray(target, dtype=np.int64)


def _load(file: Path) -> Array:
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file}: cannot be read: {error}; `prepare text` writes it") from error
