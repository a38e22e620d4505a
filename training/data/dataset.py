"""What every data set of this room offers, and how one is opened."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from training import config
from training.errors import DataError

Array = npt.NDArray[Any]
DESCRIPTION = "dataset.json"


class CorruptSampleError(Exception):
    """One sample cannot be read. The reader counts it and goes on, up to data.corrupt_limit."""


class Dataset(Protocol):
    """Samples of one split, reachable by index in any order, from any process."""

    def __len__(self) -> int: ...

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Input and target of sample `index`; `chance` drives the augmentation. Raises CorruptSampleError."""
        ...

    def name(self, index: int) -> str:
        """How a person finds the sample: its file, its line, its offset."""
        ...


@dataclass(frozen=True)
class Description:
    """What `prepare` wrote down about a data set in dataset.json."""

    kind: str  # images | shards | tokens | text
    classes: tuple[str, ...] = ()
    vocabulary: int = 0  # token ids are below this
    baseline_name: str = ""  # the simple method that the trained model has to beat, on the same split
    baseline: float | None = None


def describe(root: Path) -> Description:
    """Reads dataset.json of a data set, or recognises a plain folder of class folders; raises DataError."""
    if not root.is_dir():
        raise DataError(f"data.path = {str(root)!r}: is not a folder")
    file = root / DESCRIPTION
    if not file.exists():
        return Description("images", class_names(root / "train"))
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        return Description(**{**table, "classes": tuple(table.get("classes", ()))})
    except (ValueError, TypeError) as error:
        raise DataError(f"{file}: is not a description of a data set: {error}") from error


def class_names(folder: Path) -> tuple[str, ...]:
    """The class folders of a split, sorted by name."""
    if not folder.is_dir():
        raise DataError(f"{folder}: is missing; an image data set has train/CLASS/*.png and test/CLASS/*.png")
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))


def open_split(settings: config.Data, description: Description, split: str) -> Dataset:
    """The data set of `split` ("train" or "test"); raises DataError when it is missing or empty."""
    from training.data.images import ImageFolder  # noqa: PLC0415 - each kind loads only its own libraries

    kind = description.kind if settings.kind == "auto" else settings.kind
    folder = Path(settings.path) / split
    training = split == "train"
    dataset: Dataset
    match kind:
        case "images":
            dataset = ImageFolder(folder, description.classes, settings, training)
        case _:
            raise DataError(f"data.kind = {kind!r}: no reader; known: images, shards, tokens, text")
    if len(dataset) == 0:
        raise DataError(f"{folder}: holds no samples")
    return dataset
