"""Checks of a user's loop: no checkpoint lacks or bends its state, it trains, its weights stay finite."""

import logging
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gpu_fleet.core.containers import plain
from gpu_fleet.core.errors import ConfigError, DivergenceError, UntrainedError
from gpu_fleet.core.user_code import is_class_of_user
from gpu_fleet.core.world import World
from gpu_fleet.data.generators import is_generator, state_of
from gpu_fleet.step.outline import bound_of_each, local_part, outlines
from gpu_fleet.step.state import not_finite, switches, takes_values

NUMBERS = (bool, int, float, complex, str, np.generic)  # kinds of attributes in which a module may count
NO_STATE = object()  # in place of a value that cannot be compared, or belongs to one step
MOST_NAMED = 6  # names in a message
DEPTH = 3  # of nested lists, dictionaries and objects
OF_MODULE = vars(nn.Module()).keys()
OF_OPTIMIZER = vars(torch.optim.SGD([torch.zeros(1)])).keys() | {"_opt_called", "_step_count"}  # of schedules
MOST_WITHOUT_UPDATE = 1000  # steps; a GradScaler skips some 40 at most, and few loops accumulate so many
ADVICE = "look for a detach, an item or a no_grad between the parameters and the loss"
NO_UPDATE = "steps compute gradients, and none has changed a parameter: call optimizer.step()"
DIVERGED = (
    "after step {step}, which is not saved; a gradient was none: look for a root of 0 or a quotient 0 / 0 in "
    "the loss, lower the learning rate, or clip the gradients"
)
log = logging.getLogger(__name__)


class BufferCheck:
    """Check of a model before and after its first training passes, and before each save."""

    def __init__(self, model: nn.Module, what: str, others: Iterable[Any] = ()) -> None:
        """Note the state of the model `what`, without that of `others`, which are saved too.

        Raises ConfigError for a buffer that takes no values, UnreadableError for other states.
        """
        self._model, self._what = model, what
        saved = plain(model.state_dict(), what)
        self._names, self._shapes = saved.keys(), {}
        for name, buffer in model.named_buffers():
            if name not in saved or nn.parameter.is_lazy(buffer):
                continue
            self._shapes[name] = buffer.shape
            if not takes_values(buffer):
                raise ConfigError(
                    f"{what}: several elements of buffer {name} share memory, so it could not be loaded "
                    "again; register it with .contiguous()"
                )
        self._attributes = check_of_model(model, what, others=others)

    def passed(self, *, says: bool = True, trial: bool = False) -> None:
        """Check after a pass; warn if this rank `says`. Raises ConfigError for what could not be resumed.

        A `trial` comes before the load of each start, so it may register more.
        """
        for name, buffer in self._model.named_buffers():
            before = self._shapes.get(name, buffer.shape)
            if buffer.shape != before:
                raise ConfigError(
                    f"{self._what}: buffer {name} changes its shape in a step, from {list(before)} to "
                    f"{list(buffer.shape)}, and could not be loaded again; give it its full size at once"
                )
        now = self._model.state_dict().keys()
        if changed := [] if trial or _loads_otherwise(self._model) else sorted(now ^ self._names):
            raise ConfigError(
                f"{self._what}: a step changes the names of its state ({', '.join(changed[:MOST_NAMED])}), "
                "so no start could load what is saved from here on; prune or add layers at each start, "
                "before the first step"
            )
        self._attributes.passed(says=says)

    @property
    def is_done(self) -> bool:
        """True if only a look before each save is needed."""
        return self._attributes.is_done


def _loads_otherwise(model: nn.Module) -> bool:
    """Return whether a module, other than one of torch, may load a state of other names than its own."""
    load = getattr(model.load_state_dict, "__func__", None)
    return load is not nn.Module.load_state_dict or any(
        part._load_state_dict_pre_hooks
        or not type(part)._load_from_state_dict.__module__.startswith("torch.")
        for part in model.modules()
    )


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
                "not exact: %s: a step changes %s, which is in no checkpoint; %s; if it only measures, as "
                "a meter does, the weights stay exact",
                self._what,
                ", ".join(changed),
                self._instead,
            )
        filled = _filled(now)
        self._before, self.is_done = filled, filled.keys() <= self._before.keys()


def look(checks: Iterable[BufferCheck | AttributeCheck], *, says: bool, saving: bool = False) -> None:
    """Look after a step at what is not done yet, before a save at all; raises ConfigError as a check does."""
    for check in checks:
        if saving or not check.is_done:
            check.passed(says=says)


def _filled(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in state.items()
        if not (value is None or (isinstance(value, list | dict) and not value))
    }


def check_of_model(
    model: nn.Module, what: str, left_out: Iterable[str] = (), others: Iterable[Any] = ()
) -> AttributeCheck:
    """Return the check of a model's attributes, except those `left_out` and tensors of `others`.

    It raises ConfigError for parameters in an attribute that take part in the training.
    """
    instead = "make it a persistent buffer or a module, or return it from get_extra_state"
    ours = list(chain([model], others))

    def of() -> dict[str, Any]:
        known = {id(tensor) for thing in ours for tensor in _tensors_in(thing)}
        return unsaved(model, what, OF_MODULE | {*left_out}, known)

    return AttributeCheck(of, what, instead)


def check_of_switches(model: nn.Module, what: str) -> AttributeCheck:
    """Return the check of frozen parameters, and of layers' modes while the model trains, from a step on."""
    looks = count()

    def of() -> dict[str, Any]:
        now = switches([model]) if next(looks) else {}  # each step may set what it needs
        return {name: on for name, on in now.items() if model.training or not name.endswith(".training")}

    return AttributeCheck(of, what, "set it in each step")


def unsaved(model: nn.Module, what: str, left_out: Container[str], known: Container[int]) -> dict[str, Any]:
    """Return outlines of what no checkpoint holds: buffers not persistent, plain attributes of modules.

    Tensors with an id in `known` are saved. Raises ConfigError for a parameter with a gradient.
    """
    saved = model.state_dict().keys()
    state: dict[str, Any] = {
        name: _outline_of_array(buffer)
        for name, buffer in model.named_buffers()
        if name not in saved and takes_values(buffer)
    }
    for path, module in model.named_modules():
        is_metric = type(module).__module__.startswith("torchmetrics.")
        if type(module).get_extra_state is not nn.Module.get_extra_state or is_metric:
            continue
        attributes = {name: value for name, value in vars(module).items() if name not in left_out}
        outlined = _outlines_of(attributes)
        for name, value in attributes.items():
            hidden = [tensor for tensor in _tensors_in(value) if id(tensor) not in known]
            if any(tensor.grad is not None for tensor in hidden):
                raise ConfigError(
                    f"{what}: {f'{path}.{name}'.removeprefix('.')} holds parameters that get gradients, and "
                    "the model does not know them: they are in no checkpoint and not in parameters(); use "
                    "nn.ModuleList, nn.ModuleDict or nn.ParameterList, or requires_grad_(False) if frozen"
                )
            if hidden:
                outlined[name] = outlined.get(name), outlines(hidden, bound_of_each(hidden))
        state |= {f"{path}.{name}".removeprefix("."): value for name, value in outlined.items()}
    return state


def _tensors_in(value: Any, depth: int = DEPTH) -> Iterator[Tensor]:
    """Yield the parameters, and the buffers of modules, in a module or in collections and objects of them."""
    if isinstance(value, nn.Module):
        yield from chain(value.parameters(), value.buffers())
    elif isinstance(value, nn.Parameter):
        yield value
    elif isinstance(value, Mapping | list | tuple | deque | set | frozenset):
        for part in (value.values() if isinstance(value, Mapping) else value) if depth else ():
            yield from _tensors_in(part, depth - 1)
    elif depth and _is_own(value):
        yield from _tensors_in(object.__getstate__(value), depth - 1)


def _is_own(value: Any) -> bool:
    """Return whether an object is of a user's class that neither torch nor `Run` saves."""
    return is_class_of_user(type(value)) and not isinstance(value, nn.Module | Optimizer)


def check_of_optimizer(optimizer: Optimizer, what: str) -> AttributeCheck:
    """Return the check of the attributes of a user's optimizer, which its state_dict leaves out."""
    left_out = vars(optimizer).keys() if type(optimizer).__module__.startswith("torch.") else OF_OPTIMIZER
    instead = "keep it in self.state or in a group of parameters"
    loads_any = getattr(type(optimizer), "load_state_dict", None) is not Optimizer.load_state_dict
    sizes = [len(group["params"]) for group in optimizer.param_groups]

    def of() -> dict[str, Any]:
        now = [len(group["params"]) for group in optimizer.param_groups]
        if now != sizes and not loads_any:
            raise ConfigError(
                f"{what}: a step changes its groups of parameters, of {sizes} to {now} parameters, so no "
                "start could load what is saved from here on; give it all groups before the first step, at "
                "each start, and let requires_grad decide which parameters train"
            )
        return _outlines_of(vars(optimizer), left_out)

    return AttributeCheck(of, what, instead)


def numbers_of(thing: Any, *kinds: type) -> dict[str, Any]:
    """Return the attributes of a user's object that are numbers, text, functions, or of these `kinds`."""
    attributes = getattr(thing, "__dict__", {}).items()
    functions = {name: id(value) for name, value in attributes if callable(value)}  # such as a transform
    numbers = {name: value for name, value in attributes if isinstance(value, (*NUMBERS, *kinds))}
    return functions | _outlines_of(numbers)


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
    return _outline_of(object.__getstate__(value), depth) if _is_own(value) else NO_STATE


def _outline_of_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return NO_STATE if value.dtype.hasobject else (value.shape, zlib.crc32(value.tobytes()))
    # a tensor of the graph, such as the newest output, belongs to one step
    is_state = not (value.requires_grad or nn.parameter.is_lazy(value)) and takes_values(value)
    return (value.shape, outlines([value])) if is_state else NO_STATE


def check_gradients(parameters: Iterable[nn.Parameter], where: World) -> None:
    """Raise UntrainedError on all ranks if none of them has a gradient."""
    has_one = any(parameter.grad is not None for parameter in parameters)
    if not any(has for (has,) in where.gather_numbers(has_one)):
        raise UntrainedError(f"no parameter has a gradient after the first step: {ADVICE}")


def check_finite(where: World, bad: list[str], rest: str) -> None:
    """Raise DivergenceError on all ranks if one of them names tensors that are not finite."""
    of_ranks = where.gather_numbers(len(bad))
    if not any(count for (count,) in of_ranks):
        return
    rank, name = next((rank, names[0]) for rank, names in enumerate(where.gather(bad[:1])) if names)
    raise DivergenceError(f"the weights of rank {rank} are no finite numbers {rest}; the first is {name}")


def check_weights(modules: Iterable[nn.Module], where: World, step: int) -> None:
    """Raise DivergenceError on all ranks if the weights of a user's modules have diverged."""
    check_finite(where, list(chain.from_iterable(map(_diverged, modules))), DIVERGED.format(step=step))


def _diverged(module: nn.Module) -> Iterator[str]:
    """Yield the names of parameters that are not finite, and of saved buffers with a NaN."""
    parts = {name: local_part(parameter) for name, parameter in module.named_parameters()}
    yield from not_finite({name: part for name, part in parts.items() if part is not None})
    for path, owner in module.named_modules():
        for name, buffer in owner.named_buffers(recurse=False):  # an infinity may be a best score so far
            is_saved = buffer.is_floating_point() and name not in owner._non_persistent_buffers_set
            part = local_part(buffer) if is_saved else None
            if part is not None and bool(part.isnan().any()):
                yield f"{path}.{name}".removeprefix(".")


class GradientWatch:
    """Watch over a user's modules, and over the parameters of the optimizers up to the first proof."""

    def __init__(
        self, optimizers: Iterable[Optimizer], modules: Iterable[nn.Module], where: World, *, anywhere: bool
    ) -> None:
        """Hear gradients, and updates by these or `anywhere`; without an optimizer a loop need not train."""
        self._modules, given = list(modules), list(optimizers)
        self._parameters = [p for o in given for g in o.param_groups for p in g["params"] if p.requires_grad]
        self._where = where
        self._proven = self._agreed = False
        self._may_wait = True  # for an update: gradients of several steps may make one
        self._before = outlines(self._parameters)
        known = [p for p in self._parameters if p.is_leaf and not nn.parameter.is_lazy(p)]
        self._hooks = [p.register_post_accumulate_grad_hook(self._note) for p in known]
        self._updates = 0  # of all optimizers
        # a wrapper such as PostLocalSGDOptimizer has no hooks, and updates by another optimizer
        alone = not anywhere and all(hasattr(o, "_optimizer_step_pre_hooks") for o in given)
        listen = [o.register_step_pre_hook for o in given] if alone else [register_optimizer_step_pre_hook]
        self._counters = [hear(self._count) for hear in listen]

    def _note(self, _parameter: Tensor) -> None:
        self._proven = True

    def _count(self, *_: object) -> None:
        self._updates += 1

    def passed(self, done: int, *, ended: bool) -> None:
        """Check the `done`-th step, the last one if `ended`."""
        self.settle()
        self._may_wait = not ended and done < MOST_WITHOUT_UPDATE
        begun = done == 1 and not self._updates and self._where.leads
        if begun and any(p.grad is not None for p in self._parameters):
            log.warning(
                "not exact: the first step of the loop computes gradients and updates nothing, and a "
                "checkpoint holds no gradients; let each step of run.steps end with an update"
            )

    def settle(self) -> None:
        """Remove hooks that have served; between steps, as FSDP's backward pass iterates over them."""
        for hooks, served in ((self._hooks, self._proven), (self._counters, self._updates)):
            while served and hooks:
                hooks.pop().remove()

    def is_idle(self) -> bool:
        """Return, alike on all ranks, whether every one has got gradients and none has made an update."""
        idle = self._proven and not self._updates and outlines(self._parameters) == self._before
        return all(each for (each,) in self._where.gather_numbers(idle))

    def check(self, step: int) -> None:
        """Check a state before its save; raises UntrainedError or DivergenceError on all ranks."""
        self._check_trained()
        check_weights(self._modules, self._where, step)

    def _check_trained(self) -> None:
        """Raise UntrainedError on all ranks if no rank has seen a gradient, or after the wait an update."""
        if self._agreed:
            return
        changed = not (self._proven and self._updates) and outlines(self._parameters) != self._before
        mine = (bool(self._parameters), self._proven or changed, self._updates > 0 or changed)
        trains, proven, updated = map(any, zip(*self._where.gather_numbers(*mine), strict=True))
        if trains and not proven:
            raise UntrainedError(f"Run: no parameter has got a gradient or changed in any step: {ADVICE}")
        self._agreed = updated or not trains
        if not (self._agreed or self._may_wait):
            raise UntrainedError(f"Run: the {NO_UPDATE}, of the optimizer that Run was given")
