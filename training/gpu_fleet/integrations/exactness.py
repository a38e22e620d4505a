"""Warnings of reasons why a resumed run would not end with the same bits, each given once."""

import logging
import sys
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from traceback import walk_stack
from types import FrameType, GeneratorType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from gpu_fleet.core.user_code import is_of_user
from gpu_fleet.core.world import World
from gpu_fleet.data.generators import SavedGenerator, held_by, is_own_generator, reached, state_of
from gpu_fleet.data.resumable import reads_another
from gpu_fleet.step.checks import AttributeCheck, BufferCheck, check_of_optimizer, look, numbers_of
from gpu_fleet.step.outline import bound_of_each, outlines
from gpu_fleet.step.state import of_ranks, restore_switches, switches

log = logging.getLogger(__name__)
MOST_FRAMES = 4  # a loop may call a helper that makes the steps
METHODS = ("state_dict", "load_state_dict")
AGREED_STEPS = 2  # nearly all attributes are checked in these, and an error of one rank ends all


class ExactnessCheck:
    """Check of what a loop changes, and of weights that should be equal on all ranks."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """Prepare the check of a run's objects, by name; of DistributedDataParallel, its inner model."""
        self._modules = {name: thing for name, thing in objects.items() if isinstance(thing, nn.Module)}
        self._layers, self._switches = self._modules, dict[str, bool]()
        self._objects, self._read = dict(objects), list[Any]()  # and the data that the loop reads
        self._loop: LoopWatch | None = None
        self._attributes: list[BufferCheck | AttributeCheck] = []
        for name, thing in objects.items():
            if isinstance(thing, nn.Module):
                self._attributes.append(BufferCheck(thing, f"Run({name}=...)", objects.values()))
            elif isinstance(thing, Optimizer):
                self._attributes.append(check_of_optimizer(thing, f"Run({name}=...)"))

    def reads(self, samples: Any, loader: Any = None) -> None:
        """Note a data set of the loop, and its DataLoader, if any."""
        self._read += [samples, loader]
        instead = "let a sample depend on its index and on random numbers alone"
        self._attributes.append(AttributeCheck(partial(numbers_of, samples), "samples", instead))
        if loader is not None:
            instead = "let its order depend on set_epoch and on a generator alone"
            of = partial(numbers_of, loader.sampler, Tensor, np.ndarray, list)
            self._attributes.append(AttributeCheck(of, type(loader.sampler).__name__, instead))

    def begin(self, frames: Iterable[FrameType], switched: Mapping[str, bool]) -> None:
        """Begin the loop, with the modes and frozen parameters that steps have `switched` so far."""
        self._sizes = [_size_of(thing) for thing in self._objects.values()]
        self._switches = switches(self._layers.values())
        restore_switches(self._layers.values(), switched)
        given = self._objects.values()
        wrapped = (thing.generator for thing in given if isinstance(thing, SavedGenerator))
        self._loop = LoopWatch(frames, [*given, *wrapped], [*self._read, *held_by(self._read)])

    def switched(self) -> dict[str, bool]:
        """Return the modes of layers, and parameters frozen or not, that are others than before the loop."""
        now = switches(self._layers.values()) if self._switches else {}
        return {name: value for name, value in now.items() if value != self._switches.get(name)}

    def check_save(self, where: World) -> None:
        """Look at everything again before a save; raises ConfigError for what could not be loaded again."""
        where.together(partial(look, self._attributes, says=where.leads, saving=True))
        self._check_loop(where)

    def _check_loop(self, where: World) -> None:
        if self._loop is not None and where.leads:
            self._loop.warn("Run(NAME=...)")

    def check(self, where: World, step: int, done: int) -> None:
        if done == 1 and where.leads and reads_another():
            log.warning(
                "not exact: the loop reads a DataLoader, and a resumed run starts its epoch again; "
                "run.batches_of(loader) resumes in the middle of it"
            )
        if done == 1:
            self._check_loop(where)
        before, self._sizes = self._sizes, [_size_of(thing) for thing in self._objects.values()]
        looked = partial(look, self._attributes, says=where.leads, saving=before != self._sizes)
        # ranks may read other data, and differ in what they check
        if done <= AGREED_STEPS:
            where.together(looked)
        else:
            looked()
        if self._modules and where.size > 1:
            mine = {name: outlines(module.parameters()) for name, module in self._modules.items()}
            for name in sorted(set(chain.from_iterable(of_ranks(mine, where)))):
                log.warning(
                    "event=ranks-differ step=%d help='Run(%s=...): the ranks hold different weights, and "
                    "those of rank 0 alone are saved; wrap it in DistributedDataParallel'",
                    step,
                    name,
                )
            self._modules = {}


def _size_of(thing: Any) -> int:
    """Return how many parts an object's state has, which no step may change: cheap enough for each step."""
    if isinstance(thing, nn.Module):
        return sum(len(part._parameters) + len(part._buffers) for part in thing.modules())
    return len(thing.param_groups) if isinstance(thing, Optimizer) else 0


def frames_of_loop() -> list[FrameType]:
    """Return the innermost frames of a user's code that are running; none without a file."""
    running = (frame for frame, _line in walk_stack(sys._getframe(1)))
    return list(islice((frame for frame in running if is_of_user(frame.f_code.co_filename)), MOST_FRAMES))


class LoopWatch:
    """Watch over the objects with a state that a loop uses, and that no checkpoint holds."""

    def __init__(self, frames: Iterable[FrameType], saved: Iterable[Any], spared: Iterable[Any]) -> None:
        """Note the states of objects that are neither `saved` nor `spared`."""
        given = list(saved)
        modules = (thing for thing in given if isinstance(thing, nn.Module))
        self._modules = {id(part) for module in modules for part in module.modules()}
        known = {id(thing) for thing in (*given, *spared)}
        self._watched: dict[str, Any] = {}
        for name, thing in chain.from_iterable(map(_states_of, frames)):
            if id(thing) not in known and _has_state(thing):
                known.add(id(thing))
                self._watched.setdefault(name, thing)
        self._most_bytes = 0  # of one tensor; known from the first look
        self._before = self._outlines()

    def warn(self, taker: str) -> None:
        names = [name for name, outline in self._outlines().items() if outline != self._before[name]]
        for name in names:
            del self._watched[name]
        if names:
            changed = ", ".join(names)
            log.warning(
                "not exact: the loop changes %s, which is in no checkpoint; give it to %s", changed, taker
            )

    def _outlines(self) -> dict[str, list[Any]]:
        """Return, for each object, values that change with its state; none if it cannot be asked."""
        states = {name: _state_of(thing, self._modules) for name, thing in self._watched.items()}
        parts = [part for state in states.values() for part in state if isinstance(part, Tensor)]
        self._most_bytes = self._most_bytes or bound_of_each(parts)
        outlined = iter(outlines(parts, self._most_bytes))
        return {
            name: [next(outlined) if isinstance(part, Tensor) else part for part in state]
            for name, state in states.items()
        }


def _state_of(thing: Any, saved: Container[int]) -> list[Any]:
    """Return tensors and texts that change with the state of an object, without the modules `saved`."""
    if is_own_generator(thing):
        leaves = [state_of(thing)]
    elif isinstance(thing, nn.Module):
        others = (part for part in thing.modules() if id(part) not in saved)
        tensors = ((part.parameters(recurse=False), part.buffers(recurse=False)) for part in others)
        leaves = [*chain.from_iterable(chain.from_iterable(tensors))]
    else:
        leaves = []
        with suppress(Exception):  # a user's object may raise anything
            leaves = tree_leaves(thing.state_dict())
    return [leaf if isinstance(leaf, Tensor) else _text_of(leaf) for leaf in leaves]


def _states_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the objects that the variables of a function, or a module, lead to, and their names."""
    used = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
    variables: Mapping[str, Any] = {**used, **frame.f_locals}
    if frame.f_locals is frame.f_globals:
        variables = used
    seen: dict[int, Any] = {}
    for name in sorted(variables, key=lambda name: not _has_state(variables[name])):
        for thing in reached(variables[name], _ends_search, seen):
            kind = type(thing).__name__
            yield f"{name} ({kind})" if thing is variables[name] else f"{kind} in {name}", thing


def _ends_search(thing: Any) -> bool:
    """Return whether an object has a state, or is of this package, which keeps its own."""
    if isinstance(thing, GeneratorType):
        return not is_of_user(thing.gi_code.co_filename)
    return _has_state(thing) or type(thing).__module__.startswith("gpu_fleet.")


def _has_state(thing: Any) -> bool:
    return is_own_generator(thing) or all(callable(getattr(type(thing), method, None)) for method in METHODS)


def _text_of(value: Any) -> str:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {zlib.crc32(value.tobytes())}"
    is_plain = isinstance(value, bool | int | float | complex | str | dict | tuple | np.generic)
    return str(value) if is_plain else ""
