"""Checks of the state of a user's model: what a checkpoint could not restore, and what it does not hold."""

import logging
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.core.user_code import is_class_of_user
from gpu_fleet.data.generators import is_generator, state_of
from gpu_fleet.step.outline import outlines
from gpu_fleet.step.state import takes_values

NUMBERS = (bool, int, float, complex, str, np.generic)  # kinds of attributes in which a module may count
NO_STATE = object()  # in place of a value that cannot be compared, or belongs to one step
DEPTH = 3  # of nested lists, dictionaries and objects
OF_MODULE = vars(nn.Module()).keys()
OF_OPTIMIZER = vars(torch.optim.SGD([torch.zeros(1)])).keys() | {"_opt_called", "_step_count"}  # of schedules
log = logging.getLogger(__name__)


class BufferCheck:
    """Check of a model before and after its first training passes, and before each save."""

    def __init__(self, model: nn.Module, what: str) -> None:
        """Note the state of the model `what`; raises ConfigError for a buffer that takes no values."""
        self._model, self._what = model, what
        saved = model.state_dict().keys()
        self._shapes = {}
        for name, buffer in model.named_buffers():
            if name in saved and not nn.parameter.is_lazy(buffer):
                self._shapes[name] = buffer.shape
                self._check_kind(name, buffer)
        self._attributes = check_of_model(model, what)

    def _check_kind(self, name: str, buffer: Tensor) -> None:
        if buffer.layout != torch.strided:
            raise ConfigError(
                f"{self._what}: buffer {name} is of layout {buffer.layout}, which cannot be saved; register "
                "its indices and values, and build it in forward"
            )
        if buffer.is_quantized:
            raise ConfigError(
                f"{self._what}: buffer {name} is quantized ({buffer.dtype}), which cannot be saved; register "
                "its int_repr(), scale and zero point, and build it in forward"
            )
        if not takes_values(buffer):
            raise ConfigError(
                f"{self._what}: several elements of buffer {name} share memory, so it could not be loaded "
                "again; register it with .contiguous()"
            )

    def passed(self, *, says: bool = True) -> None:
        """Check after a pass; warn if this rank `says`. Raises ConfigError for a buffer of another shape."""
        for name, buffer in self._model.named_buffers():
            before = self._shapes.get(name, buffer.shape)
            if buffer.shape != before:
                raise ConfigError(
                    f"{self._what}: buffer {name} changes its shape in a step, from {list(before)} to "
                    f"{list(buffer.shape)}, and could not be loaded again; give it its full size at once"
                )
        self._attributes.passed(says=says)

    @property
    def is_done(self) -> bool:
        """True if only a look before each save is needed."""
        return self._attributes.is_done


class AttributeCheck:
    """Check of attributes that steps change, and no checkpoint holds; one filled only once is a cache."""

    def __init__(self, of: Callable[[], Mapping[str, Any]], what: str, instead: str) -> None:
        """Note the attributes that `of` returns; `instead` says where a checkpoint would hold them."""
        self._of, self._what, self._instead = of, what, instead
        self._before, self._named = _filled(of()), set[str]()
        self.is_done = False  # True once a step has filled no more: a look before each save is enough

    def passed(self, *, says: bool = True) -> None:
        """Compare with the last look; warn once of each changed attribute if this rank `says`."""
        now = self._of()
        both = (self._before.keys() & now.keys()) - self._named
        # in lists, where a NaN equals itself
        changed = sorted(name for name in both if [self._before[name]] != [now[name]])
        self._named.update(changed)
        if changed and says:
            log.warning(
                "not exact: %s: a step changes %s, which is in no checkpoint; %s",
                self._what,
                ", ".join(changed),
                self._instead,
            )
        filled = _filled(now)
        self._before, self.is_done = filled, filled.keys() <= self._before.keys()


def _filled(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in state.items()
        if not (value is None or (isinstance(value, list | dict) and not value))
    }


def check_of_model(model: nn.Module, what: str, left_out: Iterable[str] = ()) -> AttributeCheck:
    """Return the check of a model's attributes, except those `left_out`."""
    instead = "make it a persistent buffer, or return it from get_extra_state"
    return AttributeCheck(partial(unsaved, model, OF_MODULE | {*left_out}), what, instead)


def unsaved(model: nn.Module, left_out: Container[str] = OF_MODULE) -> dict[str, Any]:
    """Return outlines of what no checkpoint holds: buffers not persistent, plain attributes of modules."""
    saved = model.state_dict().keys()
    state: dict[str, Any] = {
        name: _outline_of_array(buffer)
        for name, buffer in model.named_buffers()
        if name not in saved and takes_values(buffer)
    }
    for path, module in model.named_modules():
        is_metric = type(module).__module__.startswith("torchmetrics.")
        if type(module).get_extra_state is nn.Module.get_extra_state and not is_metric:
            plain = _outlines_of(vars(module), left_out)
            state |= {f"{path}.{name}".removeprefix("."): value for name, value in plain.items()}
    return state


def check_of_optimizer(optimizer: torch.optim.Optimizer, what: str) -> AttributeCheck:
    """Return the check of the attributes of a user's optimizer, which its state_dict leaves out."""
    left_out = vars(optimizer).keys() if type(optimizer).__module__.startswith("torch.") else OF_OPTIMIZER
    instead = "keep it in self.state or in a group of parameters"
    return AttributeCheck(partial(_outlines_of, vars(optimizer), left_out), what, instead)


def numbers_of(thing: Any, *kinds: type) -> dict[str, Any]:
    """Return the attributes of a user's object that are numbers, text, or of these further `kinds`."""
    attributes = getattr(thing, "__dict__", {}).items()
    return _outlines_of({name: value for name, value in attributes if isinstance(value, (*NUMBERS, *kinds))})


def _outlines_of(attributes: Mapping[str, Any], left_out: Container[str] = ()) -> dict[str, Any]:
    """Return outlines of the attributes that may be state of the next step."""
    kept = {name: value for name, value in attributes.items() if name not in left_out}
    outlined = {name: _outline_of(value, DEPTH) for name, value in kept.items()}
    return {name: outline for name, outline in outlined.items() if outline is not NO_STATE}


def _outline_of(value: Any, depth: int) -> Any:
    """Return what equals itself later: numbers, arrays, generators, and collections and objects of them."""
    if is_generator(value):
        value, depth = state_of(value), DEPTH
    if isinstance(value, np.generic):
        return repr(value)
    if value is None or isinstance(value, NUMBERS):
        return value
    if isinstance(value, Tensor | np.ndarray):
        return _outline_of_array(value)
    return _outline_of_parts(value, depth) if depth else NO_STATE


def _outline_of_parts(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _outline_of(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [_outline_of(item, depth - 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(item) for item in value if isinstance(item, NUMBERS))
    is_own = is_class_of_user(type(value)) and not isinstance(value, nn.Module | torch.optim.Optimizer)
    return _outline_of(object.__getstate__(value), depth) if is_own else NO_STATE


def _outline_of_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return NO_STATE if value.dtype.hasobject else (value.shape, zlib.crc32(value.tobytes()))
    # a tensor of the graph, such as the newest output, belongs to one step
    is_state = not (value.requires_grad or nn.parameter.is_lazy(value)) and takes_values(value)
    return (value.shape, outlines([value])) if is_state else NO_STATE
