"""Mistakes in a user's own code: each gets one message that says what is allowed."""

import json
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


WITH_BUFFER = """
class model(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("held", {value}{options})
    def forward(self, rows):
        {step}
        return super().forward(rows) + self.held.float().mean()
"""
MISTAKES: dict[str, Mistake] = {
    "a buffer that is expanded": (
        WITH_BUFFER.format(value="torch.ones(1).expand(2)", options="", step="pass"),
        {},
        "mine.py:model': several elements of buffer model.held share memory",
    ),
    "a buffer that grows": (
        WITH_BUFFER.format(
            value="torch.ones(1)", options="", step="self.held = torch.cat([self.held, self.held])"
        ),
        {},
        "mine.py:model': buffer model.held changes its shape in a step, from [1] to [2], and could",
    ),
    "a sparse buffer": (
        WITH_BUFFER.format(value="torch.eye(2).to_sparse()", options="", step="pass"),
        {},
        "mine.py:model': its state_dict holds a sparse tensor at ['model.held'], which a checkpoint",
    ),
    "a quantized buffer": (
        WITH_BUFFER.format(
            value="torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8)", options="", step="pass"
        ).replace(".float()", ".dequantize()"),
        {},
        "mine.py:model': its state_dict holds a quantized tensor at ['model.held'], which a checkpoint",
    ),
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
        "is an int, which",
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
    "no data set": ("def data(split):\n    return 7", {}, "gave an int; expected: NAME(split"),
    "no training data": ("def data(split):\n    return None", {}, "gave None; expected: NAME(split"),
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
        "samples cannot form a batch: stack expects each tensor to be equal size",
    ),
    "samples that are objects": (
        "class Rows(Rows):\n    def __getitem__(self, index):\n        return object()",
        {},
        "samples cannot form a batch: default_collate: batch must contain tensors",
    ),
    "a batch that no process can be sent": (
        "def together(samples):\n    return {'rows': lambda: samples}",
        {"data": {"collate": "mine.py:together", "workers": 1}},
        "a batch holds a function; allowed: tensors, numbers and text",
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
        "gave a tensor of shape [8], not the mean ()",
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
    "a program that ends when it is imported": (
        "import sys\nsys.exit(2)",
        {},
        "ends the program: SystemExit: 2 (mine.py:",
    ),
    "a sample that ends the program": (
        "class Rows(Rows):\n    def __getitem__(self, index):\n        raise SystemExit(0)",
        {},
        "ends the program: SystemExit: 0 (mine.py:",
    ),
    "a sample that ends the program in a reader": (
        "import os\nhere = os.getpid()\nclass Rows(Rows):\n    def __getitem__(self, index):\n"
        "        if os.getpid() != here:\n            raise SystemExit(0)\n"
        "        return super().__getitem__(index)",
        {"data": {"workers": 1}},
        "ends the program: SystemExit: 0 (mine.py:",
    ),
    "a file of a package": (
        "from .layers import model",
        {},
        "name a module of a package as package.module:NAME, not as FILE.py",
    ),
    "a loader in place of a data set": (
        "def data(split):\n    return torch.utils.data.DataLoader(Rows(split), batch_size=8)",
        {},
        "gave a DataLoader, which has batches; give its data set",
    ),
    "columns in place of samples": (
        "def data(split):\n    return {'rows': torch.zeros(64, 4), 'labels': torch.zeros(64)}",
        {},
        "gave a dict of 'rows', 'labels'; give samples by number, of one split",
    ),
    "arrays in place of samples": (
        "def data(split):\n    return torch.zeros(64, 4), torch.zeros(64)",
        {},
        "gave a tuple of arrays, not samples; give torch.utils.data.TensorDataset(*them)",
    ),
    "a table whose [] takes columns": (
        "class data(Rows):\n    iloc = None",
        {},
        "gave a data, whose [] takes columns; give rows by number",
    ),
    "a path in place of a data set": ("def data(split):\n    return 'train.csv'", {}, "gave a str; expected"),
    "a length that is no number": (
        "class Rows(Rows):\n    def __len__(self):\n        return 64.0",
        {},
        "'train': its len(): TypeError: 'float' object cannot be interpreted as an integer",
    ),
    "columns of data of one's own": (
        "",
        {"data": {"columns": ["rows"]}},
        "data: columns = ('rows',) is for data.path",
    ),
    "an augmentation that nothing would do": (
        "",
        {"data": {"augmentation": "shift"}},
        "augmentation = 'shift' is for data.path",
    ),
    "options of adamw": (
        "",
        {"optimizer": {"options": {"amsgrad": True}}},
        "options = {'amsgrad': True} is for an optimizer of your own, not for adamw",
    ),
    "momentum that is not handed on": (
        "",
        {"optimizer": {"name": "torch.optim:RMSprop", "momentum": 0.5}},
        "momentum = 0.5 is not handed to torch.optim:RMSprop; set it in optimizer.options",
    ),
    "a decay that no parameter would have": (
        "",
        {"optimizer": {"name": "torch.optim:AdamW", "options": {"weight_decay": 0.3}}},
        "options.weight_decay = 0.3 has no effect, as torch.optim:AdamW gets a decay for each parameter; "
        "set optimizer.weight_decay",
    ),
    "options of no loss": ("", {"loss": {"options": {"power": 2}}}, "is for a function of your own; name it"),
    "options of no metric": ("", {"metric": {"options": {"k": 2}}}, "is for a function of your own; name it"),
    "an optimizer of another model": (
        "def own(parameters, lr):\n    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=lr)",
        {"optimizer": {"name": "mine.py:own"}},
        "gave an optimizer without any of the given parameters",
    ),
    "an optimizer of other gradients": (
        "",
        {"optimizer": {"name": "torch.optim:SparseAdam"}},
        "optimizer.name = 'torch.optim:SparseAdam': RuntimeError: SparseAdam does not support dense",
    ),
    "a model on meta": (
        "def model():\n    return nn.Linear(4, 2, device='meta')",
        {},
        "has parameters on the device 'meta', which hold nothing",
    ),
    "a loss that is complex": (
        "def own(model, batch):\n    return loss(model, batch) * 1j",
        {"loss": {"name": "mine.py:own"}},
        "gave a torch.complex64, not a real number",
    ),
    "a loss that keeps its graph": (
        "kept = []\ndef own(model, batch):\n    kept.append(loss(model, batch))\n    return sum(kept)",
        {"loss": {"name": "mine.py:own"}},
        "a loss depends on the graph of an earlier step, which is freed; detach tensors that your code keeps",
    ),
    "a metric of nothing": (
        "def own(model, batch):\n    return {'error': None}",
        {"metric": {"name": "mine.py:own"}},
        "metric.name = 'mine.py:own': gave None for 'error'; expected: NAME(model, batch",
    ),
    "a metric of each sample": (
        "def own(model, batch):\n    return {'error': torch.zeros(8)}",
        {"metric": {"name": "mine.py:own"}},
        "metric.name = 'mine.py:own': gave a tensor of shape [8] for 'error'",
    ),
    "a metric that is called loss": (
        "def own(model, batch):\n    return {'loss': 1.0}",
        {"metric": {"name": "mine.py:own"}},
        "gave 'loss' as a name; allowed: text except 'loss', which is always reported",
    ),
    "metrics without a name": (
        "def own(model, batch):\n    return {1: 1.0}",
        {"metric": {"name": "mine.py:own"}},
        "gave 1 as a name; allowed: text",
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
def place(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Return a function that writes the user's file into a folder of the test, and starts from there."""
    monkeypatch.chdir(tmp_path)

    def lay(more: str) -> Path:
        (tmp_path / "mine.py").write_text(GOOD + textwrap.dedent(more) + "\n")
        return tmp_path

    return lay


def test_without_a_mistake_it_trains(place):
    folder = place("")
    own = {"loss": {"name": "mine.py:loss"}, "metric": {"name": "mine.py:metric"}}

    assert tried_alone(table_of(folder, own), folder)[0] == 0


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message(mistake, place):
    more, keys, message = MISTAKES[mistake]
    folder = place(more)

    status, said = tried_alone(table_of(folder, keys), folder)

    assert message in said
    assert status == 65
    assert said.startswith("error: ")
    assert "Traceback" not in said
    assert not (folder / "run/checkpoints/step-2").exists()  # told at the start, and not first at the end


@pytest.mark.parametrize("mistake", ["a sample that fails", "a loss with a slip", "a model of another width"])
def test_on_several_ranks_the_first_says_it_alone(mistake, place):
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


def test_a_mistake_in_the_midst_of_a_run_is_one_message_too(place):
    folder = place(
        "def own(model, batch):\n    assert 63 not in batch[0], 'row 63'\n    return loss(model, batch)"
    )
    keys = {"loss": {"name": "mine.py:own"}, "run": {"steps": 8}}

    status, said = tried_alone(table_of(folder, keys), folder)

    assert status == 65
    assert "loss.name = 'mine.py:own': AssertionError: row 63 (mine.py:" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "model",
    [
        """
        class model(nn.Linear):
            steps = 0
            def __init__(self):
                super().__init__(4, 2)
            def forward(self, rows):
                self.steps += self.training
                return super().forward(rows) * (1 + self.steps / 10)
            def get_extra_state(self):
                return {"steps": self.steps}
            def set_extra_state(self, state):
                self.steps = state["steps"]
        """,
        """
        class model(nn.Linear):
            def __init__(self):
                super().__init__(4, 2)
                self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
            def forward(self, rows):
                return super().forward(rows) * self.phase.abs()
        """,
    ],
    ids=["extra state", "complex numbers"],
)
def test_a_model_of_more_than_plain_numbers_resumes_with_the_same_bits(model, place):
    folder = place(textwrap.dedent(model))
    whole = changed(table_of(folder, {"schedule": {"name": "constant"}}), run={"steps": 5})
    broken = changed(whole, run={"directory": str(folder / "broken")})

    ends = [tried_alone(table, folder) for table in (whole, changed(broken, run={"steps": 2}), broken)]

    results = [json.loads((folder / name / "result.json").read_text()) for name in ("run", "broken")]
    assert [status for status, _ in ends] == [0, 0, 0], ends
    assert results[0]["parameters_sha256"] == results[1]["parameters_sha256"]


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (
            WITH_BUFFER.format(
                value="torch.ones(1)",
                options=", persistent=False",
                step="self.held.add_(rows.mean().detach())",
            ),
            "model.held",
        ),
        (
            WITH_BUFFER.format(value="torch.ones(1)", options="", step="self.seen = self.seen + 1").replace(
                "        self.register", "        self.seen = 0\n        self.register"
            ),
            "model.seen",
        ),
    ],
    ids=["a buffer that is not persistent", "a number"],
)
def test_state_that_is_in_no_checkpoint_is_named(
    model: str, named: str, place: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = place(model)

    status, said = tried_alone(table_of(folder, {}), folder)

    assert status == 0
    assert f"a step changes {named}, which is in no checkpoint" in said + caplog.text


@pytest.mark.parametrize(
    "model",
    [
        WITH_BUFFER.format(value="torch.ones(2).to(torch.float8_e4m3fn)", options="", step="pass"),
        WITH_BUFFER.format(
            value="torch.ones(2)",
            options="",
            step="hasattr(self, 'late') or self.register_buffer('late', torch.ones(1))",
        ),
    ],
    ids=["of eight bits", "made by the first pass"],
)
def test_a_buffer_of_a_rare_kind_is_trained_with(model: str, place: Callable[[str], Path]) -> None:
    folder = place(model)

    ends = [tried_alone(table_of(folder, {}), folder)[0] for _ in range(2)]

    assert ends == [0, 0]


def test_metrics_that_are_others_for_another_batch_are_one_message(place: Callable[[str], Path]) -> None:
    folder = place(
        "def own(model, batch):\n    names = ['error', 'last'] if 63 in batch[0] else ['error']\n"
        "    return {name: 1.0 for name in names}"
    )

    status, said = tried_alone(table_of(folder, {"metric": {"name": "mine.py:own"}}), folder)

    assert (status, "gave 'error', 'last', and for another batch 'error'; expected" in said) == (65, True), (
        said
    )


def test_a_metric_that_is_no_number_is_left_out_of_what_is_written(place):
    """JSON has no NaN: a strict reader would refuse all of result.json."""
    folder = place("def own(model, batch):\n    return {'error': float('nan')}")

    status, said = tried_alone(table_of(folder, {"metric": {"name": "mine.py:own"}}), folder)

    assert status == 0, said
    assert json.loads((folder / "run/result.json").read_text())["metric"] is None
    assert "NaN" not in (folder / "run/metrics.jsonl").read_text()


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
def test_weights_that_are_no_numbers_are_not_saved(keys, place):
    """The loss of the step is finite, and its gradient is NaN."""
    folder = place(ROOTED)
    keys = changed({"loss": {"name": "mine.py:own"}, "run": {"steps": 2}}, **keys)

    said = run_ranks(tried_in, 2, folder, table_of(folder, keys))

    assert [status for status, _ in said] == [65, 65]
    assert "the weights of rank 0 are no finite numbers after step 1" in said[0][1]
    assert said[1][1] == ""
    assert not list((folder / "run/checkpoints").glob("step-*"))


def test_the_traceback_is_shown_when_asked(place, monkeypatch):
    monkeypatch.setenv("GPU_FLEET_TRACEBACK", "1")
    folder = place("import no_such_library")

    assert "Traceback (most recent call last)" in tried_alone(table_of(folder, {}), folder)[1]
