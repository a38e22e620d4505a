"""Samples that need no download: random pictures in memory, and a file of random tokens."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpu_fleet.data.dataset import Description, write_description
from gpu_fleet.data.tokens import FILE, dtype_of

SEED = 7
DIFFERENT = 64  # pictures in memory; each index is one of them


class RandomPictures:
    """Pictures of bytes (3, side, side), each with a class."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        chance = np.random.default_rng(SEED)
        self.classes = [f"class {number}" for number in range(classes)]
        self._count = count
        pictures = chance.integers(0, 256, (DIFFERENT, 3, side, side), dtype=np.uint8)
        self._pictures = torch.from_numpy(pictures)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._pictures[index % DIFFERENT], index % len(self.classes)


def pictures(split: str, count: int, side: int, classes: int) -> RandomPictures | None:
    """Return the training split; there is nothing to evaluate."""
    return RandomPictures(count, side, classes) if split == "train" else None


def write_tokens(folder: Path, tokens: int, vocabulary: int) -> None:
    """Write a data set of random tokens, both splits."""
    chance = np.random.default_rng(SEED)
    for split, count in (("train", tokens), ("val", tokens // 8)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        chance.integers(0, vocabulary, count).astype(dtype_of(vocabulary)).tofile(folder / split / FILE)
    write_description(folder, Description("tokens", vocabulary=vocabulary))
