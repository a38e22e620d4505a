"""A user's own data set: anything with `__len__` and `__getitem__`, an iterable, or a table.

Samples may be of any kind. `data.collate`, by default torch's default_collate, makes a batch of them: any
nest of tensors, numbers and text. Seed, epoch and index decide the random numbers of a sample, so the number
of reader processes does not change them.
"""

import hashlib
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import DataLoader, IterableDataset, default_collate

from gpu_fleet import config
from gpu_fleet.data.dataset import DESCRIPTION, Description, split_of, split_problem, walked
from gpu_fleet.data.generators import held_by, kept_generators, seed_generators
from gpu_fleet.data.images import SUFFIXES
from gpu_fleet.data.loader import Batch, CountOf
from gpu_fleet.data.order import Slice
from gpu_fleet.data.shards import Records, folder_of
from gpu_fleet.errors import ConfigError, DataError, MissingPackageError, OwnCodeError
from gpu_fleet.own_code import Own, explained

ENDLESS = 2**62  # number of samples of a stream without a length
LEAVES = (torch.Tensor, np.ndarray, int, float, str, bytes, bool, type(None))
MARKS = ("dataset_dict.json", "state.json")  # files from save_to_disk of Hugging Face's datasets
SPLITS = {"train": ("train",), "val": ("validation", "val", "test")}
UNSPLIT = "rows"  # not "all", which means all splits to the library
FRESH_SEED = 67280421310721  # torch's seed in a new process, under which earlier trainers hashed streams
TABLES = {".parquet": "parquet", ".jsonl": "json", ".jsonl.gz": "json"}
AT_HAND = 2  # greatest depth of table files that may have pictures beside them
# Rows in a format or compression that is not read.
UNREAD = re.compile(r"\.(jsonl|parquet|ndjson|csv|tsv|arrow|feather|orc|avro)(\.\w+)?$", re.IGNORECASE)
REAL = ("float", "double", "halffloat")  # Arrow's names of column types
Collate = Callable[[list[Any]], Any]


class OwnData:
    """One split of a user's data set, read by index."""

    parts = 0  # any number of processes may read it
    ordered = False  # read in the order of gpu_fleet.data.order
    looked_at = 16  # number of samples to fingerprint; they may be slow to make

    def __init__(self, samples: Any, label: str, collate: Collate) -> None:
        self._samples, self.label, self.collate = samples, label, collate
        self.classes = tuple(str(name) for name in getattr(samples, "classes", ()))
        self.vocabulary = int(getattr(samples, "vocabulary", 0))
        self.generators = () if isinstance(samples, Records) else held_by(samples)
        self.of_user = not isinstance(samples, Records)  # user code may give each rank other samples
        self.readings = 2 if self.of_user else 1  # two show whether the samples are reproducible

    def __len__(self) -> int:
        return len(self._samples)

    def name(self, index: int) -> str:
        return f"{self.label}, sample {index}"

    def sample(self, index: int, chance: np.random.Generator) -> Any:
        """Read sample `index`, of any kind; `chance` seeds its random numbers. Raises OwnCodeError."""
        seed_generators(chance, self.generators)
        with explained(self.name(index)):
            return self._samples[index]

    def expect(self, indices: Sequence[int]) -> None:
        """Fetch these samples, which are read next, if they are in a bucket."""
        if isinstance(self._samples, Records):
            self._samples.expect(indices)

    def fingerprint(self, index: int) -> bytes:
        """Return bytes that distinguish the sample from others."""
        return self.looked_into(index)[0]

    def looked_into(self, index: int) -> tuple[bytes, str]:
        """Return digest and shape of a sample."""
        with kept_generators(self.generators):
            return _looked_into([self.sample(index, np.random.default_rng(index))])


class Stream(OwnData):
    """A user's iterable, read in its own order, from its first sample to its last, again and again.

    Every rank reads all of it and uses its share. To resume at a position, a rank reads and drops the samples
    before it, except whole passes if the stream has a length.
    """

    ordered = True
    looked_at = 1

    def __init__(self, samples: Iterable[Any], label: str, collate: Collate) -> None:
        super().__init__(samples, label, collate)
        self._length = len(samples) if isinstance(samples, Sized) else ENDLESS
        self._iterator: Iterator[Any] | None = None
        self._next = 0  # the position of the iterator's next sample

    def __len__(self) -> int:
        return self._length

    def sample(self, index: int, chance: np.random.Generator) -> Any:
        """Read the sample at a position, counted over all passes; `chance` differs by rank and is unused."""
        del chance
        with explained(self.name(index)):
            if self._iterator is None or index < self._next or index - self._next > self._length:
                self._begin_pass(index // self._length)
            while self._next < index:
                self._take()
            return self._take()

    def _begin_pass(self, number: int) -> None:
        self._seed(number * self._length)
        if hasattr(self._samples, "set_epoch"):
            self._samples.set_epoch(number)
        self._iterator, self._next = iter(self._samples), number * self._length

    def _seed(self, position: int) -> None:
        """Seed the generators alike on all ranks, as each reads the whole stream."""
        seed_generators(np.random.default_rng(position), self.generators)

    def _take(self) -> Any:
        for _ in range(2):
            assert self._iterator is not None
            self._seed(self._next)  # also after the begin of a pass: a resumed run may begin there
            samples = list(islice(self._iterator, 1))
            if samples:
                self._next += 1
                return samples[0]
            position, passes = self._next, self._next // self._length + 1
            if self._length != ENDLESS and position % self._length:
                raise ValueError(
                    f"it ends after {position % self._length} samples, its len() says {len(self)}"
                )
            self._begin_pass(passes if self._length == ENDLESS else position // self._length)
            self._next = position
        raise ValueError("it is empty")

    def looked_into(self, index: int) -> tuple[bytes, str]:
        """Return digest and shape of the first two samples."""
        with kept_generators(self.generators), explained(self.label):
            seed_generators(np.random.default_rng(index), self.generators)
            torch.default_generator.manual_seed(FRESH_SEED)
            return _looked_into(list(islice(iter(self._samples), 2)))


class OwnReader:
    """Reader of whole batches of a user's data set; see data.loader.Reader."""

    def __init__(
        self,
        data: OwnData,
        seed: int,
        count: CountOf | None = None,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        """Prepare a reader.

        `count` returns over how many items of a batch its loss is the mean; without it each sample counts as
        one. `check` raises DataError for a batch that the model cannot take.
        """
        self._data, self._seed, self._count, self._check = data, seed, count, check

    def __getitem__(self, part: Slice) -> Batch:
        with kept_generators(self._data.generators):
            samples = []
            self._data.expect(part.indices.tolist())
            for epoch, index in zip(part.epochs.tolist(), part.indices.tolist(), strict=True):
                chance = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, epoch, index]))
                samples.append(self._data.sample(index, chance))
            return self._collated(samples)

    def _collated(self, samples: list[Any]) -> Batch:
        count = len(samples)
        try:
            batch = self._data.collate(samples)
        except OwnCodeError:
            raise
        except Exception as error:  # default_collate raises many kinds for users' samples
            text = str(error).partition("\n")[0]
            raise DataError(
                f"{self._data.label}: {count} samples make no batch: {text}; the first is "
                f"{shape_of(samples[0])}, the last {shape_of(samples[-1])}; set data.collate = 'FILE.py:NAME'"
            ) from error
        for leaf in tree_flatten(batch)[0]:
            if not isinstance(leaf, LEAVES):
                raise DataError(
                    f"{self._data.label}: a batch holds a {type(leaf).__name__}; tensors, numbers and text do"
                )
        if self._check is not None:
            try:
                self._check(batch)
            except DataError as error:
                raise DataError(f"{self._data.label}: {error}") from error
        weight = self._count(batch) if self._count is not None else None
        counted = count if weight is None else weight
        return Batch(batch, torch.zeros(count, dtype=torch.int64), counted=counted)


def open_own(source: Own, split: str, collate: Own | None) -> OwnData | None:
    """Open a split of a user's data set; None if it has no "val". Raises ConfigError, OwnCodeError."""
    samples, label = source(split), f"{source.key} = {source.name!r}"
    if samples is None and split == "val":
        return None
    return adapted(samples, f"{label}, {split!r}", collate or default_collate, source.wrong)


def adapted(samples: Any, label: str, collate: Collate, wrong: Callable[[str], ConfigError]) -> OwnData:
    """Wrap a data set in its adapter; raises `wrong` for an object that is none, DataError if it is empty."""
    if problem := _no_data_set(samples):
        raise wrong(problem)
    by_index = hasattr(samples, "__getitem__") and not isinstance(samples, IterableDataset)
    if hasattr(samples, "__len__"):
        with explained(f"{label}: its len()"):
            length = len(samples)
        if length == 0:
            raise DataError(f"{label}: holds no samples")
    return (OwnData if by_index else Stream)(samples, label, collate)


def _no_data_set(samples: Any) -> str:
    """Return the error about an object that is given as a data set; empty if the object is one."""
    by_index = hasattr(samples, "__getitem__") and not isinstance(samples, IterableDataset)
    arrays = isinstance(samples, tuple) and all(
        isinstance(array, torch.Tensor | np.ndarray) for array in samples
    )
    columns = isinstance(samples, Mapping) and 0 not in samples
    named = ", ".join(map(repr, islice(samples, 4))) if columns else ""
    problems = {
        "": isinstance(samples, str | bytes) or not (by_index or isinstance(samples, Iterable)),
        ", which has batches; give its data set: batches and order are made here": isinstance(
            samples, DataLoader
        ),
        f" of {named}; give samples by number, of one split": columns,
        ", whose [] takes columns; give rows by number": hasattr(samples, "iloc"),
        " of arrays, not samples; give torch.utils.data.TensorDataset(*them)": arrays,
        ", which can be read once; give what makes it": isinstance(samples, Iterator),
        " with __getitem__ and without __len__": by_index and not hasattr(samples, "__len__"),
    }
    return next((f"gave a {type(samples).__name__}{what}" for what, wrong in problems.items() if wrong), "")


def open_records(settings: config.Data, description: Description, split: str, collate: Own | None) -> OwnData:
    """Open a split of tars with any keys, indexed by `prepare index --keys`; raises DataError."""
    samples = Records(folder_of(settings, split), description.keys, settings, training=split == "train")
    return adapted(samples, f"{settings.path}/{split}", collate or default_collate, ConfigError)


def is_table(root: Path) -> bool:
    """Return whether a path is a table: Parquet, JSON lines, or a folder from save_to_disk of datasets.

    A file of rows deep inside a folder of pictures does not make the folder a table.
    """
    if (root / DESCRIPTION).exists():
        return False
    if _kind(root) or any((root / mark).is_file() for mark in MARKS):
        return True
    shallow = pictures = deep = False
    for file in walked(root):
        has_rows = bool(_kind(file))
        shallow |= has_rows and len(file.relative_to(root).parts) <= AT_HAND
        deep |= has_rows
        pictures |= file.suffix.lower() in SUFFIXES
    return shallow or (deep and not pictures)


def table_files(root: Path) -> dict[str, list[Path]]:
    """Return the files of a table by split, from their folders or names; all under UNSPLIT without train.

    Raises DataError for a file whose names mean two splits.
    """
    if _kind(root):
        return {UNSPLIT: [root]}
    files = [file for file in walked(root) if _kind(file)]
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(file, root), []).append(file)
    return splits if "train" in splits or not files else {UNSPLIT: files}


def _split_of(file: Path, root: Path) -> str:
    """Return the split of a file: the outermost folder with exactly a split's name decides.

    Without one, all parts of the path that begin with a split's name decide; they must agree.
    """
    parts = file.relative_to(root).parts
    names = [name for some in SPLITS.values() for name in some]
    if exact := next((part for part in parts[:-1] if part in names), None):
        return exact
    said = {next((name for name in names if part.startswith(name)), UNSPLIT) for part in parts} - {UNSPLIT}
    if len(said) > 1:
        raise DataError(
            f"data.path = {str(root)!r}: {file.relative_to(root)} says {' and '.join(sorted(said))}: put it "
            f"into a folder that is called {', '.join(names[:-1])} or {names[-1]}, or rename it"
        )
    return next(iter(said), UNSPLIT)


def _kind(file: Path) -> str:
    """Return the kind of a table file, by the name that datasets uses; empty for another file."""
    name = file.name.lower()
    return next((kind for suffix, kind in TABLES.items() if name.endswith(suffix)), "")


def checked_files(root: Path) -> dict[str, list[Path]]:
    """Return `table_files`; raises DataError if some files would be left out, or read as the wrong split."""
    files = table_files(root)
    if UNSPLIT in files and len(files) > 1:
        names = ", ".join(str(file.relative_to(root)) for file in files[UNSPLIT][:4])
        raise DataError(
            f"data.path = {str(root)!r}: {names} beside files of train: begin their names, or those of their "
            "folders, with train, val or test, or move them away"
        )
    if len({_kind(file) for some in files.values() for file in some}) > 1:
        raise DataError(f"data.path = {str(root)!r}: has both Parquet and JSON lines; give one of them")
    others = (file for file in walked(root) if not _kind(file) and UNREAD.search(file.name)) if files else ()
    if other := next(iter(others), None):
        raise DataError(
            f"data.path = {str(root)!r}: {other.relative_to(root)} would not be read: write it as .parquet, "
            ".jsonl or .jsonl.gz, or move it away"
        )
    return files


def open_table(settings: config.Data, split: str, collate: Own | None) -> OwnData | None:
    """Open a split of a table: samples are dictionaries of the chosen columns; numbers become tensors.

    The "val" split is the first of validation, val and test. In a table without splits, data.held_out is its
    share; 0 gives None. Raises DataError or ConfigError.
    """
    root = Path(settings.path)
    splits = _loaded(root)
    rows = next((splits[name] for name in SPLITS[split] if name in splits), None)
    if rows is None and UNSPLIT in splits:
        kept = split_of(len(splits[UNSPLIT]), settings, training=split == "train")
        rows = splits[UNSPLIT].select(kept) if len(kept) else None
        if rows is None and split == "train":
            raise DataError(split_problem(len(splits[UNSPLIT]), settings, training=True))
    if rows is None:
        if split == "val":
            return None
        other = f"has no split 'train', but {', '.join(splits)}" if splits else "holds no rows"
        raise DataError(f"data.path = {str(root)!r}: {other}")
    for column in settings.columns:
        if column not in rows.column_names:
            raise ConfigError(
                f"data.columns: {column!r} is no column of {root}; it has {', '.join(rows.column_names)}"
            )
    chosen = rows.select_columns(list(settings.columns)) if settings.columns else rows
    if collate is None:
        _check_values(chosen, root)
    return adapted(chosen.with_format("torch"), f"{root}, {split!r}", collate or default_collate, ConfigError)


def _check_values(rows: Any, root: Path) -> None:
    """Raise DataError for a column with missing values, from which no batch can be made.

    Real numbers are allowed: a missing one becomes NaN, which a loss may leave out.
    """
    for name in rows.column_names:
        column = rows.data.column(name)
        if column.null_count and str(column.type) not in REAL:
            raise DataError(
                f"data.columns: {name!r} of {root} has {column.null_count} rows without a value; leave them "
                "out, or set data.collate = 'FILE.py:NAME'"
            )


def _with_rows(files: list[Path]) -> list[Path]:
    """Return the files that have rows: datasets cannot read a file without rows."""
    return [file for file in files if not _is_empty(file)]


def _is_empty(file: Path) -> bool:
    from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional

    if file.suffix != ".parquet":
        return file.is_file() and file.stat().st_size == 0
    try:
        return bool(parquet.read_metadata(file).num_rows == 0)
    except (OSError, ArrowException):  # the reader reports a damaged file
        return False


def _loaded(root: Path) -> dict[str, Any]:
    """Load the splits of a table, mapped into memory; Parquet and JSON go once through datasets' cache."""
    files = checked_files(root)
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"data.path = {str(root)!r}: tables need two more packages: pip install datasets 'pyarrow<26'"
        ) from error
    datasets.disable_progress_bars()
    try:
        if files:
            kind = _kind(next(iter(files.values()))[0])
            names = {split: [str(file) for file in _with_rows(some)] for split, some in files.items()}
            names = {split: some for split, some in names.items() if some}
            return dict(datasets.load_dataset(kind, data_files=names)) if names else {}
        loaded = datasets.load_from_disk(str(root))
    except Exception as error:  # the library passes on errors of the readers of its files
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise DataError(f"data.path = {str(root)!r}: cannot be read: {reason}") from error
    return dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {UNSPLIT: loaded}


def shape_of(sample: Any) -> str:
    """Describe a sample for users: its structure, with shapes of tensors and types of other values."""
    return str(
        tree_map(lambda leaf: list(leaf.shape) if hasattr(leaf, "shape") else type(leaf).__name__, sample)
    )


def _looked_into(samples: list[Any]) -> tuple[bytes, str]:
    """Return bytes that distinguish samples from others, and their shapes as text."""
    return b"".join(_content(sample) for sample in samples), ", ".join(map(shape_of, samples))


def _content(sample: Any) -> bytes:
    """Return bytes that distinguish a sample from others, the same in every process."""
    digest = hashlib.sha256()
    for leaf in tree_flatten(sample)[0]:
        try:
            digest.update(_bytes_of(leaf))
        except (
            pickle.PicklingError,
            TypeError,
            AttributeError,
            RuntimeError,
        ):  # an object of a user's class: its type is enough
            digest.update(type(leaf).__name__.encode())
    return digest.digest()


def _bytes_of(leaf: Any) -> bytes:
    if isinstance(leaf, torch.Tensor):
        plain = leaf.detach().cpu().to_dense().contiguous()
        return plain.flatten().view(torch.uint8).numpy().tobytes()  # numpy has no bfloat16
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:  # bytes of objects are addresses
        return leaf.tobytes()
    if isinstance(leaf, np.ndarray):
        leaf = leaf.tolist()
    if isinstance(leaf, set | frozenset):  # its order differs by process
        leaf = sorted(map(repr, leaf))
    return pickle.dumps(leaf, protocol=4)
