"""Search for state of a user's loop that Run was not given, such as an average, a schedule or a generator."""

import logging
import math
import sys
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from types import FrameType, GeneratorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from gpu_fleet.core.user_code import is_of_user
from gpu_fleet.data.generators import is_own_generator, reached, state_of

MOST_FRAMES = 4  # a loop may call a helper that makes the steps
log = logging.getLogger(__name__)
# Of all states together: 0.3 s of a core at each save. Of more, each tensor is looked at in blocks.
MOST_BYTES, BLOCK_BYTES = 1 << 30, 1 << 18
HERE = "cpu"  # the device that need not be waited for
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
        """Note their states. `saved` are the objects of a run; `spared` have a state that is no concern."""
        given = list(saved)
        self._modules = {
            id(part) for module in given if isinstance(module, nn.Module) for part in module.modules()
        }
        known = {id(thing) for thing in (*given, *spared)}
        self._watched: dict[str, Any] = {}
        for name, thing in chain.from_iterable(map(_states_of, frames)):
            if id(thing) not in known and _has_state(thing):
                known.add(id(thing))
                self._watched.setdefault(name, thing)
        self._most_bytes = 0  # of one tensor; known from the first look
        self._before = self._outlines()

    def warn(self, taker: str) -> None:
        """Warn once of each object that has changed; `taker` is the code that would take it."""
        names = [name for name, outline in self._outlines().items() if outline != self._before[name]]
        for name in names:
            del self._watched[name]
        if names:
            log.warning(
                "not exact: the loop changes %s, which is in no checkpoint; give it to %s",
                ", ".join(names),
                taker,
            )

    def _outlines(self) -> dict[str, list[Any]]:
        """Return, for each object, values that change with its state; none if it cannot be asked."""
        states = {name: _state_of(thing, self._modules) for name, thing in self._watched.items()}
        parts = [part for state in states.values() for part in state if isinstance(part, Tensor)]
        if not self._most_bytes:
            share = MOST_BYTES // max(1, len(parts))
            together = sum(part.nbytes for part in parts)
            self._most_bytes = MOST_BYTES if together <= MOST_BYTES else max(BLOCK_BYTES, share)
        outlined = iter(_outlined(parts, self._most_bytes))
        return {
            name: [next(outlined) if isinstance(part, Tensor) else part for part in state]
            for name, state in states.items()
        }


def _state_of(thing: Any, saved: Container[int]) -> list[Any]:
    """Return tensors and texts that change with the state of an object, without modules `saved`, by id."""
    if is_own_generator(thing):
        leaves = [state_of(thing)]
    elif isinstance(thing, nn.Module):
        others = (part for part in thing.modules() if id(part) not in saved)
        leaves = [tensor for part in others for tensor in _own_tensors(part)]
    else:
        leaves = []
        with suppress(Exception):  # a user's object may raise anything
            leaves = tree_leaves(thing.state_dict())
    return [_plain(leaf) if isinstance(leaf, Tensor) else _text_of(leaf) for leaf in leaves]


def _plain(tensor: Tensor) -> Tensor | None:
    """Return a tensor with bytes of its own, or this rank's part of one; None for a sparse one, say."""
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
    if local.layout != torch.strided or local.is_meta or is_traceable_wrapper_subclass(local):
        return None
    return local.resolve_conj().resolve_neg()


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


def _own_tensors(module: nn.Module) -> list[Tensor]:
    """Return the tensors of a module, without those of its parts."""
    tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return [tensor for tensor in tensors if not nn.parameter.is_lazy(tensor)]


def _outlined(tensors: Iterable[Tensor], most_bytes: int) -> list[int]:
    """Return a checksum of each tensor; of those on one GPU, after one wait for it."""
    parts = [_part_of(tensor, most_bytes) for tensor in tensors]
    for device in {part.device for part in parts if part.device.type != HERE}:
        numbers = [number for number, part in enumerate(parts) if part.device == device]
        together = torch.cat([parts[number] for number in numbers]).cpu()
        pieces = torch.split(together, [len(parts[number]) for number in numbers])
        for number, piece in zip(numbers, pieces, strict=True):
            parts[number] = piece
    return [zlib.crc32(part.numpy().data) for part in parts]


def _part_of(tensor: Tensor, most_bytes: int) -> Tensor:
    """Return bytes (1-d, on its device) that change with a tensor.

    A tensor of more than `most_bytes` is looked at in blocks, evenly spaced; one on a GPU is summed there.
    """
    part = tensor if tensor.nbytes <= most_bytes else _blocks_of(tensor, most_bytes)
    if part.is_floating_point() and part.device.type != HERE:
        part = part.sum(dtype=torch.double)
    return part.reshape(-1).view(torch.uint8)


def _blocks_of(tensor: Tensor, most_bytes: int) -> Tensor:
    """Return a view of parts of a tensor, `most_bytes` together; of one that is not contiguous, of rows."""
    if not tensor.is_contiguous():
        longest = max(range(tensor.dim()), key=tensor.size)
        return tensor.transpose(0, longest)[:: math.ceil(tensor.nbytes / most_bytes)]
    flat, block = tensor.view(-1), BLOCK_BYTES // tensor.element_size()
    count = max(1, most_bytes // BLOCK_BYTES)
    return flat.unfold(0, block, max(block, (len(flat) - block) // max(1, count - 1)))


def _text_of(value: Any) -> str:
    return str(value) if isinstance(value, bool | int | float | complex | str | dict | tuple) else ""
