"""State of a user's loop that no checkpoint holds is named; state that one can hold is restored exactly."""

import random
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

from gpu_fleet import Run
from gpu_fleet.checkpoint import local
from gpu_fleet.data.generators import is_own_generator, reached
from gpu_fleet.integrations.exactness import LoopWatch
from gpu_fleet.step import outline
from gpu_fleet.step.checks import check_of_switches

STEPS, STOP = 6, 3
SAMPLES = list(torch.randn(9, 3, generator=torch.Generator().manual_seed(0)))


class WithMean(nn.Linear):
    """Keeps a mean of its inputs in a plain attribute."""

    mean: Any

    def __init__(self, mean: Any) -> None:
        super().__init__(3, 1)
        self.mean = mean

    def forward(self, inputs: Tensor) -> Tensor:
        mean = inputs.mean(0).detach()
        if isinstance(self.mean, list):
            self.mean.append(mean)
        else:
            self.mean = 0.9 * self.mean + mean
        return super().forward(inputs)


class WithStatistics(WithMean):
    """Keeps the mean in an object of its own."""

    def __init__(self, kept: Any) -> None:
        super().__init__(0.0)
        self.kept = kept

    def forward(self, inputs: Tensor) -> Tensor:
        self.kept.mean = self.kept.mean + inputs.mean(0).detach()
        return nn.Linear.forward(self, inputs)


class Slotted:
    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean = np.float32(0)


class Holder:
    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer


class WithNoise(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)
        self.source = torch.Generator()

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + torch.rand(inputs.shape, generator=self.source))


class WithCache(nn.Linear):
    """Fills two attributes in its first pass, and keeps its newest output."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.table: Tensor | None = None
        self.by_length: dict[int, Tensor] = {}
        self.newest = torch.zeros(1)
        self.best = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        self.table = torch.ones(3)
        self.by_length[len(inputs)] = self.table
        self.newest = super().forward(inputs * self.table)
        return self.newest


class WithList(nn.Linear):
    """Keeps a layer in an attribute of a kind in which torch does not look for it."""

    def __init__(self, keep: Callable[[nn.Module], Any], *, frozen: bool = False) -> None:
        super().__init__(3, 1)
        self.inner = nn.Linear(3, 3)
        self.layer: Any = nn.Linear(3, 3).requires_grad_(not frozen)
        self.kept = [self.inner, keep(self.layer)]
        self.find = self.layer.forward
        del self.layer

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(self.find(self.inner(inputs)))


class Hidden(torch.optim.SGD):
    """Keeps its momentum where no state_dict looks."""

    velocity: list[Tensor] | None = None

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.velocity = None

    def step(self, closure: Any = None) -> None:
        gradients = [p.grad for p in self.param_groups[0]["params"]]
        before = self.velocity or [torch.zeros_like(gradient) for gradient in gradients]
        self.velocity = [0.9 * old + gradient for old, gradient in zip(before, gradients, strict=True)]
        super().step(closure)


class Masters(torch.optim.Optimizer):
    """Keeps a copy of 32 bits of each parameter of 16."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("master", parameter.float().clone())
            state["master"] -= 0.01 * parameter.grad.float()
            parameter.copy_(state["master"])


def steps(run: Run, model: nn.Module, optimizer: Any, count: int) -> Iterator[int]:
    """Train, and give the loop of a test its turn after each step."""
    batches = run.batches(SAMPLES, batch_size=3)
    kind = next(model.parameters()).dtype
    for step in run.steps(count):
        optimizer.zero_grad()
        model(next(batches).to(kind)).square().mean().backward()
        optimizer.step()
        yield step


def looped(
    folder: Path, model: nn.Module, optimizer: Any = None, count: int = 2, **more: Any
) -> Iterator[int]:
    """Run a training that gives the caller its turn after each step, whose variables are watched too."""
    optimizer = optimizer or torch.optim.SGD(model.parameters())
    with Run(folder, model=model, optimizer=optimizer, **more) as run:
        yield from steps(run, model, optimizer, count)


def trained(folder: Path, model: nn.Module, optimizer: Any = None, **more: Any) -> None:
    assert list(looped(folder, model, optimizer, **more)) == [0, 1]


def with_late_change(folder: Path) -> None:
    """Change an attribute after the steps that are all looked at, and before the only save."""
    model = WithMean(0.0)
    model.forward = partial(nn.Linear.forward, model)  # type: ignore[method-assign]  # no change in a step
    for step in looped(folder, model, count=4):
        model.mean += step // 3


def with_average(folder: Path) -> None:
    model = nn.Linear(3, 1)
    average = AveragedModel(model)
    for _ in looped(folder, model):
        average.update_parameters(model)


def with_late_schedule(folder: Path) -> None:
    """Change the schedule only in the second step, as one does after an epoch."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for step in looped(folder, model, optimizer):
        if step:
            schedule.step()


def with_generator(folder: Path) -> None:
    source = np.random.default_rng(0)
    for _ in looped(folder, nn.Linear(3, 1)):
        source.random()


class Mean:
    """Keeps a mean as an array of numpy."""

    def __init__(self) -> None:
        self.mean = np.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


def with_array(folder: Path) -> None:
    mean = Mean()
    for _ in looped(folder, nn.Linear(3, 1)):
        mean.mean += 1


def with_seldom_updates(folder: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with Run(folder, model=model, optimizer=optimizer) as run:
        batches = run.batches(SAMPLES, batch_size=3)
        for step in run.steps(2):
            model(next(batches)).mean().backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()


def with_average_in_a_list(folder: Path) -> None:
    """Move an average of the weights that the model keeps in a list, as a teacher."""
    model = WithList(lambda layer: [layer], frozen=True)
    for _ in looped(folder, model):
        model.kept[1][0].weight.data.lerp_(model.inner.weight.data, 0.5)


def with_momenta(folder: Path) -> None:
    model = nn.Linear(3, 1)
    trained(folder, model, Hidden(model.parameters()))


LOOPS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an average": (with_average, "the loop changes average (AveragedModel), which is in no checkpoint"),
    "a schedule": (with_late_schedule, "the loop changes schedule (StepLR), which is in no checkpoint"),
    "an array": (with_array, "the loop changes mean (Mean), which is in no checkpoint"),
    "a generator": (with_generator, "the loop changes source (Generator), which is in no checkpoint"),
    "gradients": (with_seldom_updates, "computes gradients and updates nothing"),
    "a tensor": (lambda folder: trained(folder, WithMean(torch.zeros(3))), "a step changes mean"),
    "a list": (lambda folder: trained(folder, WithMean([])), "a step changes mean"),
    "a module's generator": (lambda folder: trained(folder, WithNoise()), "a step changes source"),
    "an object": (lambda at: trained(at, WithStatistics(SimpleNamespace(mean=0.0))), "a step changes kept"),
    "one with slots": (lambda folder: trained(folder, WithStatistics(Slotted())), "a step changes kept"),
    "a teacher in a list": (with_average_in_a_list, "a step changes kept"),
    "a late change": (with_late_change, "a step changes mean"),
    "momenta": (with_momenta, "a step changes velocity"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_state_that_is_in_no_checkpoint_is_named(name, tmp_path, caplog):
    loop, expected = LOOPS[name]

    loop(tmp_path)

    (said,) = [record.getMessage() for record in caplog.records if "not exact" in record.getMessage()]
    assert expected in said


@pytest.mark.parametrize(
    "keep",
    [lambda layer: layer, lambda layer: {"a": [layer]}, lambda layer: [*layer.parameters()], Holder],
    ids=["module", "dictionary", "parameters", "object"],
)
def test_a_layer_that_the_model_does_not_know_is_refused_at_the_first_step(keep, tmp_path, capsys):
    with pytest.raises(SystemExit, match="65"):
        trained(tmp_path, WithList(keep))

    said = capsys.readouterr().err
    assert "Run(model=...): kept holds parameters that get gradients, and the model does not know" in said
    assert local.steps(tmp_path / "checkpoints") == []


def test_a_layer_of_a_list_that_is_frozen_or_given_a_cache_and_what_a_run_was_given_are_not_named(
    tmp_path, caplog
):
    layers: list[nn.Module] = []
    model = WithList(lambda layer: layers.append(layer) or layer)
    cached, average = WithCache(), AveragedModel(nn.Linear(3, 1))
    cached.best = float("nan")

    trained(tmp_path / "given", model, layer=layers[0])
    trained(tmp_path / "frozen", WithList(lambda layer: layer, frozen=True))
    trained(tmp_path / "cached", cached, source=torch.Generator(), average=average)

    assert "not exact" not in caplog.text


class Held:
    """An object with a state that a loop holds."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, Any]:
        return dict(enumerate(self.tensors))  # type: ignore[arg-type]  # as a user may write it

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def loop_over(held: Held) -> FrameType:
    """Return the frame of a function that holds the object."""
    return sys._getframe()


def changes(held: Held, change: Callable[[], object], caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether a watch over the object names it after a change."""
    watch = LoopWatch([loop_over(held)], [], [])  # caplog would lead to the objects of all tests
    change()
    watch.warn("Run(NAME=...)")
    return "the loop changes held (Held)" in caplog.text


KINDS = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_small_state_is_compared_to_its_last_element(kind, caplog):
    tensor = torch.zeros(7, 5).to(kind)
    others = torch.zeros(3).to_sparse(), torch.zeros(2, device="meta"), torch.zeros(2, 3).cfloat().conj().t()
    held = Held(*others, tensor)

    assert changes(held, lambda: tensor[6, 4].fill_(1), caplog)


@pytest.mark.parametrize("shape", [(1 << 16,), (1 << 8, 1 << 8)], ids=["blocks", "rows"])
def test_a_large_state_is_looked_at_in_parts_that_a_step_of_all_of_it_changes(shape, caplog, monkeypatch):
    monkeypatch.setattr(outline, "MOST_BYTES", 1 << 14)
    monkeypatch.setattr(outline, "BLOCK_BYTES", 1 << 10)
    looked: list[int] = []
    checksum = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda part: looked.append(part.nbytes) or checksum(part))
    tensor = torch.zeros(shape).t() if len(shape) > 1 else torch.zeros(shape)
    held = Held(tensor, torch.zeros(9))

    assert changes(held, lambda: tensor.add_(1), caplog)
    assert looked == [1 << 13, 36] * 2


def test_a_gpu_is_waited_for_once_at_each_look(caplog, monkeypatch):
    """Tensors of a processor stand for those of a GPU: whatever it is called, each would be asked alone."""
    waits: list[int] = []
    bring = Tensor.cpu
    monkeypatch.setattr(outline, "HERE", "another")
    monkeypatch.setattr(outline, "BLOCK_BYTES", 16)
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: waits.append(len(tensor)) or bring(tensor))
    held = Held(torch.zeros(7), torch.zeros(3, dtype=torch.int16), torch.zeros(9), torch.arange(3.0))

    assert changes(held, lambda: held.tensors[3].copy_(held.tensors[3].flip(0)), caplog)  # of the same sum
    assert waits == [8 + 6 + 8 + 12] * 2


def test_a_long_list_is_searched_no_further_than_the_bound():
    held = [torch.Generator(), *([1.5] * 10**5)]

    assert list(reached(held, is_own_generator)) == held[:1]


def test_an_optimizer_gets_its_numbers_back_in_their_format(tmp_path):
    def loop(folder: Path, count: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1).bfloat16()
        optimizer = Masters(model.parameters())
        with Run(folder, model=model, optimizer=optimizer) as run:
            list(steps(run, model, optimizer, count))
        return model.weight, optimizer.state[model.weight]["master"]

    weight, master = loop(tmp_path / "straight", STEPS)
    loop(tmp_path / "broken", STOP)
    again, resumed = loop(tmp_path / "broken", STEPS)

    assert torch.equal(weight, again)
    assert torch.equal(master, resumed)


@pytest.mark.parametrize(
    ("kind", "draw"),
    [
        (torch.Generator, lambda source: float(torch.rand(1, generator=source))),
        (np.random.default_rng, lambda source: source.random()),
        (lambda: np.random.Generator(np.random.MT19937(1)), lambda source: source.random()),
        (lambda: np.random.RandomState(1), lambda source: source.normal()),
        (lambda: random.Random(1), lambda source: source.gauss(0, 1)),
    ],
    ids=["torch", "PCG64", "MT19937", "RandomState", "random"],
)
def test_a_generator_that_a_run_was_given_goes_on(kind, draw, tmp_path, caplog):
    source, other = kind(), kind()
    with Run(tmp_path, source=source) as run:
        for _ in run.steps(1):
            draw(source)

    with Run(tmp_path, source=other):
        pass

    assert [draw(other) for _ in range(3)] == [draw(source) for _ in range(3)]
    assert "not exact" not in caplog.text


def switched(folder: Path, count: int) -> Tensor:
    """Return the weights of a loop that freezes a layer, and a batch norm, in its second step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    for step in looped(folder, model, torch.optim.SGD(model.parameters(), lr=0.1), count):
        if step == 1:
            model[0].requires_grad_(False)
            model[1].eval()
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def test_what_a_step_freezes_stays_so(tmp_path, caplog):
    whole = switched(tmp_path / "straight", STEPS)

    for count in (STOP, STOP + 1, STEPS):
        again = switched(tmp_path / "stopped", count)

    assert torch.equal(again, whole)
    assert "not exact" not in caplog.text


@pytest.mark.parametrize("what", ["pruned", "grouped"])
def test_a_step_after_which_no_start_could_load_the_state_ends_the_run(what, tmp_path, capsys):
    model, added = nn.Linear(3, 1), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD(model.parameters())

    def loop() -> None:
        for step in looped(tmp_path, model, optimizer, 9, every_steps=2):
            if step == 4 and what == "pruned":
                prune.l1_unstructured(model, "weight", amount=1)
            elif step == 4:
                optimizer.add_param_group({"params": [added]})

    with pytest.raises(SystemExit, match="65"):
        loop()

    names = {"pruned": "state (weight, weight_mask, weight_orig)", "grouped": "of [2] to [2, 1] parameters"}
    assert names[what] in capsys.readouterr().err
    assert local.steps(tmp_path / "checkpoints") == [2, 4]


class SavesWhatTrains(nn.Linear):
    """A model whose state has other names once more of it trains, as those of adapters have."""

    def state_dict(self, *words, **named):
        trains = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return {name: value for name, value in super().state_dict(*words, **named).items() if name in trains}

    def load_state_dict(self, state, strict=True, assign=False):
        return super().load_state_dict(state, strict=False, assign=assign)


def test_a_model_that_loads_names_of_its_own_choice_may_change_them(tmp_path):
    model = SavesWhatTrains(3, 1)
    model.bias.requires_grad_(False)

    for step in looped(tmp_path, model, torch.optim.SGD(model.parameters()), 4):
        model.bias.requires_grad_(step > 0)

    assert local.steps(tmp_path / "checkpoints") != []


def test_a_mode_that_a_librarys_step_switches_later_on_is_named(caplog):
    model = nn.Sequential(nn.Linear(3, 1))
    check = check_of_switches(model, "Net")
    for train in (False, False, True):
        model[0].requires_grad_(train)
        check.passed()
        model.eval()

    assert caplog.text.count("not exact: Net: a step changes 0/0.bias.requires_grad") == 1
    assert "training" not in caplog.text
