"""Mistakes in a user's own code: each is one message that says what would do."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.commands import tried_alone
from tests.training.examples import changed
from tests.training.ranks import run_ranks

GOOD = """
import torch
from torch import nn
from torch.utils.data import IterableDataset

class Rows:
    def __init__(self, split, rows=64, width=4):
        self.rows, self.width = rows, width
    def __len__(self):
        return self.rows
    def __getitem__(self, index):
        return torch.full((self.width,), float(index)), index % 2

def data(split, **options):
    return Rows(split, **options)

def model(width=4, classes=2):
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, classes))

def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def metric(model, batch):
    return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}
"""
# what is wrong -> (further code, further keys, what is said)
Mistake = tuple[str, dict[str, dict[str, Any]], str]


MISTAKES: dict[str, Mistake] = {
    "a file that is not there": ("", {"model": {"name": "mein.py:model"}}, "mein.py is no file below"),
    "a name that is not in it": (
        "",
        {"model": {"name": "mine.py:modle"}},
        "has no modle; did you mean model?",
    ),
    "no name at all": ("", {"model": {"name": "mine.py:"}}, "write FILE.py:NAME or package.module:NAME"),
    "a package that is not there": (
        "",
        {"model": {"name": "no_such.thing:Net"}},
        "there is no module no_such",
    ),
    "a module that is not in a package": ("", {"model": {"name": "torch.nnn:Net"}}, "no module torch.nnn"),
    "a value in place of a function": (
        "answer = 42",
        {"model": {"name": "mine.py:answer"}},
        "is a int, which",
    ),
    "an import that fails": ("import no_such_library", {}, "No module named 'no_such_library' (mine.py:"),
    "a slip of syntax": ("def model(:", {}, "SyntaxError: invalid syntax (mine.py:"),
    "an unknown option": ("", {"model": {"options": {"widht": 4}}}, "unexpected keyword argument 'widht'"),
    "an option that is missing": ("def model(depth): ...", {}, "missing a required argument: 'depth'"),
    "a constructor that fails": (
        "def model():\n    raise ValueError('no such depth')",
        {},
        "mine.py:model': ValueError: no such depth (mine.py:",
    ),
    "a model that is a dictionary": (
        "def model():\n    return {}",
        {},
        "gave a dict; expected: NAME(**model",
    ),
    "a model that has nothing to train": (
        "def model():\n    return nn.ReLU()",
        {},
        "has no parameter that could",
    ),
    "a model of another width": ("", {"model": {"options": {"width": 5}}}, "mat1 and mat2 shapes cannot be"),
    "a model that gives two tensors": (
        "class model(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"
        "    def forward(self, x):\n        return super().forward(x), x",
        {},
        "loss.name: is needed: model gives a tuple",
    ),
    "classes beyond those of the model": (
        "",
        {"model": {"options": {"classes": 1}}},
        "Target 1 is out of bounds",
    ),
    "token ids beyond the vocabulary": (
        "def data(split):\n    return [(torch.tensor([n]), 0) for n in range(64)]\n"
        "def model():\n    return nn.Sequential(nn.Embedding(9, 2), nn.Flatten())",
        {},
        "IndexError: index out of range in self",
    ),
    "a data set without a length": (
        "class data:\n    def __init__(self, split): ...\n    def __getitem__(self, index): ...",
        {},
        "gave a data with __getitem__ and without __len__; expected: NAME(split",
    ),
    "an empty data set": ("def data(split):\n    return []", {}, "'train': holds no samples"),
    "no data set": ("def data(split):\n    return 7", {}, "gave a int; expected: NAME(split"),
    "no training data": ("def data(split):\n    return None", {}, "gave a NoneType; expected: NAME(split"),
    "data that know no split": ("def data():\n    return []", {}, "its signature is (): too many positional"),
    "a generator, which ends": (
        "def data(split):\n    yield 1",
        {},
        "gave a generator, which can be read once; give what makes it",
    ),
    "a sample that fails": (
        "class Rows(Rows):\n    def __getitem__(self, index):\n        return {}['price']",
        {},
        "KeyError: 'price' (mine.py:",
    ),
    "samples of several shapes": (
        "class Rows(Rows):\n    def __getitem__(self, index):\n        return torch.zeros(1 + index), 0",
        {},
        "samples make no batch: stack expects each tensor to be equal size",
    ),
    "samples that are objects": (
        "class Rows(Rows):\n    def __getitem__(self, index):\n        return object()",
        {},
        "samples make no batch: default_collate: batch must contain tensors",
    ),
    "a batch that no process can be sent": (
        "def together(samples):\n    return {'rows': lambda: samples}",
        {"data": {"collate": "mine.py:together", "workers": 1}},
        "a batch holds a function; tensors, numbers and text do",
    ),
    "a collate of two arguments": (
        "def together(one, other): ...",
        {"data": {"collate": "mine.py:together"}},
        "its signature is (one, other): missing a required argument: 'other'",
    ),
    "a stream for several readers": (
        "class Endless(IterableDataset):\n    def __iter__(self):\n        yield torch.zeros(4), 0\n"
        "def data(split):\n    return Endless() if split == 'train' else None",
        {"data": {"workers": 2}},
        "data.workers = 2: an iterable is read by one process; set 0 or 1",
    ),
    "a stream and epochs": (
        "class Endless(IterableDataset):\n    def __iter__(self):\n        yield torch.zeros(4), 0\n"
        "def data(split):\n    return Endless() if split == 'train' else None",
        {"run": {"steps": 0, "epochs": 1.0}},
        "run.epochs = 1.0: the data have no length; set run.steps",
    ),
    "a held-out stream without a length": (
        "class data(IterableDataset):\n    def __init__(self, split): ...\n    def __iter__(self):\n"
        "        yield torch.zeros(4), 0",
        {},
        "has no length; give it __len__, or return None for 'val'",
    ),
    "an empty stream": (
        "class Empty(IterableDataset):\n    def __iter__(self):\n        return iter(())\n"
        "def data(split):\n    return Empty() if split == 'train' else None",
        {},
        "ValueError: it is empty",
    ),
    "a batch larger than the data": (
        "",
        {"data": {"options": {"rows": 3}}},
        "run.batch_size = 8: the training",
    ),
    "a batch of columns and a model without a loss": (
        "def together(samples):\n    return {'input': torch.stack([row for row, _ in samples])}",
        {"data": {"collate": "mine.py:together"}},
        "loss.name: is needed: Sequential gives no `loss` for input",
    ),
    "targets that are numbers": (
        "class Rows(Rows):\n    def __getitem__(self, index):\n        return torch.zeros(4), 0.5",
        {},
        "loss.name: is needed for batches that are neither (inputs, classes) nor named columns",
    ),
    "a loss of one argument": (
        "def own(batch): ...",
        {"loss": {"name": "mine.py:own"}},
        "its signature is (batch): too many positional arguments; expected: NAME(model, batch",
    ),
    "a loss that is a number": (
        "def own(model, batch):\n    return loss(model, batch).item()",
        {"loss": {"name": "mine.py:own"}},
        "gave a float; expected: NAME(model, batch, **loss.options) -> Tensor ()",
    ),
    "a loss of each sample": (
        "def own(model, batch):\n    return model(batch[0]).sum(1)",
        {"loss": {"name": "mine.py:own"}},
        "gave a tensor of shape [8]; its mean () is wanted",
    ),
    "a loss without a gradient": (
        "def own(model, batch):\n    return loss(model, batch).detach()",
        {"loss": {"name": "mine.py:own"}},
        "does not depend on any parameter of the model",
    ),
    "a loss that is no number": (
        "def own(model, batch):\n    return loss(model, batch) * float('nan')",
        {"loss": {"name": "mine.py:own"}},
        "the loss of the first batch is nan, before any step",
    ),
    "a loss with a slip": (
        "def own(model, batch):\n    return model(batch['rows'])",
        {"loss": {"name": "mine.py:own"}},
        "loss.name = 'mine.py:own': TypeError: list indices must be integers or slices, not str (mine.py:",
    ),
    "a count that is a mean": (
        "def count(batch):\n    return batch[1].float().mean()",
        {"loss": {"mean_over": "mine.py:count"}},
        "loss.mean_over = 'mine.py:count': gave a Tensor; expected: NAME(batch) -> int or Tensor ()",
    ),
    "a metric of three values": (
        "def own(model, batch):\n    return {'error': (1.0, 2.0, 3.0)}",
        {"metric": {"name": "mine.py:own"}},
        "gave 3 values for 'error'; expected: NAME(model, batch",
    ),
    "metrics that are no dictionary": (
        "def own(model, batch):\n    return 0.5",
        {"metric": {"name": "mine.py:own"}},
        "gave a float; expected: NAME(model, batch, **metric.options) -> dict",
    ),
    "a metric with a slip": (
        "def own(model, batch):\n    return {'accuracy': batch['targets']}",
        {"metric": {"name": "mine.py:own"}},
        "metric.name = 'mine.py:own': TypeError: list indices must be integers or slices, not str (mine.py:",
    ),
    "a held-out sample that fails": (
        "class Held(Rows):\n    def __getitem__(self, index):\n        return {}['price']\n"
        "def data(split):\n    return Rows(split) if split == 'train' else Held(split)",
        {},
        "KeyError: 'price' (mine.py:",
    ),
    "an optimizer that is none": (
        "def own(parameters, lr):\n    return parameters",
        {"optimizer": {"name": "mine.py:own"}},
        "gave a list; expected: NAME(parameters, lr",
    ),
    "an optimizer that knows no rate": (
        "def own(parameters): ...",
        {"optimizer": {"name": "mine.py:own"}},
        "its signature is (parameters): got an unexpected keyword argument 'lr'",
    ),
    "a path and a name": (
        "",
        {"data": {"path": "data/digits"}},
        "set one of path (now 'data/digits') and name",
    ),
    "an own model to be cut": (
        "",
        {"parallel": {"strategy": "tensor"}},
        "can spread the model 'gpt' only, not 'mine.py:model'; ddp and fsdp take every model",
    ),
}


def table_of(folder: Path, keys: dict[str, dict[str, Any]]) -> dict[str, Any]:
    table = {
        "run": {"directory": str(folder / "run"), "steps": 2, "batch_size": 8},
        "model": {"name": "mine.py:model"},
        "data": {"name": "mine.py:data"},
        "metrics": {"progress": False},
        "checkpoint": {"every_steps": 0},
    }
    return changed(table, **keys)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Lays the user's file into a folder of the test, from which the run is started."""
    monkeypatch.chdir(tmp_path)

    def lay(more: str) -> Path:
        (tmp_path / "mine.py").write_text(GOOD + textwrap.dedent(more) + "\n")
        return tmp_path

    return lay


def test_without_a_mistake_it_trains(place: Callable[[str], Path]) -> None:
    folder = place("")
    own = {"loss": {"name": "mine.py:loss"}, "metric": {"name": "mine.py:metric"}}

    assert tried_alone(table_of(folder, own), folder)[0] == 0


def test_there_are_forty() -> None:
    assert len(MISTAKES) >= 40


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message(mistake: str, place: Callable[[str], Path]) -> None:
    more, keys, message = MISTAKES[mistake]
    folder = place(more)

    status, said = tried_alone(table_of(folder, keys), folder)

    assert message in said
    assert status == 65
    assert said.startswith("error: ")
    assert "Traceback" not in said
    assert not (folder / "run/checkpoints/step-2").exists()  # told at the start, and not first at the end


@pytest.mark.parametrize("mistake", ["a sample that fails", "a loss with a slip", "a model of another width"])
def test_on_several_ranks_the_first_says_it_alone(mistake: str, place: Callable[[str], Path]) -> None:
    more, keys, message = MISTAKES[mistake]
    folder = place(more)

    (status, said), (other_status, other_said) = run_ranks(tried_in, 2, folder, table_of(folder, keys))

    assert (status, other_status) == (65, 65)
    assert message in said
    assert said.count("error: ") == 1
    assert other_said == ""


def tried_in(folder: Path, table: dict[str, Any]) -> tuple[int, str]:
    os.chdir(folder)
    return tried_alone(table, folder)


def test_a_mistake_in_the_midst_of_a_run_is_one_message_too(place: Callable[[str], Path]) -> None:
    folder = place(
        "def own(model, batch):\n    assert 63 not in batch[0], 'row 63'\n    return loss(model, batch)"
    )
    keys = {"loss": {"name": "mine.py:own"}, "run": {"steps": 8}}

    status, said = tried_alone(table_of(folder, keys), folder)

    assert status == 65
    assert "loss.name = 'mine.py:own': AssertionError: row 63 (mine.py:" in said
    assert "Traceback" not in said


ROOTED = """
    def own(model, batch):
        return loss(model, batch) + (model[0].weight.sum() * 0).abs().sqrt()
"""


@pytest.mark.parametrize(
    "keys",
    [
        {"checkpoint": {"every_steps": 1}},
        {"run": {"steps": 1}},
        {"run": {"steps": 1}, "parallel": {"strategy": "fsdp"}},
    ],
    ids=["in the midst", "at the end", "sharded"],
)
def test_weights_that_are_no_numbers_are_not_saved(
    keys: dict[str, dict[str, Any]], place: Callable[[str], Path]
) -> None:
    """The loss of the step is a number, and its gradient is none."""
    folder = place(ROOTED)
    keys = changed({"loss": {"name": "mine.py:own"}, "run": {"steps": 2}}, **keys)

    said = run_ranks(tried_in, 2, folder, table_of(folder, keys))

    assert [status for status, _ in said] == [65, 65]
    assert "the weights of rank 0 are no finite numbers after step 1" in said[0][1]
    assert said[1][1] == ""
    assert not list((folder / "run/checkpoints").glob("step-*"))


def test_the_traceback_is_shown_when_asked(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_FLEET_TRACEBACK", "1")
    folder = place("import no_such_library")

    assert "Traceback (most recent call last)" in tried_alone(table_of(folder, {}), folder)[1]
