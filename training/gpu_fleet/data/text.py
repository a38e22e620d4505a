"""Labelled texts: the ids of all texts of a split in a row, and the position where each text begins."""

import hashlib
from pathlib import Path

import numpy as np

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.dataset import Array, CorruptSampleError, Description
from gpu_fleet.data.tokens import MappedTokens

TOKENS = "tokens.bin"
STARTS = "starts.npy"  # (texts + 1,) int64: the start of each text, and the end of the last
CLASSES = "classes.npy"  # (texts,) int64
PADDING = 0


def open_split(folder: Path, description: Description, settings: config.Data, training: bool) -> "TextFile":
    """Open the texts of a split; raises DataError if a file is missing or does not fit the others."""
    del training  # nothing is augmented
    return TextFile(folder, description, settings.sequence_length)


class TextFile(MappedTokens):
    """Texts of `folder`, each cut or padded to `length` tokens."""

    def __init__(self, folder: Path, description: Description, length: int) -> None:
        super().__init__(folder / TOKENS, description.vocabulary)
        self._folder, self._length, self._class_count = folder, length, len(description.classes)
        self._starts, self._classes = _load(folder / STARTS), _load(folder / CLASSES)
        self._check()
        longer = np.flatnonzero(np.diff(self._starts) > length)
        for first in longer[:1].tolist():
            self.census.leave("texts cut to data.sequence_length", self.name(first), len(longer))

    def _check(self) -> None:
        if len(self._starts) != len(self._classes) + 1:
            raise DataError(
                f"{self._folder}: {STARTS} is for {len(self._starts) - 1} texts, "
                f"{CLASSES} for {len(self._classes)}"
            )
        wanted = int(self._starts[-1]) * self._dtype.itemsize
        size = self._file.stat().st_size if self._file.exists() else 0
        if size != wanted:
            raise DataError(f"{self._file}: has {size} bytes, {STARTS} wants {wanted}: it has changed")

    def __len__(self) -> int:
        return len(self._classes)

    def name(self, index: int) -> str:
        return f"{self._folder} text {index}"

    def outline(self) -> bytes:
        return hashlib.sha256(self._starts.tobytes() + self._classes.tobytes()).digest()

    def fingerprint(self, index: int) -> bytes:
        return bytes(self._ids(index).tobytes() + self._classes[index].tobytes())

    def _ids(self, index: int) -> Array:
        """Return the first tokens of a text, at most `length`, in the type of the file."""
        start, end = int(self._starts[index]), int(self._starts[index + 1])
        return self._mapped()[start : min(end, start + self._length)]

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
