"""Checks of the state of a user's model: what a checkpoint could not restore, and what it does not hold."""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.step.state import takes_values

NUMBERS = (bool, int, float)  # kinds of attributes in which a module may count
log = logging.getLogger(__name__)


class BufferCheck:
    """Check of a model before and after its first training pass."""

    def __init__(self, model: nn.Module, what: str) -> None:
        """Note the state; `what` names the model in messages.

        Raises ConfigError for a saved buffer whose values cannot be copied back into it.
        """
        self._model, self._what = model, what
        saved = model.state_dict().keys()
        self._shapes = {}
        for name, buffer in model.named_buffers():
            if name in saved and not nn.parameter.is_lazy(buffer):
                self._shapes[name] = buffer.shape
                self._check_kind(name, buffer)
        self._before = unsaved(model)

    def _check_kind(self, name: str, buffer: Tensor) -> None:
        if buffer.layout != torch.strided:
            raise ConfigError(
                f"{self._what}: buffer {name} is of layout {buffer.layout}, which cannot be saved; register "
                "its indices and values, and build it in forward"
            )
        if not takes_values(buffer):
            raise ConfigError(
                f"{self._what}: several elements of buffer {name} share memory, so it could not be loaded "
                "again; register it with .contiguous()"
            )

    def passed(self, *, says: bool = True) -> None:
        """Check the state after a pass; warn of changed state that is in no checkpoint, if this rank `says`.

        Raises ConfigError for a buffer of another shape, which could be saved, but not loaded again.
        """
        for name, buffer in self._model.named_buffers():
            before = self._shapes.get(name, buffer.shape)
            if buffer.shape != before:
                raise ConfigError(
                    f"{self._what}: buffer {name} changes its shape in a step, from {list(before)} to "
                    f"{list(buffer.shape)}, and could not be loaded again; give it its full size at once"
                )
        now = unsaved(self._model)
        both = self._before.keys() & now.keys()
        changed = sorted(name for name in both if not _equal(self._before[name], now[name]))
        if changed and says:
            log.warning(
                "not exact: %s: a step changes %s, which is in no checkpoint; make it a persistent buffer, "
                "or return it from get_extra_state",
                self._what,
                ", ".join(changed),
            )


def unsaved(model: nn.Module) -> dict[str, Any]:
    """Return copies of the state that no checkpoint holds: buffers that are not persistent, and numbers.

    The numbers are plain attributes of modules without an extra state.
    """
    saved = model.state_dict().keys()
    state: dict[str, Any] = {
        name: buffer.clone()
        for name, buffer in model.named_buffers()
        if name not in saved and takes_values(buffer)
    }
    for path, module in model.named_modules():
        if type(module).get_extra_state is nn.Module.get_extra_state:
            plain = {name: value for name, value in vars(module).items() if isinstance(value, NUMBERS)}
            state |= {f"{path}.{name}".removeprefix("."): plain[name] for name in plain.keys() - {"training"}}
    return state


def _equal(before: Any, now: Any) -> bool:
    return torch.equal(before, now) if isinstance(before, Tensor) else bool(before == now)
