"""A user's own data set: anything with `__len__` and `__getitem__`, or an iterable; samples of any kind.

`data.collate` makes a batch of them: any nest of tensors, numbers and text.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import DataLoader, IterableDataset, default_collate

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, DataError, TrainingError, UserCodeError, a_kind
from gpu_fleet.core.user_code import Own, explained
from gpu_fleet.data.census import Census
from gpu_fleet.data.dataset import Description
from gpu_fleet.data.generators import held_by, kept_generators, seed_generators
from gpu_fleet.data.loader import Batch, CountOf
from gpu_fleet.data.order import SampleOrder, Slice
from gpu_fleet.data.shards import Records, folder_of

ENDLESS = 2**62  # number of samples of a stream without a length
LEAVES = (torch.Tensor, np.ndarray, int, float, str, bytes, bool, type(None))
UNPICKLED = (pickle.PicklingError, TypeError, AttributeError, RuntimeError)
Collate = Callable[[list[Any]], Any]


class OwnData:
    """One split of a user's data set, read by index."""

    parts = 0  # any number of processes may read it
    ordered = False  # read in the order of gpu_fleet.data.order
    looked_at = 16  # least number of samples to compare; they may be slow to make

    def __init__(self, samples: Any, label: str, collate: Collate) -> None:
        self._samples, self.label, self.collate = samples, label, collate
        self.census: Census = samples.census if isinstance(samples, Records) else Census()
        self.classes = tuple(str(name) for name in getattr(samples, "classes", ()))
        self.vocabulary = int(getattr(samples, "vocabulary", 0))
        self.generators = () if isinstance(samples, Records) else held_by(samples)
        self.of_user = not isinstance(samples, Records)  # user code may give each rank other samples

    def __len__(self) -> int:
        return len(self._samples)

    def name(self, index: int) -> str:
        return f"{self.label}, sample {index}"

    def sample(self, index: int, chance: np.random.Generator) -> Any:
        """Read sample `index`, of any kind; `chance` seeds its random numbers. Raises UserCodeError."""
        seed_generators(chance, self.generators)
        with explained(self.name(index)):
            return self._samples[index]

    def expect(self, indices: Sequence[int]) -> None:
        if isinstance(self._samples, Records):
            self._samples.expect(indices)

    def outline(self) -> bytes:
        """Return a digest of the index of records; empty for data of a user's code, which has no index."""
        return self._samples.outline() if isinstance(self._samples, Records) else b""

    def looked(self, first: int, last: int) -> list[tuple[bytes, str]]:
        """Return digest and shape of the samples `first` to `last` - 1, in a fixed random order."""
        places = SampleOrder(len(self), seed=0).slice(first, last - first).indices.tolist()
        with kept_generators(self.generators):
            samples = [self.sample(place, np.random.default_rng(place)) for place in places]
        return [(_content(sample), shape_of(sample)) for sample in samples]


class Stream(OwnData):
    """A user's iterable, read by each rank from its first sample on; a resume drops the samples before."""

    ordered = True
    looked_at = 2

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
            self._seed(self._next)  # also at the start of a pass: a resumed run may begin there
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

    def looked(self, first: int, last: int) -> list[tuple[bytes, str]]:
        """Return digest and shape of the samples `first` to `last` - 1, read from the start of the stream."""
        looks = []
        with kept_generators(self.generators), explained(self.label):
            self._seed(0)
            for position, sample in enumerate(islice(iter(self._samples), last), start=1):
                looks.append((_content(sample), shape_of(sample)))
                self._seed(position)
        return looks[first:]


class OwnReader:
    """Reader of whole batches of a user's data set; see data.loader.Reader."""

    def __init__(
        self,
        data: OwnData,
        seed: int,
        count: CountOf | None = None,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        """Prepare a reader; `count` gives the items of a batch, `check` raises DataError for a misfit."""
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
        except UserCodeError:
            raise
        except Exception as error:  # default_collate raises many kinds for users' samples
            text = str(error).partition("\n")[0]
            raise DataError(
                f"{self._data.label}: {count} samples cannot form a batch: {text}; the first is "
                f"{shape_of(samples[0])}, the last {shape_of(samples[-1])}; set data.collate = 'FILE.py:NAME'"
            ) from error
        for leaf in tree_flatten(batch)[0]:
            if not isinstance(leaf, LEAVES):
                raise DataError(
                    f"{self._data.label}: a batch holds {a_kind(leaf)}; allowed: tensors, numbers and text"
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
    """Open a split of a user's data set; None if it has no "val". Raises ConfigError, UserCodeError."""
    samples, label = source(split), f"{source.key} = {source.name!r}"
    if samples is None and split == "val":
        return None
    return adapted(samples, f"{label}, {split!r}", collate or default_collate, source.wrong)


def adapted(samples: Any, label: str, collate: Collate, wrong: Callable[[str], TrainingError]) -> OwnData:
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
    """Return the message about an object that is no data set; empty if it is one."""
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
    return next((f"gave {a_kind(samples)}{what}" for what, wrong in problems.items() if wrong), "")


def open_records(settings: config.Data, description: Description, split: str, collate: Own | None) -> OwnData:
    """Open a split of tars with any keys, indexed by `prepare index --keys`; raises DataError."""
    samples = Records(folder_of(settings, split), description.keys, settings, training=split == "train")
    return adapted(samples, f"{settings.path}/{split}", collate or default_collate, ConfigError)


def shape_of(sample: Any) -> str:
    """Describe a sample for users: its structure, with shapes of tensors and types of other values."""
    return str(
        tree_map(lambda leaf: list(leaf.shape) if hasattr(leaf, "shape") else type(leaf).__name__, sample)
    )


def _content(sample: Any) -> bytes:
    """Return bytes that distinguish a sample from others, the same in every process."""
    digest = hashlib.sha256()
    for leaf in tree_flatten(sample)[0]:
        try:
            digest.update(_bytes_of(leaf))
        except UNPICKLED:  # an object of a user's class: its type is enough
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
