"""A library's loop that computes gradients and makes no update is no success; in doubt it is one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import LBFGS, SGD, Optimizer

from gpu_fleet.core.errors import UntrainedError
from gpu_fleet.core.exit_codes import FAILED_FOR_GOOD
from gpu_fleet.core.world import of_script
from gpu_fleet.integrations.guard import Guard
from gpu_fleet.step.checks import GradientWatch
from tests.training.ranks import run_ranks

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


class Wrapping(Optimizer):
    """Optimizer that updates by another one, and has no hooks, as torch's PostLocalSGDOptimizer."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure
        self.inner.step()


@pytest.mark.parametrize("updates", [True, False])
def test_an_optimizer_that_torch_has_not_made_is_heard_by_the_one_in_it(updates):
    model = nn.Linear(2, 1)
    optimizer = Wrapping(SGD(model.parameters(), lr=0.0))
    watch = GradientWatch([optimizer], [model], of_script(torch.device("cpu")), anywhere=False)

    model(torch.ones(2)).sum().backward()
    if updates:
        optimizer.step()
    watch.passed(1, ended=True)

    if updates:
        watch.check(1)
    else:
        with pytest.raises(UntrainedError, match=r"call optimizer\.step"):
            watch.check(1)


def rank_with_parameters_on_the_first(updates: bool) -> str:
    dist.init_process_group("gloo")
    model = nn.Linear(2, 1).requires_grad_(dist.get_rank() == 0)
    optimizer = SGD(model.parameters(), lr=0.0)
    watch = GradientWatch([optimizer], [model], of_script(torch.device("cpu")), anywhere=False)
    if dist.get_rank() == 0:
        model(torch.ones(2)).sum().backward()
        if updates:
            optimizer.step()
    watch.passed(1, ended=True)
    try:
        watch.check(1)
    except UntrainedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("updates", [True, False])
def test_a_rank_that_trains_nothing_hears_what_the_others_do(updates):
    said = run_ranks(rank_with_parameters_on_the_first, 2, updates)

    assert ["call optimizer.step()" in each for each in said] == [not updates] * 2


def rank_with_hooks(folder: str) -> list[bool]:
    dist.init_process_group("gloo")
    fully_shard(model := nn.Linear(2, 1))
    optimizer, heard, guard = SGD(model.parameters()), [], Guard(folder, pattern="step-*")
    guard.watch([optimizer])
    model.weight.register_post_accumulate_grad_hook(lambda _: heard.append(True))
    for _ in range(2):
        model(torch.ones(2, 2)).sum().backward()
        guard.stopping()
        optimizer.step()
    return heard


def test_a_sharded_model_may_have_hooks_of_the_user(tmp_path):
    """FSDP's backward pass iterates over the hooks of a parameter, which must not remove themselves."""
    assert run_ranks(rank_with_hooks, 1, str(tmp_path)) == [[True, True]]


def test_a_callback_of_an_earlier_training_is_refused_by_one_message(tmp_path, capsys):
    guard = Guard(tmp_path, pattern="step-*")
    guard.begin({}, None)
    guard.finish()

    with pytest.raises(SystemExit, match=str(FAILED_FOR_GOOD)):
        guard.begin({}, None)

    assert capsys.readouterr().err == (
        f"error: {tmp_path}: each training needs a callback and a folder of its own\n"
    )
