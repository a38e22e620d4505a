"""Proofs about the steps of a loop: they train something, and the weights stay finite numbers."""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from gpu_fleet.core.errors import DivergenceError, UntrainedError
from gpu_fleet.core.world import World
from gpu_fleet.step.outline import local_part, outlines
from gpu_fleet.step.state import not_finite

ADVICE = "look for a detach, an item or a no_grad between the parameters and the loss"
DIVERGED = (
    "after step {step}, which is not saved; a gradient was none: look for a root of 0 or a quotient 0 / 0 in "
    "the loss, lower the learning rate, or clip the gradients"
)
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


def check_finite(where: World, bad: list[str], rest: str) -> None:
    """Raise DivergenceError on all ranks if one of them names tensors that are not finite."""
    of_ranks = where.gather_numbers(len(bad))
    if not any(count for (count,) in of_ranks):
        return
    rank, name = next((rank, names[0]) for rank, names in enumerate(where.gather(bad[:1])) if names)
    error = DivergenceError(f"the weights of rank {rank} are no finite numbers {rest}; the first is {name}")
    error.shared = True
    raise error


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
        self, optimizers: Iterable[torch.optim.Optimizer], modules: Iterable[nn.Module], where: World
    ) -> None:
        """Listen for the gradients of all parameters; without an optimizer a loop need not train."""
        self._modules = list(modules)
        given = list(optimizers)
        groups = chain.from_iterable(optimizer.param_groups for optimizer in given)
        self._parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        self._where = where
        self._proven = self._agreed = not self._parameters
        self._before = outlines(self._parameters)
        known = [p for p in self._parameters if not nn.parameter.is_lazy(p)]
        self._hooks = [p.register_post_accumulate_grad_hook(self._note) for p in known]
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

    def check(self, step: int) -> None:
        """Check a state before its save; raises UntrainedError or DivergenceError on all ranks."""
        self._check_trained()
        check_weights(self._modules, self._where, step)

    def _check_trained(self) -> None:
        """Raise UntrainedError on all ranks if no rank has seen a gradient or another weight."""
        if self._agreed:
            return
        proven = self._proven or outlines(self._parameters) != self._before
        self._agreed = any(has for (has,) in self._where.gather_numbers(proven))
        if not self._agreed:
            raise untrained(f"Run: no parameter has got a gradient or changed in any step: {ADVICE}")
