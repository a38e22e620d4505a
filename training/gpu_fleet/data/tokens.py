"""Token files: one flat array of ids per split, mapped into memory, cut into sequences."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.census import OTHERS, Census, entries
from gpu_fleet.data.dataset import Array, CorruptSampleError, Dataset, Description

FILE = "tokens.bin"
UINT16_VOCABULARY = 1 << 16


def dtype_of(vocabulary: int) -> np.dtype[Any]:
    """Return the smallest little-endian type for ids below `vocabulary`: uint16 or uint32."""
    return np.dtype("<u2" if vocabulary <= UINT16_VOCABULARY else "<u4")


def open_split(folder: Path, description: Description, settings: config.Data, training: bool) -> "TokenFile":
    """Open the sequences of a split; raises DataError if its file is missing or cut off."""
    del training  # nothing is augmented
    return TokenFile(folder / FILE, description.vocabulary, settings.sequence_length)


class MappedTokens(Dataset):
    """Data set of a file of ids, below a vocabulary, mapped into memory when it is first read."""

    def __init__(self, file: Path, vocabulary: int) -> None:
        self._file, self._vocabulary, self._dtype = file, vocabulary, dtype_of(vocabulary)
        self.census = Census()
        self._tokens: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None}  # pickle would copy the mapped data to reader processes

    def _mapped(self) -> Array:
        """Return all tokens of the mapped file, as a plain array, whose slices take a fifth of the time."""
        if self._tokens is None:
            self._tokens = np.asarray(np.memmap(self._file, dtype=self._dtype, mode="r"))
        return self._tokens


class TokenFile(MappedTokens):
    """Sequences of `length` tokens in a row from `file`; the rest at the end is not used."""

    def __init__(self, file: Path, vocabulary: int, length: int) -> None:
        super().__init__(file, vocabulary)
        self._length = length
        try:
            size = file.stat().st_size
        except OSError as error:
            raise DataError(
                f"{file}: cannot be read: {error.strerror}; `prepare tokens` writes it"
            ) from error
        if size % self._dtype.itemsize:
            raise DataError(f"{file}: {size} bytes are not whole {self._dtype.name} tokens: it is cut off")
        # each sequence needs one more token, the target of its last position
        self._count = max(0, (size // self._dtype.itemsize - 1) // length)
        unused = size // self._dtype.itemsize - 1 - self._count * length
        for entry in entries(file.parent, self.census):
            if entry.name != FILE:
                self.census.leave(OTHERS, entry.path)
        self.census.leave("tokens at the end, too few for a sample", file, max(0, unused))

    def __len__(self) -> int:
        return self._count

    def name(self, index: int) -> str:
        return f"{self._file} tokens {index * self._length} to {(index + 1) * self._length}"

    def outline(self) -> bytes:
        return str(self._count).encode()

    def fingerprint(self, index: int) -> bytes:
        return self._window(index).tobytes()

    def _window(self, index: int) -> Array:
        """Return the tokens of a sample and the next one, (length + 1,), in the type of the file."""
        start = index * self._length
        return self._mapped()[start : start + self._length + 1]

    def stacked(self, indices: Sequence[int]) -> tuple[Array, Array] | None:
        """Read tokens (samples, length) int64 and the next tokens, same shape; None if one is corrupt."""
        tokens, width = self._mapped(), self._length + 1
        windows = np.empty((len(indices), width), dtype=np.int64)
        for row, index in zip(windows, indices, strict=True):
            start = index * self._length
            row[:] = tokens[start : start + width]
        if windows.max() >= self._vocabulary:
            return None
        return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Read tokens (length,) int64 and the token after each; raises CorruptSampleError."""
        del chance
        start = index * self._length
        window = self._window(index).astype(np.int64)
        if window.max() >= self._vocabulary:
            place = start + int(window.argmax())
            raise CorruptSampleError(
                f"token {place} is {window.max()}, the vocabulary ends at {self._vocabulary}"
            )
        return window[:-1], window[1:]
