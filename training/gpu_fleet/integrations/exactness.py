"""Warnings of reasons why a resumed run would not end with the same bits, each given once."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from gpu_fleet.core.world import World
from gpu_fleet.data.generators import SavedGenerator, held_by
from gpu_fleet.data.resumable import reads_another
from gpu_fleet.integrations.unsaved import LoopWatch
from gpu_fleet.step.buffers import AttributeCheck, BufferCheck, check_of_optimizer, numbers_of
from gpu_fleet.step.outline import outlines

log = logging.getLogger(__name__)
AGREED_STEPS = 2  # nearly all attributes are checked in these, and an error of one rank ends all


class ExactnessCheck:
    """Check of the batches that a step takes, and of weights that should be equal on all ranks."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """Prepare the check of a run's objects, by name; of DistributedDataParallel, its inner model."""
        self._modules = {name: thing for name, thing in objects.items() if isinstance(thing, nn.Module)}
        self._objects, self._read = dict(objects), list[Any]()  # and the data that the loop reads
        self._loop: LoopWatch | None = None
        self._attributes: list[BufferCheck | AttributeCheck] = []
        for name, thing in objects.items():
            if isinstance(thing, nn.Module):
                self._attributes.append(BufferCheck(thing, f"Run({name}=...)"))
            elif isinstance(thing, Optimizer):
                self._attributes.append(check_of_optimizer(thing, f"Run({name}=...)"))
        self._taken = self._taken_before = 0  # batches of the first data set: now, at the last step
        self._accumulation = 0  # batches per step by `Run.batches`; 0: unknown, or a warning was given

    def reads(self, samples: Any, loader: Any = None) -> None:
        """Note a data set of the loop, and its DataLoader, if any."""
        self._read += [samples, loader]
        instead = "let a sample depend on its index and on random numbers alone"
        self._attributes.append(AttributeCheck(partial(numbers_of, samples), "samples", instead))
        if loader is not None:
            instead = "let its order depend on set_epoch and on a generator alone"
            of = partial(numbers_of, loader.sampler, Tensor, np.ndarray, list)
            self._attributes.append(AttributeCheck(of, type(loader.sampler).__name__, instead))

    def begin(self, frames: Iterable[FrameType]) -> None:
        given = self._objects.values()
        wrapped = (thing.generator for thing in given if isinstance(thing, SavedGenerator))
        self._loop = LoopWatch(frames, [*given, *wrapped], [*self._read, *held_by(self._read)])

    def check_save(self, where: World) -> None:
        """Look at everything again before a save; raises ConfigError for what could not be loaded again."""
        where.together(partial(self._check_attributes, says=where.leads, saving=True))
        self._check_loop(where)

    def _check_loop(self, where: World) -> None:
        if self._loop is not None and where.leads:
            self._loop.warn("Run(NAME=...)")

    def counted(self, read: Iterator[Any], accumulation: int) -> Iterator[Any]:
        """Return the batches of the first data set, counted: a step takes `accumulation` of them."""

        def count() -> Iterator[Any]:
            for batch in read:
                self._taken += 1
                yield batch

        self._accumulation = accumulation
        return count()

    def check(self, where: World, step: int, done: int) -> None:
        if done == 1 and where.leads and reads_another():
            log.warning(
                "not exact: the loop reads a DataLoader, and a resumed run starts its epoch again; "
                "run.batches_of(loader) resumes in the middle of it"
            )
        if done == 1:
            self._check_loop(where)
        # ranks may read other data, and differ in what they check
        if done <= AGREED_STEPS:
            where.together(partial(self._check_attributes, says=where.leads))
        else:
            self._check_attributes(says=where.leads)
        taken, self._taken_before = self._taken - self._taken_before, self._taken
        if where.leads and 0 < self._accumulation < taken and done > 1:  # one may read ahead
            log.warning(
                "not exact: step %d took %d batches, but run.batches(accumulation=%d) allows %d: a resumed "
                "run reads some again; set accumulation to the batches of a step",
                step,
                taken,
                self._accumulation,
                self._accumulation,
            )
            self._accumulation = 0
        if self._modules and where.size > 1:
            for name in self._differ(where):
                log.warning(
                    "event=ranks-differ step=%d help='Run(%s=...): the ranks hold different weights, and "
                    "those of rank 0 alone are saved; wrap it in DistributedDataParallel'",
                    step,
                    name,
                )
            self._modules = {}

    def _check_attributes(self, *, says: bool, saving: bool = False) -> None:
        for check in self._attributes:
            if saving or not check.is_done:
                check.passed(says=says)

    def _differ(self, where: World) -> list[str]:
        """Return, on rank 0, the modules whose weights differ between ranks."""
        mine = {name: outlines(module.parameters()) for name, module in self._modules.items()}
        first, *others = where.gather(mine)
        differ = [name for name in mine if any(other[name] != first[name] for other in others)]
        return differ if where.leads else []
