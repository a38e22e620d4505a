"""Random generators of a user's samples: those of torch, numpy and random, and those in the user's data.

All of them are seeded before a sample is read, so that a sample is always the same, in any process.
"""

import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from gpu_fleet.core.user_code import is_of_user

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
MOST_LOOKED_AT = 10_000  # objects that a search visits; 10 ms
_OF_NUMPY = np.random.mtrand._rand  # seeded by np.random.seed
_OF_RANDOM = random._inst  # seeded by random.seed
OF_PROCESS = (torch.default_generator, _OF_NUMPY, _OF_RANDOM)  # always seeded
SHARED = "shared"  # key, in the saved state of a rank, of what `states_of_generators` returns
CLOSED = (ModuleType, torch.Tensor, np.ndarray, str, bytes, int, float)  # these hold no user objects


def held_by(samples: Any) -> tuple[Generator, ...]:
    """Return the generators of a data set, of its transforms, and of the functions that it calls.

    The order is the same in every process. A generator that is created only when a sample is read is not
    included.
    """
    generators: list[Generator] = []
    seen: dict[int, Any] = {}  # keeps the objects alive, since Python reuses ids
    waiting = deque([samples])
    while waiting and len(seen) < MOST_LOOKED_AT:
        thing = waiting.popleft()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Generator):
            if not any(thing is shared for shared in OF_PROCESS) and not isinstance(
                thing, random.SystemRandom
            ):
                generators.append(thing)
        else:
            waiting.extend(_behind(thing))
    return tuple(generators)


def _behind(thing: Any) -> Sequence[Any]:
    """Return the objects to which an object refers, as far as they may be a user's."""
    if isinstance(thing, FunctionType):
        if not is_of_user(thing.__code__.co_filename):
            return ()
        named = [thing.__globals__[name] for name in _names(thing.__code__) if name in thing.__globals__]
        return [*named, thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
    if isinstance(thing, type):
        source = getattr(sys.modules.get(thing.__module__), "__file__", None)
        return [*vars(thing).values(), *thing.__bases__] if source and is_of_user(source) else ()
    if isinstance(thing, (*CLOSED, set, frozenset)):  # the order of a set differs by process
        return ()
    return gc.get_referents(thing)[:MOST_LOOKED_AT]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function, and the functions inside it, take from their module."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def seed_generators(chance: np.random.Generator, own: Sequence[Generator] = ()) -> None:
    """Seed the generators from which a user's samples draw; those of GPUs do not change."""
    seed = int(chance.integers(2**63))
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    for generator in own:  # each with its own number: two of one kind must not draw the same
        _seed(generator, int(chance.integers(2**63)))


def _seed(generator: Generator, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    else:
        generator.seed(seed)


def states_of_generators(own: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """Return the states of the shared generators and of `own`, of kinds that torch.load reads safely."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    version, words, gauss = random.getstate()
    return {
        "torch": [torch.get_rng_state(), *(generator.get_state() for generator in own)],
        "numpy": [str(kind), torch.tensor(np.asarray(keys, dtype=np.int64)), *rest],
        "random": [version, list(words), gauss],
    }


def restore_generators(saved: dict[str, Any], own: Sequence[torch.Generator] = ()) -> None:
    """Restore the states that `states_of_generators` has returned."""
    for generator, state in zip((torch.default_generator, *own), saved["torch"], strict=False):
        generator.set_state(state)
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, gauss = saved["random"]
    random.setstate((version, tuple(words), gauss))


@contextmanager
def kept_generators(own: Sequence[Generator] = ()) -> Iterator[None]:
    """Restore the generators after the block, since training draws its dropout from torch's generator."""
    shared = torch.get_rng_state(), np.random.get_state(), random.getstate()
    ways_back = [_way_back(generator) for generator in own]
    try:
        yield
    finally:
        torch.set_rng_state(shared[0])
        np.random.set_state(shared[1])
        random.setstate(shared[2])
        for go_back in ways_back:
            go_back()


def _way_back(generator: Generator) -> Callable[[], object]:
    """Return a function that restores the present state of a generator."""
    if isinstance(generator, torch.Generator):
        return partial(generator.set_state, generator.get_state())
    if isinstance(generator, np.random.Generator):
        return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return partial(generator.set_state, generator.get_state())
    return partial(generator.setstate, generator.getstate())
