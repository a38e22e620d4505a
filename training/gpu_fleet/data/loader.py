"""Batches in the order of gpu_fleet.data.order, read ahead and moved to the device."""

import logging
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from gpu_fleet.core import config
from gpu_fleet.core.errors import CorruptLimitError, DataError, PassingCodeError, UserCodeError
from gpu_fleet.core.world import World
from gpu_fleet.data.dataset import CorruptSampleError, Dataset
from gpu_fleet.data.order import SampleOrder, Slice

IGNORED = -100  # a target that counts in no loss and no metric: torch's ignore_index
MAPPED = ("text", "tokens")  # kinds of data that are read through a memory map
READER_ENDED = re.compile(r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)")
BLOCK = 4096  # positions per call for their order: 0.3 ms, while a few alone take 0.1 ms
# Returns the number of items of a batch over which its loss is the mean; None means its samples.
CountOf = Callable[[Any], int | None]
log = logging.getLogger(__name__)
_reading = set[_MultiProcessingDataLoaderIter]()  # iterators whose reader processes run


@dataclass(frozen=True)
class Batch:
    # images (batch, 3, height, width) uint8; tokens (batch, sequence) int64; any nest for a user's own data
    inputs: Any
    targets: Tensor  # classes (batch,) or tokens (batch, sequence), int64; IGNORED where there is none
    corrupt: Mapping[str, str] = field(default_factory=dict)  # samples that cannot be read -> their defects
    counted: int = 0  # targets that are not IGNORED: the weight of the batch in the loss of its step

    def to(self, device: torch.device) -> "Batch":
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        inputs = tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, self.inputs)
        return replace(self, inputs=inputs, targets=change(self.targets))

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in tree_leaves((self.inputs, self.targets)) if isinstance(leaf, Tensor)]

    def paired(self, count: CountOf) -> "Batch":
        """Return the batch with the pair of inputs and targets as input, for a user's loss or metric."""
        pair, samples = (self.inputs, self.targets), len(self.targets)
        counted = count(pair)
        weight = samples if counted is None else counted
        return replace(self, inputs=pair, targets=self.targets.new_zeros(samples), counted=weight)


@dataclass(frozen=True)
class RankShare:
    """Share of every step's samples that this rank reads."""

    rank: int
    world: int
    batch_size: int  # samples per step, over all ranks
    accumulation: int

    @property
    def micro_batch(self) -> int:
        return self.batch_size // (self.accumulation * self.world)


class Reader:
    """Reader of whole batches; reader processes get a pickled copy, so it holds nothing open."""

    def __init__(
        self, dataset: Dataset, seed: int, count: CountOf | None = None, corrupt_limit: int = 0
    ) -> None:
        """Prepare a reader; with `count` its batches have the form for a user's loss or metric."""
        self._dataset, self._count, self._limit = dataset, count, corrupt_limit
        self._bits = np.random.Philox(key=seed)
        self._chance = np.random.Generator(self._bits)
        self._fresh: Any = self._bits.state  # before the first draw

    def chance(self, epoch: int, index: int) -> np.random.Generator:
        """Return the generator of a sample, the same wherever read; a reset takes 1 us, a new one 13."""
        self._fresh["state"]["counter"][:] = 0, 0, epoch, index
        self._bits.state = self._fresh
        return self._chance

    def __getitem__(self, part: Slice) -> Batch:
        """Read the samples of a slice, in order; a good sample without target replaces a corrupt one."""
        batch = self._read(part)
        return batch if self._count is None else batch.paired(self._count)

    def _read(self, part: Slice) -> Batch:
        indices = part.indices.tolist()
        if (stacked := self._dataset.stacked(indices)) is not None:
            inputs, targets = stacked
            return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), counted=targets.size)
        corrupt: dict[str, str] = {}
        self._dataset.expect(indices)
        places = zip(part.epochs.tolist(), indices, strict=True)
        samples = [self._sample(epoch, index, corrupt) for epoch, index in places]
        good = next((sample for sample in samples if sample is not None), None)
        epoch, index = int(part.epochs[-1]), indices[-1]
        while good is None:  # the first good sample after the last one, whenever this batch is read
            if len(corrupt) > self._limit or len(corrupt) >= len(self._dataset):
                first = ": ".join(next(iter(corrupt.items())))
                raise DataError(
                    f"a batch of {len(samples)} met only corrupt samples, {len(corrupt)} of them, and "
                    f"data.corrupt_limit allows {self._limit}; first: {first}"
                )
            index = (index + 1) % len(self._dataset)
            self._dataset.expect([index])
            good = self._sample(epoch, index, corrupt)
        return self._stack(samples, good, corrupt)

    def _sample(self, epoch: int, index: int, corrupt: dict[str, str]) -> tuple[Any, Any] | None:
        """Read a sample; note a corrupt one in `corrupt`, and return None."""
        try:
            return self._dataset.sample(index, self.chance(epoch, index))
        except CorruptSampleError as error:
            corrupt[self._dataset.name(index)] = str(error)
            return None

    def _stack(
        self, samples: list[tuple[Any, Any] | None], good: tuple[Any, Any], corrupt: dict[str, str]
    ) -> Batch:
        filler = (good[0], np.full_like(good[1], IGNORED))
        inputs, targets = zip(*(filler if sample is None else sample for sample in samples), strict=True)
        shapes = {array.shape for array in inputs}
        if len(shapes) > 1:
            raise DataError(f"samples of one batch differ in shape: {sorted(shapes)}; set data.image_size")
        stacked = np.stack(targets)
        counted = int(np.count_nonzero(stacked != IGNORED))
        return Batch(torch.from_numpy(np.stack(inputs)), torch.from_numpy(stacked), corrupt, counted)


def training_slices(order: SampleOrder, share: RankShare, position: int) -> Iterator[Slice]:
    """Yield the micro-batches of a rank from `position` (samples consumed by all ranks) on, without end."""
    width = share.micro_batch
    # each epoch has its own order, so a block is at most about one epoch, also for a small data set
    steps = max(1, min(BLOCK // (width * share.accumulation), order.size // share.batch_size))
    # a step takes the same samples for any number of ranks, which only decides how they divide them
    micros = [(micro * share.world + share.rank) * width for micro in range(share.accumulation)]
    firsts = (np.arange(steps)[:, None] * share.batch_size + np.array(micros)).reshape(-1, 1)
    within = (firsts + np.arange(width)).astype(np.uint64)  # (micro-batches, width), from `position` on
    while True:
        block = order.at((within + np.uint64(position)).ravel())
        for start in range(0, within.size, width):
            yield Slice(block.epochs[start : start + width], block.indices[start : start + width])
        position += steps * share.batch_size


def evaluation_slices(size: int, share: RankShare) -> Iterator[tuple[Slice, int]]:
    """Yield equal micro-batches that cover [0, size) once over all ranks, and how many samples count."""
    order = SampleOrder(size, seed=0, shuffle=False)
    width = share.micro_batch
    for start in range(0, size, width * share.world):
        mine = start + share.rank * width
        yield order.slice(mine, width), max(0, min(width, size - mine))


def reader_processes(kind: str, cores: int, ranks: int) -> int:
    """Return the readers of a rank by default: its cores less one; 0 where a sample is a mere copy."""
    return 0 if kind in MAPPED else max(0, cores // ranks - 1)


class ReadsBatches(Protocol):
    """Reader of batches, also of a user's own data."""

    def __getitem__(self, part: Slice) -> Batch: ...


def batches(
    reader: ReadsBatches, slices: Iterator[Slice], settings: config.Data, pinned: bool
) -> Iterator[Batch]:
    """Read the slices in order, ahead of time if there are reader processes."""
    loader = _loader(reader, slices, settings, pinned) if settings.workers or pinned else None
    # without readers or pinning, no DataLoader: it would add 40 us per batch
    return _read(loader if loader is not None else map(reader.__getitem__, slices))


def _loader(
    reader: ReadsBatches, slices: Iterator[Slice], settings: config.Data, pinned: bool
) -> DataLoader[Batch]:
    workers: dict[str, Any] = {}
    if settings.workers:
        workers = {
            "prefetch_factor": settings.prefetch,
            # out of the process group: a terminal does not signal readers, which end after their parent
            "worker_init_fn": lambda _: os.setsid(),
            "multiprocessing_context": "fork",  # fast; other start methods import torch again, for seconds
        }
    return DataLoader(
        reader,  # type: ignore[arg-type]  # DataLoader takes anything with __getitem__, its hints say Dataset
        batch_size=None,
        sampler=slices,
        generator=torch.Generator(),  # else each new loader draws from the generator of dropout
        num_workers=settings.workers or 0,
        pin_memory=pinned,
        **workers,
    )


def _read(loader: Iterable[Batch]) -> Iterator[Batch]:
    read = iter(loader)
    if isinstance(read, _MultiProcessingDataLoaderIter):
        _reading.add(read)
    try:
        yield from read
    except (DataError, UserCodeError) as error:  # torch adds the traceback of a reader process to its text
        kind = type(error)
        raise kind(str(error).strip().rpartition(f"{kind.__name__}: ")[2]) from error
    finally:
        if isinstance(read, _MultiProcessingDataLoaderIter):
            _end(read)


def reader_ended(error: BaseException) -> PassingCodeError | None:
    """Return the error about a killed reader process, wherever torch raises it; None for another error."""
    text = str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    broken = isinstance(error, OSError | EOFError) and any(frame.name == "_try_get_data" for frame in frames)
    if not broken and not (isinstance(error, RuntimeError) and READER_ENDED.search(text)):
        return None
    return PassingCodeError(
        f"a reader process of the data has ended: {text.splitlines()[0]}; if the memory of the instance "
        "or /dev/shm is full, lower data.workers (reader processes) or data.prefetch"
    )


def explain_ended_readers() -> None:
    """Report a killed reader process in one message, also if the loop of a library passes the error on."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (ended := reader_ended(error)) is not None:
            print(f"error: {ended}", file=sys.stderr)  # noqa: T201 - not a click command
        else:
            before(kind, error, trace)

    sys.excepthook = hook


def end_readers() -> None:
    """End the reader processes: the garbage collector ends queues first, and waits 5 s for each."""
    for read in [*_reading]:
        _end(read)


def _end(read: _MultiProcessingDataLoaderIter) -> None:
    _reading.discard(read)
    read._shutdown_workers()  # torch calls it when the iterator is deleted; there is no other way


def to_device(batches: Iterator[Batch], device: torch.device, ahead: int) -> Iterator[Batch]:
    """Return the batches on `device`; a separate stream copies up to `ahead` of them early."""
    return _copied_ahead(batches, device, ahead) if device.type == "cuda" else batches


def _copied_ahead(batches: Iterator[Batch], device: torch.device, ahead: int) -> Iterator[Batch]:
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no hints here
    waiting: deque[tuple[Batch, torch.cuda.Event]] = deque()
    for batch in batches:
        with torch.cuda.stream(side):
            waiting.append((batch.to(device), side.record_event()))
        if len(waiting) > ahead:
            yield _received(*waiting.popleft())
    while waiting:
        yield _received(*waiting.popleft())


def _received(batch: Batch, copied: torch.cuda.Event) -> Batch:
    stream = torch.cuda.current_stream()
    stream.wait_event(copied)
    for tensor in batch.tensors:
        tensor.record_stream(stream)  # else the side stream may reuse the memory too early
    return batch


class CorruptionCounter:
    """Count of the distinct corrupt samples that all ranks met; it ends soon above the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, str] = {}
        self.unshared: dict[str, str] = {}  # those that the other ranks do not know yet

    def add(self, corrupt: Mapping[str, str]) -> None:
        """Count the samples that are new, and log each of them once."""
        for name, defect in corrupt.items():
            if name not in self._known and len(self._known) <= self._limit:
                self._known[name] = self.unshared[name] = defect
                sample = f"{name}: {defect}"
                log.warning(
                    "event=corrupt-sample count=%d limit=%d sample=%r", len(self._known), self._limit, sample
                )

    def check(self, where: World) -> None:
        """Raise CorruptLimitError on all ranks if they met more corrupt samples than allowed."""
        for samples in where.gather(self.unshared):
            self._known |= samples
        self.unshared = {}
        if len(self._known) > self._limit:
            where.together(self._refuse)

    def _refuse(self) -> None:
        last = ": ".join([*self._known.items()][-1])
        raise CorruptLimitError(
            f"at least {len(self._known)} corrupt samples, data.corrupt_limit allows {self._limit}; "
            f"last: {last}"
        )
