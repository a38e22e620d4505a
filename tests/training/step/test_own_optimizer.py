"""A user's own optimizer: state in its groups is resumed, and its settings of a group are kept."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_fleet.trainer import loop
from tests.training.examples import changed, gpt_table, interrupted, train_on, train_rank
from tests.training.proofs import by_proof

HERE = "tests.training.step.test_own_optimizer"


class Counting(torch.optim.Optimizer):
    """Optimizer with a step count in its groups from the start, like Prodigy and schedule-free ones."""

    def __init__(self, params: Any, lr: float, power: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "power": power, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, group["lr"] / group["k"] ** group["power"])

    def update(self, weight: torch.Tensor, rate: float) -> None:
        weight.add_(weight.grad, alpha=-rate)


class Lazy(Counting):
    """Optimizer with a step count in its groups from the first step on, like FusedAdam of apex."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        for group in self.param_groups:
            del group["k"]


class WithMoments(Counting):
    """Optimizer that also has moments of its parameters."""

    def update(self, weight: torch.Tensor, rate: float) -> None:
        before = self.state[weight].setdefault("before", torch.zeros_like(weight))
        before.mul_(0.5).add_(weight.grad)
        weight.sub_(before, alpha=rate)


def table_of(tokens: Path, directory: Path, kind: str, **parallel: str) -> dict[str, Any]:
    table = gpt_table(tokens, directory)
    return changed(table, optimizer={"name": f"{HERE}:{kind}", "learning_rate": 0.1}, parallel=parallel)


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("Counting", "ddp"),
        ("Lazy", "ddp"),
        ("WithMoments", "fsdp"),
        *by_proof(("Counting", "fsdp"), ("Lazy", "fsdp"), ("WithMoments", "ddp")),
    ],
)
def test_what_an_optimizer_keeps_in_its_groups_is_resumed(kind, strategy, tokens, tmp_path):
    interrupted(2, lambda run: table_of(tokens, tmp_path / run, kind, strategy=strategy), stop_at=3)


def test_a_save_takes_no_step_of_an_optimizer_that_has_no_moments(tokens, tmp_path):
    table, undisturbed = (
        table_of(tokens, tmp_path / name, "Counting", strategy="fsdp") for name in ("saved", "undisturbed")
    )

    saved = train_on(1, changed(table, checkpoint={"every_steps": 2}))

    assert saved["parameters_sha256"] == train_on(1, undisturbed)["parameters_sha256"]


def test_an_option_that_may_differ_is_taken_anew(tokens, tmp_path):
    def outcome(name: str, power: float) -> Any:
        table = table_of(tokens, tmp_path / name, "Counting")
        train_rank(changed(table, optimizer={"options": {"power": 1.0}}), stop_at=3)
        allow = {"allow": ["optimizer.options"]}
        return train_rank(changed(table, optimizer={"options": {"power": power}}, checkpoint=allow))

    assert (
        outcome("same", 1.0)["parameters_sha256"]
        == train_rank(table_of(tokens, tmp_path / "straight", "Counting"))["parameters_sha256"]
        != outcome("other", 0.5)["parameters_sha256"]
    )


def layered(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Return an optimizer whose first group learns at a tenth of the rate."""
    first, *others = parameters
    return torch.optim.SGD([{**first, "lr": lr / 10}, *others], lr=lr)


def test_the_schedule_keeps_the_rates_of_the_groups_in_proportion(tokens, tmp_path, monkeypatch):
    used: list[list[float]] = []
    update = loop.take_step

    def noted(run: Any, state: Any, *others: Any, **options: Any) -> Any:
        used.append([group["lr"] for group in state.optimizer.param_groups])
        return update(run, state, *others, **options)

    monkeypatch.setattr(loop, "take_step", noted)
    table = table_of(tokens, tmp_path, "layered")
    halved = {"name": "step", "step_every": 3, "step_factor": 0.5}

    train_rank(changed(table, schedule=halved), stop_at=2)
    train_rank(changed(table, schedule=halved))

    assert used == [pytest.approx(rates) for rates in [[0.01, 0.1]] * 3 + [[0.005, 0.05]] * 3]
