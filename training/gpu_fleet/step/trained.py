"""Proof that the steps of a loop train something: a gradient, or a weight that changes."""

import logging
from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn

from gpu_fleet.core.errors import UntrainedError
from gpu_fleet.core.world import World
from gpu_fleet.step.outline import outlines

ADVICE = "look for a detach, an item or a no_grad between the parameters and the loss"
log = logging.getLogger(__name__)


def check_gradients(parameters: Iterable[nn.Parameter], where: World) -> None:
    """Raise UntrainedError on all ranks if none of them has a gradient."""
    has_one = any(parameter.grad is not None for parameter in parameters)
    if not any(has for (has,) in where.gather_numbers(has_one)):
        raise untrained(f"no parameter has a gradient after the first step: {ADVICE}")


def untrained(message: str) -> UntrainedError:
    error = UntrainedError(message)
    error.shared = True
    return error


class GradientWatch:
    """Watch over the parameters of a user's optimizers, from the start of the loop to the first proof."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], where: World) -> None:
        """Listen for the gradients of all parameters; without an optimizer a loop need not train."""
        given = list(optimizers)
        groups = chain.from_iterable(optimizer.param_groups for optimizer in given)
        self._parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        self._where = where
        self._proven = self._agreed = not self._parameters
        self._before = outlines(self._parameters)
        self._hooks = [p.register_post_accumulate_grad_hook(self._note) for p in self._parameters]
        self._updates = 0  # of all optimizers
        self._hooks += [optimizer.register_step_pre_hook(self._count) for optimizer in given]

    def _note(self, _parameter: Tensor) -> None:
        self._proven = True

    def _count(self, *_: object) -> None:
        self._updates += 1

    def passed(self, done: int) -> None:
        """Check the `done`-th step; remove the hooks once they have served, as later steps pay for them."""
        held = any(p.grad is not None for p in self._parameters) if done == 1 else False
        if held and not self._updates and self._where.leads:
            log.warning(
                "not exact: the first step of the loop computes gradients and updates nothing, and a "
                "checkpoint holds no gradients; let each step of run.steps end with an update"
            )
        if self._proven:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []

    def check(self) -> None:
        """Raise UntrainedError on all ranks if no rank has seen a gradient or another weight."""
        if self._agreed:
            return
        proven = self._proven or outlines(self._parameters) != self._before
        self._agreed = any(has for (has,) in self._where.gather_numbers(proven))
        if not self._agreed:
            raise untrained(f"Run: no parameter has got a gradient or changed in any step: {ADVICE}")
