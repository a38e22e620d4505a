"""Random generators of a user's samples, which are seeded before each one: the same in any process."""

import gc
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import numpy as np
import torch

from gpu_fleet.core.user_code import is_class_of_user, is_of_user

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
MOST_LOOKED_AT = 10_000  # objects that a search visits; 10 ms
_OF_NUMPY = np.random.mtrand._rand  # seeded by np.random.seed
_OF_RANDOM = random._inst  # seeded by random.seed
OF_PROCESS = (torch.default_generator, _OF_NUMPY, _OF_RANDOM)  # always seeded
SHARED = "shared"  # key, in the saved state of a rank, of what `states_of_generators` returns
CLOSED = (ModuleType, torch.Tensor, np.ndarray, str, bytes, int, float)  # these hold no user objects


def held_by(samples: Any) -> tuple[Generator, ...]:
    """Return the generators of a data set, its transforms and the functions it calls, in a fixed order."""
    return tuple(reached(samples, is_own_generator))


def is_generator(thing: Any) -> bool:
    """Return whether an object is a generator of random numbers that has a state."""
    return isinstance(thing, Generator) and not isinstance(thing, random.SystemRandom)


def is_own_generator(thing: Any) -> bool:
    """Return whether an object is a generator, and none of those that all code of the process shares."""
    return is_generator(thing) and not any(thing is shared for shared in OF_PROCESS)


def reached(root: Any, is_wanted: Callable[[Any], bool], seen: dict[int, Any] | None = None) -> Iterator[Any]:
    """Yield the wanted objects in an object, also by functions; `seen` has those of earlier searches."""
    seen = {} if seen is None else seen  # keeps the objects alive, since Python reuses ids
    waiting = deque([root])
    while waiting and len(seen) < MOST_LOOKED_AT:
        thing = waiting.popleft()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if is_wanted(thing):
            yield thing
        else:
            waiting.extend(_behind(thing))


class SavedGenerator:
    """A generator with the two methods by which `Run` saves and restores it."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as text unless it is a tensor."""
        state = state_of(self.generator)
        is_plain = isinstance(state, torch.Tensor)
        return {"state": state if is_plain else json.dumps(state, default=np.ndarray.tolist)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        state = saved["state"]
        if not isinstance(state, torch.Tensor):
            state = json.loads(state)
        if isinstance(self.generator, random.Random):
            version, words, gauss = state
            state = version, tuple(words), gauss
        set_state(self.generator, state)


def _behind(thing: Any) -> Sequence[Any]:
    """Return the objects to which an object refers, as far as they may be a user's."""
    if isinstance(thing, FunctionType):
        if not is_of_user(thing.__code__.co_filename):
            return ()
        named = [thing.__globals__[name] for name in _names(thing.__code__) if name in thing.__globals__]
        return [*named, thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
    if isinstance(thing, type):
        return [*vars(thing).values(), *thing.__bases__] if is_class_of_user(thing) else ()
    if isinstance(thing, (*CLOSED, set, frozenset)):  # the order of a set differs by process
        return ()
    if type(thing) in (list, tuple) and len(thing) > MOST_LOOKED_AT:
        return cast("Sequence[Any]", thing[:MOST_LOOKED_AT])  # a list of all that it holds takes seconds
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


def states_of_generators(own: Sequence[Generator] = ()) -> dict[str, Any]:
    """Return the states of the shared generators and of `own`, of kinds that torch.load reads safely."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    version, words, gauss = random.getstate()
    return {
        "own": [SavedGenerator(generator).state_dict() for generator in own],
        "torch": [torch.get_rng_state()],
        "numpy": [str(kind), torch.tensor(np.asarray(keys, dtype=np.int64)), *rest],
        "random": [version, list(words), gauss],
    }


def restore_generators(saved: dict[str, Any], own: Sequence[Generator] = ()) -> None:
    """Restore the states that `states_of_generators` has returned."""
    torch.default_generator.set_state(saved["torch"][0])
    for generator, state in zip(own, saved.get("own", ()), strict=False):
        SavedGenerator(generator).load_state_dict(state)
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, gauss = saved["random"]
    random.setstate((version, tuple(words), gauss))


@contextmanager
def kept_generators(own: Sequence[Generator] = ()) -> Iterator[None]:
    """Restore the generators after the block, since training draws its dropout from torch's generator."""
    before = [(generator, state_of(generator)) for generator in (*OF_PROCESS, *own)]
    try:
        yield
    finally:
        for generator, state in before:
            set_state(generator, state)


def state_of(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def set_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, torch.Generator | np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)
