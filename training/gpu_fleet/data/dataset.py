"""The interface of every data set, and the function that opens one."""

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, TypeAdapter, ValidationError

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError, counted, suggestion
from gpu_fleet.data.census import Census, check_unlinked
from gpu_fleet.data.class_folders import DESCRIPTION, beside_splits, classes_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Array = npt.NDArray[Any]
BUCKETS = ("s3://", "oss://")
OPENERS = {
    "images": "gpu_fleet.data.images",
    "shards": "gpu_fleet.data.shards",
    "text": "gpu_fleet.data.text",
    "tokens": "gpu_fleet.data.tokens",
}


class CorruptSampleError(Exception):
    """One sample cannot be read. The reader counts it and continues, up to data.corrupt_limit."""


class Dataset(Protocol):
    """Samples of a split, of one shape, read by index; picklable: it opens its files on first use."""

    census: Census  # of the files in the split's folder that this data set leaves out

    @property
    def parts(self) -> int:
        """Number of files to share among the readers (shards); 0 if there may be any number of readers."""
        return 0

    @property
    def files(self) -> Sequence[Path]:
        """Files, if each of them is a sample."""
        return ()

    def __len__(self) -> int: ...

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Read input and target; `chance` drives the augmentation. Raises CorruptSampleError."""
        ...

    def name(self, index: int) -> str:
        """Return the location of the sample for users: its file, line or offset."""
        ...

    def outline(self) -> bytes:
        """Return a digest of all facts about samples that need no reading, such as names and classes."""
        ...

    def fingerprint(self, index: int) -> bytes:
        """Return bytes that another sample would not have, wherever the data set is; cheap to compute."""
        ...

    def expect(self, indices: Sequence[int]) -> None:  # noqa: ARG002 - subclasses use it
        """Fetch the samples that are read next at once, where single reads are slow."""
        return

    def stacked(self, indices: Sequence[int]) -> tuple[Array, Array] | None:  # noqa: ARG002 - subclasses use it
        """Read samples, whose targets all count, at once where that is faster; None if one is corrupt."""
        return None


@dataclass(frozen=True)
class Description:
    """Description of a data set: the content of dataset.json, beside the splits train/ and val/."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: str  # images | shards | tokens | text | records
    classes: tuple[str, ...] = ()
    vocabulary: int = 0  # token ids are below this; in kind "text" id 0 is padding
    bytes_per_token: float = 0.0  # mean over the raw text; if set, the metric is bits per byte
    baseline_name: str = ""  # a simple method that the trained model has to beat, on the same split
    baseline: float | None = None
    keys: tuple[str, ...] = ()  # for kind "records"


_DESCRIPTION = TypeAdapter(Description)


def is_bucket(path: str) -> bool:
    return path.startswith(BUCKETS)


def describe(root: Path, key: str = "data.path") -> Description:
    """Read dataset.json, or describe class folders; raises DataError, in which `key` names `root`."""
    if root.is_file():
        raise DataError(
            f"{key} = {str(root)!r}: is a file; only .parquet and .jsonl are read; `prepare` converts others"
        )
    if not root.is_dir():
        raise DataError(f"{key} = {str(root)!r}: is not a folder")
    file = root / DESCRIPTION
    if not file.exists():
        return Description("images", classes_of(root))
    return parsed(file.read_bytes(), str(file))


def parsed(content: bytes, place: str) -> Description:
    try:
        return _DESCRIPTION.validate_json(content)
    except ValidationError as error:
        raise DataError(f"{place}: {_wrong(error.errors()[0])}") from error


def _wrong(item: "ErrorDetails") -> str:
    """Return the key of a description, its value, and what is allowed."""
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "json_invalid":
        return f"is not JSON: {item['ctx']['error']}"
    if item["type"] == "missing":
        return f"{key}: is missing"
    if item["type"] == "unexpected_keyword_argument":
        return f"{key}: unknown key{suggestion(key, (field.name for field in fields(Description)))}"
    at = f"{key} = {item['input']!r}" if key else f"holds {item['input']!r}"
    return f"{at}: {config.allowed(item['msg'])}"


def split_of(size: int, settings: config.Data, training: bool) -> Array:
    """Return the sorted indices of one split of `size` samples; the settings alone decide them."""
    order = np.random.Generator(np.random.Philox(key=settings.split_seed)).permutation(size)
    held_out = round(size * settings.held_out)
    return np.sort(order[held_out:] if training else order[:held_out])


def check_split_keys(settings: config.Data) -> None:
    """Raise DataError if keys about held-out samples are set for data that have splits of their own."""
    for key in ("held_out", "split_seed"):
        if (value := getattr(settings, key)) != config.Data.model_fields[key].default:
            raise DataError(
                f"data.{key} = {value}: is for data without splits, and {settings.path} has its own; "
                "leave it out"
            )


def split_problem(size: int, settings: config.Data, training: bool) -> str:
    """Return the message about a split that got none of `size` samples, with values that would work."""
    split = "training" if training else "val"
    if size <= 1:
        return f"data.path = {settings.path!r}: holds {size} samples, too few for train and val"
    return (
        f"data.held_out = {settings.held_out}: leaves none of the {size} samples of {settings.path} for "
        f"{split}; set {1 / size:.2g} to {1 - 1 / size:.2g}, or make folders train and val"
    )


def write_description(root: Path, description: Description) -> None:
    """Write dataset.json, as the last action of a `prepare` command."""
    (root / DESCRIPTION).write_bytes(content_of(description))


def content_of(description: Description) -> bytes:
    return (json.dumps(asdict(description), indent=1) + "\n").encode()


def check_kind(settings: config.Data, kind: str) -> None:
    """Raise DataError if data.kind names another kind than `kind`, that of the data."""
    if settings.kind not in ("auto", kind):
        has_none = kind == "images" and not (Path(settings.path) / DESCRIPTION).exists()
        why = ", as it has no dataset.json, which `prepare` writes" if has_none else ""
        raise DataError(
            f"data.kind = {settings.kind!r}: {settings.path} is of kind {kind}{why}; leave data.kind out"
        )


def open_splits(settings: config.Data, description: Description) -> tuple[Dataset, Dataset]:
    """Open "train" and "val"; raises DataError, also for a file in both by a link."""
    training, held_out = (open_split(settings, description, split) for split in ("train", "val"))
    check_unlinked(training.files, held_out.files)
    return training, held_out


def open_split(settings: config.Data, description: Description, split: str) -> Dataset:
    """Open "train" or "val" by `open_split` of its module; raises DataError if it lacks or is empty."""
    kind = description.kind
    if kind not in OPENERS:
        raise DataError(
            f"{settings.path}/{DESCRIPTION}: kind {kind!r} has no reader{suggestion(kind, OPENERS)}"
        )
    if kind != "images":
        check_split_keys(settings)
    if is_bucket(settings.path) and kind != "shards":
        raise DataError(
            f"data.path = {settings.path!r}: shards and records are read from a bucket, not {kind}; "
            "copy them to a disk"
        )
    opener = importlib.import_module(OPENERS[kind])  # each kind loads only its own libraries
    folder = Path(settings.path) / split
    dataset: Dataset = opener.open_split(folder, description, settings, split == "train")
    if len(dataset) == 0:
        raise DataError(f"{settings.path}/{split}: holds no samples")
    if split == "train" and folder.is_dir():
        beside_splits(Path(settings.path), dataset.census)
    return dataset


def check_parts(parts: int, ranks: int, workers: int) -> None:
    """Raise DataError if there are fewer shards than processes that read them."""
    readers = ranks * max(1, workers)
    if 0 < parts < readers:
        raise DataError(
            f"only {counted(parts, 'shard')} for {counted(ranks, 'rank')} x {max(1, workers)} data.workers; "
            f"write at least {readers} shards, or lower data.workers"
        )
