"""Search for state of a user's loop that Run was not given, such as an average, a schedule or a generator."""

import logging
import sys
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from types import FrameType, GeneratorType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gpu_fleet.core.user_code import is_of_user
from gpu_fleet.data.generators import is_own_generator, reached, state_of
from gpu_fleet.step.outline import bound_of_each, outlines

MOST_FRAMES = 4  # a loop may call a helper that makes the steps
log = logging.getLogger(__name__)
METHODS = ("state_dict", "load_state_dict")


def frames_of_loop() -> list[FrameType]:
    """Return the innermost frames of a user's code that are running; none without a file."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < MOST_FRAMES:
        if is_of_user(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


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
    kind = type(thing)
    return is_own_generator(thing) or all(callable(getattr(kind, method, None)) for method in METHODS)


def _text_of(value: Any) -> str:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {zlib.crc32(value.tobytes())}"
    is_plain = isinstance(value, bool | int | float | complex | str | dict | tuple | np.generic)
    return str(value) if is_plain else ""
