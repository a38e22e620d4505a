"""Users' DataLoaders that resume in the middle of an epoch, with the batches of an undisturbed run."""

import gc
import hashlib
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.data.generators import (
    Generator,
    SavedGenerator,
    held_by,
    kept_generators,
    restore_generators,
    seed_generators,
    states_of_generators,
)

NOT_SET = (
    "samples draw random numbers, and a resumed run draws others: they are read from a stream, or by an "
    "unknown kind of loader; use samples by index, and with Lightning a ResumableLoader"
)
OURS = "gpu_fleet."  # prefix of the modules' names
# Arguments of a DataLoader, except those about its batches.
KEPT = (
    *("dataset", "collate_fn", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory"),
    *("timeout", "worker_init_fn", "multiprocessing_context", "generator"),
)
LOOKED_AT = 16  # samples
log = logging.getLogger(__name__)
FROM_SAMPLES, FROM_COLLATE = 0, 1  # so that a sample and its batch draw different numbers


class SeededReads:
    """Data set and collate function whose random numbers follow from index and a key, such as the epoch."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any]) -> None:
        self.dataset, self._collate = dataset, collate
        self._generators = held_by((dataset, collate))
        # in shared memory: reader processes may live longer than an epoch
        self._key = torch.zeros(2, dtype=torch.int64)
        self._key.share_memory_()  # type: ignore[no-untyped-call]  # torch has no hint for it
        self._newest = 0  # index of the last sample that this process has read

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while this is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def begin(self, seed: int, epoch: int) -> None:
        self._key[0], self._key[1] = seed % 2**63, epoch

    def __getitem__(self, index: Any) -> Any:
        with kept_generators(self._generators):
            return self._read(index)

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        with kept_generators(self._generators):
            if at_once := getattr(self.dataset, "__getitems__", None):
                self._seed(FROM_SAMPLES, indices[0])
                return at_once(indices)
            return [self._read(index) for index in indices]

    def _read(self, index: Any) -> Any:
        self._seed(FROM_SAMPLES, index)
        return self.dataset[index]

    def collate(self, samples: Any) -> Any:
        with kept_generators(self._generators):
            self._seed(FROM_COLLATE, self._newest)
            return self._collate(samples)

    def _seed(self, what: int, index: Any) -> None:
        self._newest = index
        number = index if isinstance(index, int) else _number(repr(index).encode())
        bits = np.random.Philox(key=self._key.numpy().view(np.uint64), counter=[0, 0, what, number % 2**63])
        seed_generators(np.random.Generator(bits), self._generators)


def _number(text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


def seeded(loader: Any) -> SeededReads | None:
    """Seed the samples of a DataLoader from now on. Return its data set; None for a stream or other kinds."""
    loader = getattr(loader, "base_dataloader", loader)  # inside a loader of Accelerate
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if not isinstance(loader.dataset, SeededReads):
        reads = SeededReads(loader.dataset, loader.collate_fn)
        vars(loader)["dataset"] = reads  # a DataLoader refuses it otherwise
        loader.collate_fn = reads.collate
    return loader.dataset  # type: ignore[return-value]  # see above


def draws(samples: Any) -> bool:
    """Return whether reading the first samples draws from the generators, which are restored."""
    generators = held_by(samples)
    with kept_generators(generators):
        before = _bytes_of(states_of_generators(generators))
        if isinstance(samples, IterableDataset):
            list(islice(iter(samples), LOOKED_AT))
        elif hasattr(samples, "__getitem__") and hasattr(samples, "__len__"):
            with suppress(LookupError, TypeError):  # a sampler may know other indices
                [samples[place] for place in range(min(len(samples), LOOKED_AT))]
        return before != _bytes_of(states_of_generators(generators))


def _bytes_of(*states: Any) -> bytes:
    leaves = tree_leaves(states)
    return b"".join(
        leaf.numpy().tobytes() if isinstance(leaf, torch.Tensor) else str(leaf).encode() for leaf in leaves
    )


class ResumableLoader(DataLoader[Any]):
    """DataLoader that counts its batches, and resumes an epoch in its order."""

    _done = _begin = 0
    again = False  # an earlier process has drawn the order of this epoch; so it is if batches of it are done
    _rest: Iterator[Any] = iter(())
    begun_with: dict[str, Any] | None = None  # generators at the start of this epoch, for FleetCallback

    @property
    def _index_sampler(self) -> Any:  # of torch: the batches, or samples, that are to be read
        return _Rest(self, super()._index_sampler)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # an iterator does, torch's hint is narrower
        self._done, self._begin = self._begin, 0
        read = self._read()
        if isinstance(self.dataset, IterableDataset):
            read = islice(read, self._done, None)
        for batch in read:
            self._done += 1
            yield batch

    def _read(self) -> Iterator[Any]:
        """Read the rest of an epoch; a stream is read from its start."""
        own = self.generators_of_order()
        now, again = states_of_generators(), self._done or self.again
        if again and self.begun_with is not None:
            restore_generators(self.begun_with, own)
        self.begun_with = states_of_generators(own)
        if reads := seeded(self):
            # of torch's generator and those of the order: code may draw from others between two epochs
            reads.begin(_number(_bytes_of(self.begun_with["own"], self.begun_with["torch"])), 0)
            self._rest = islice(super()._index_sampler, self._done, None)
            with suppress(TypeError):  # an order without an end
                len(self)
                self._rest = iter(list(self._rest))  # here all of it is drawn
        else:
            self._rest = iter(super()._index_sampler)
        drawn = states_of_generators(own)
        read = super().__iter__()  # it draws a seed, but with persistent_workers only in the first epoch
        restore_generators(drawn, own)
        if again:  # in an undisturbed run the order was drawn long ago
            restore_generators(now)
        return read

    def generators_of_order(self) -> tuple[Generator, ...]:
        """Return the generators from which the order of an epoch is drawn."""
        with_order = (self.generator, self.sampler, self.batch_sampler)
        samples = held_by(self.dataset)
        return tuple(thing for thing in held_by(with_order) if not any(thing is other for other in samples))

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> "ResumableLoader":
        chosen = {name: getattr(loader, name) for name in KEPT}
        if loader.batch_sampler is None:
            chosen |= {"batch_size": None, "sampler": loader.sampler}
        else:
            chosen["batch_sampler"] = loader.batch_sampler
        return cls(**chosen)

    def state_dict(self) -> dict[str, int]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration begin after the batches in `state`."""
        whole = isinstance(self.dataset, IterableDataset) or state["done"] < len(self)
        self._begin = state["done"] if whole else 0


READ, LOADERS = "read", "loaders"  # names of the readers' places in a checkpoint


class Taken:
    """Count of what the steps of a loop take from a reader: a resumed run goes on after it."""

    def __init__(self, a_step: int, a_batch: int, step: int, saved: Mapping[str, Any]) -> None:
        """Go on from a `saved` state; a batch counts `a_batch`, and a step should take `a_step`."""
        self.first: int = saved.get("taken", step * a_step)
        self._a_step, self._a_batch, self._thread = a_step, a_batch, get_ident()
        self._now = self._steps = self._all = 0
        self._at_first: int | None = None  # by the first step of this process; it may fill a prefetcher
        self._later = set[int](saved.get("later", ()))  # what other steps take
        self._elsewhere = self._warned = False  # another thread reads, at a pace of its own

    def counted(self, read: Iterator[Any]) -> Iterator[Any]:
        for batch in read:
            self._now += self._a_batch
            self._elsewhere |= get_ident() != self._thread
            yield batch

    def begin(self) -> None:
        """Begin the loop: each start takes again what was taken before."""
        self._now = 0

    def passed(self) -> None:
        """Note the end of a step."""
        self._steps, self._all = self._steps + 1, self._all + self._now
        if self._at_first is None:
            self._at_first = self._now
        else:
            self._later.add(self._now)
        self._now = 0

    @property
    def count(self) -> int:
        """Return what whole steps have used: less than was taken if the first step has read ahead."""
        steady = self._a_step if self._elsewhere or not self._later else min(self._later)
        is_steady = self._elsewhere or (not [*self._later][1:] and 0 < steady < (self._at_first or 0))
        return self._steps * steady if is_steady else self._all

    def warn(self) -> None:
        """Warn once, before a save, if it is unknown what was read ahead."""
        uneven = self._elsewhere or len(self._later) != 1
        most = max(self._later if self._elsewhere else (), default=self._at_first or 0)
        if uneven and most > self._a_step and not self._warned:
            self._warned = True
            log.warning(
                "not exact: a step took %d batches, and it is unknown which of them it read ahead: a resumed "
                "run may read some again, or leave some out; read ahead before run.steps alone, and set "
                "accumulation to the batches of a step",
                most // self._a_batch,
            )

    def state(self) -> dict[str, Any]:
        """Return the state from which a resumed run reads on after the present step."""
        return {"taken": self.first + self.count, "later": sorted(self._later)}


class Passes(Taken):
    """Endless passes over a DataLoader in the loop of `Run`, from a step on."""

    def __init__(self, loader: Any, accumulation: int, step: int, saved: Mapping[str, Any]) -> None:
        """Prepare the passes; a step takes `accumulation` batches. Raises ConfigError for other loaders."""
        if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
            raise ConfigError(
                f"run.batches_of: takes a DataLoader of torch that reads samples by index, not a "
                f"{type(loader).__name__}{' of a stream' * isinstance(loader, DataLoader)}; give "
                "run.batches the data set"
            )
        super().__init__(accumulation, 1, step, saved)
        self._loader = ResumableLoader.of(loader)
        self._begun: dict[int, tuple[int, Any]] = {}  # epoch -> batches before it, generators at its start
        self._place = {name: saved[name] for name in ("epoch", "done", "begun") if name in saved}
        if not self._place:  # of a new run, or saved by 0.2.0
            epoch, done = divmod(step * accumulation, len(loader)) if step else (0, 0)
            begun = [saved["begun_with"]] if "begun_with" in saved else []
            if begun and not done:  # no order to draw again: the next epoch draws its own
                for generator, state in zip(
                    self._loader.generators_of_order(), begun[0]["own"], strict=False
                ):
                    SavedGenerator(generator).load_state_dict(state)
            self._place = {"epoch": epoch, "done": done, "begun": begun if done else []}

    def passed(self) -> None:
        super().passed()
        before = [epoch for epoch, (first, _) in self._begun.items() if first <= self.count]
        for epoch in before[:-1]:
            del self._begun[epoch]

    def state(self) -> dict[str, Any]:
        if self._begun:
            epoch, (first, _) = next(iter(self._begun.items()))
            begun = [generators for _, generators in self._begun.values()]
            return {**super().state(), "epoch": epoch, "done": self.count - first, "begun": begun}
        return super().state() | self._place

    def read(self) -> Iterator[Any]:
        """Yield the batches without end."""
        epoch, done, begun = self._place["epoch"], self._place["done"], [*self._place["begun"]]
        self._loader._begin, number = done, -done
        while True:
            parts: tuple[Any, ...] = (self._loader.sampler, self._loader.batch_sampler, self._loader.dataset)
            for part in parts:
                if hasattr(part, "set_epoch"):
                    part.set_epoch(epoch)
            self._loader.again, self._loader.begun_with = bool(begun), begun.pop(0) if begun else None
            first, number = number, max(number, 0)
            for batch in self._loader:
                self._begun[epoch] = first, self._loader.begun_with
                number += 1
                yield batch
            epoch += 1


class Readers:
    """Readers of a loop's data, those of `run.batches` and of `run.batches_of`, each kind in its order."""

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}  # their places in the checkpoint, of this rank
        self._of: dict[str, list[Any]] = {READ: [], LOADERS: []}
        self._begun = self._stepped = False

    def next(self, kind: str) -> dict[str, Any]:
        """Return the saved place of the next reader of a kind; empty if there is none."""
        number = len(self._of[kind])
        return {} if self._is_late(kind) else dict(*self.saved.get(kind, [])[number : number + 1])

    def _is_late(self, kind: str) -> bool:
        """Return whether what is opened now may read held-out data in some steps only."""
        return self._begun and (self._stepped or kind == READ)

    def passes(self, loader: Any, accumulation: int, step: int) -> tuple[Passes, bool]:
        """Return the reader of a user's loader, and whether the checkpoint has its place."""
        saved = self.next(LOADERS)
        at = saved["epoch"] * len(loader) + saved["done"] if "epoch" in saved else None
        if self._begun and at != step * accumulation:
            saved = {}  # of one that was opened anew at some steps, and is again
        passes = Passes(loader, accumulation, step, saved)
        self.note(LOADERS, passes)
        return passes, bool(saved)

    def note(self, kind: str, reader: Any) -> None:
        if not self._is_late(kind):
            self._of[kind].append(reader)

    def begin(self) -> None:
        self._begun = True
        for reader in chain(*self._of.values()):
            reader.begin()

    def passed(self) -> None:
        self._stepped = True
        for reader in chain(*self._of.values()):
            reader.passed()

    def warn(self, *, says: bool) -> None:
        for reader in chain(*self._of.values()) if says else ():
            reader.warn()

    def places(self) -> dict[str, list[dict[str, Any]]]:
        return {kind: [reader.state() for reader in readers] for kind, readers in self._of.items()}


def reads_another() -> bool:
    """Return whether this process reads a DataLoader that no run can resume."""
    return any(
        issubclass(type(thing), _BaseDataLoaderIter) and not type(thing._dataset).__module__.startswith(OURS)
        for thing in gc.get_objects()
    )


class _Rest:
    """Order of a loader; iteration gives only the rest of the epoch.

    It holds no reference back: the garbage collector would end the queues of readers first, and wait 5 s.
    """

    def __init__(self, loader: ResumableLoader, order: Any) -> None:
        self._loader, self._order = weakref.proxy(loader), order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        rest: Iterator[Any] = self._loader._rest
        return rest
