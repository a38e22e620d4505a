"""A library's loop that computes gradients and makes no update is no success; in doubt it is one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Optimizer

from gpu_fleet.core.exit_codes import FAILED_FOR_GOOD
from gpu_fleet.integrations.guard import Guard

After = Callable[[nn.Module, Sequence[Any]], Any]  # what a step does after its gradients


class Unheard(Optimizer):
    """Optimizer that torch's own class has not made: no hook hears of its updates."""

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": list(params)}]

    def step(self, _closure: Any = None) -> None:
        """Update by a rate of 0."""


class NoOptimizer:
    """Optimizer of a library of its own."""

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": list(params)}]


def by_hand(model: nn.Module, _optimizers: Sequence[Any]) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(1)


def train(folder: Path, optimizers: Sequence[Any], model: nn.Module, after: After, tried: bool) -> None:
    guard = Guard(folder, pattern="step-*")
    guard.watch(optimizers)
    for _ in range(2):
        loss = model(torch.ones(2)).sum()
        if loss.requires_grad and torch.is_grad_enabled():
            loss.backward()
        after(model, optimizers)
        guard.check([model], 1)
    guard.check([model], 2, ended=not tried)


def nothing(_model: nn.Module, _optimizers: Sequence[Any]) -> None:
    """Forget the update."""


def updated(_model: nn.Module, optimizers: Sequence[Any]) -> None:
    optimizers[-1].step()


def closed(_model: nn.Module, optimizers: Sequence[Any]) -> None:
    optimizers[0].step(lambda: torch.zeros(()))


def other(_model: nn.Module, _optimizers: Sequence[Any]) -> None:
    SGD([torch.zeros(1, requires_grad=True)], lr=0.0).step()


# what a step does, with which optimizers, and whether the library knows of a try
GOOD: dict[str, tuple[After, Callable[[Any], list[Any]], bool]] = {
    "a rate of 0": (updated, lambda params: [SGD(params, lr=0.0)], False),
    "one of two optimizers": (updated, lambda params: [SGD([p], lr=0.0) for p in params], False),
    "an optimizer of the user's alone": (other, lambda params: [SGD(params)], False),
    "by hand": (by_hand, lambda params: [SGD(params)], False),
    "a closure": (closed, lambda params: [LBFGS(params, lr=0.0)], False),
    "skipped by GradScaler": (nothing, lambda params: [SGD(params)], True),
    "unheard": (nothing, lambda params: [Unheard(params)], False),
    "no optimizer of torch": (nothing, lambda params: [NoOptimizer(params)], False),
    "a resumed run": (nothing, lambda params: [], False),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_loop_that_may_have_made_an_update_is_not_refused(name, tmp_path):
    after, make, tried = GOOD[name]
    model = nn.Linear(2, 1)

    train(tmp_path, make(list(model.parameters())), model, after, tried)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_loop_without_gradients_may_evaluate(frozen, tmp_path):
    model = nn.Linear(2, 1).requires_grad_(not frozen)

    with torch.set_grad_enabled(frozen):
        train(tmp_path, [SGD(model.parameters())], model, nothing, tried=False)


def test_a_loop_that_computes_gradients_and_makes_no_update_is_refused_at_its_end(tmp_path, capsys):
    model = nn.Linear(2, 1)

    with pytest.raises(SystemExit, match=str(FAILED_FOR_GOOD)):
        train(tmp_path, [SGD(model.parameters())], model, nothing, tried=False)

    said = capsys.readouterr().err
    assert (
        said
        == "error: the steps compute gradients, and none has changed a parameter: call optimizer.step()\n"
    )
