"""Mistakes in a user's own code: each gets one message that says what is allowed."""

import json
import os
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.training.commands import refused, tried_alone
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
# further code, further keys, what is said
Mistake = tuple[str, dict[str, dict[str, Any]], str]


def code(start: str, body: str, message: str, **keys: dict[str, Any]) -> Mistake:
    return f"{start}: {body}", keys, message


OWN: dict[str, Any] = {"name": "mine.py:own"}


def keys(message: str, **keys: dict[str, Any]) -> Mistake:
    return "", keys, message


sample = partial(code, "class Rows(Rows):\n    def __getitem__(self, index)")
data, model = partial(code, "def data(split)"), partial(code, "def model()")
loss, metric = (partial(code, "def own(model, batch)", **{section: OWN}) for section in ("loss", "metric"))


def with_buffer(value: str = "torch.ones(1)", step: str = "pass", options: str = "") -> str:
    return f"""
class model(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.seen = 0
        self.register_buffer("held", {value}{options})
    def forward(self, rows):
        {step}
        return super().forward(rows) + self.held.float().mean()
"""


STREAM = """
class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(4), 0
def data(split):
    return Endless() if split == "train" else None
"""
MISTAKES: list[Mistake] = [
    (
        with_buffer("torch.ones(1).expand(2)"),
        {},
        "mine.py:model': several elements of buffer model.held share memory",
    ),
    (
        with_buffer(step="self.held = torch.cat([self.held, self.held])"),
        {},
        "mine.py:model': buffer model.held changes its shape in a step, from [1] to [2], and could",
    ),
    (
        with_buffer("torch.eye(2).to_sparse()"),
        {},
        "mine.py:model': its state_dict holds a sparse tensor at ['model.held'], which a checkpoint",
    ),
    (
        with_buffer("torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8)").replace(
            ".float()", ".dequantize()"
        ),
        {},
        "mine.py:model': its state_dict holds a quantized tensor at ['model.held'], which a checkpoint",
    ),
    keys("mein.py is no file below", model={"name": "mein.py:model"}),
    keys("has no modle; did you mean model?", model={"name": "mine.py:modle"}),
    keys("write FILE.py:NAME or package.module:NAME", model={"name": "mine.py:"}),
    keys("there is no module no_such", model={"name": "no_such.thing:Net"}),
    keys("no module torch.nnn", model={"name": "torch.nnn:Net"}),
    ("answer = 42", {"model": {"name": "mine.py:answer"}}, "is an int, which"),
    ("import no_such_library", {}, "No module named 'no_such_library' (mine.py:"),
    ("def model(:", {}, "SyntaxError: invalid syntax (mine.py:"),
    keys("unexpected keyword argument 'widht'", model={"options": {"widht": 4}}),
    ("def model(depth): ...", {}, "missing a required argument: 'depth'"),
    model("raise ValueError('no such depth')", "mine.py:model': ValueError: no such depth (mine.py:"),
    model("return {}", "gave a dict; expected: NAME(**model"),
    model("return nn.ReLU()", "has no parameter that could"),
    keys("mat1 and mat2 shapes cannot be", model={"options": {"width": 5}}),
    (
        "class model(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"
        "    def forward(self, x):\n        return super().forward(x), x",
        {},
        "loss.name: is needed: model gives a tuple",
    ),
    keys("Target 1 is out of bounds", model={"options": {"classes": 1}}),
    (
        "def data(split):\n    return [(torch.tensor([n]), 0) for n in range(64)]\n"
        "def model():\n    return nn.Sequential(nn.Embedding(9, 2), nn.Flatten())",
        {},
        "IndexError: index out of range in self",
    ),
    (
        "class data:\n    def __init__(self, split): ...\n    def __getitem__(self, index): ...",
        {},
        "gave a data with __getitem__ and without __len__; expected: NAME(split",
    ),
    data("return []", "'train': holds no samples"),
    data("return 7", "gave an int; expected: NAME(split"),
    data("return None", "gave None; expected: NAME(split"),
    ("def data():\n    return []", {}, "its signature is (): too many positional"),
    data("yield 1", "gave a generator, which can be read once; give what makes it"),
    sample("return {}['price']", "KeyError: 'price' (mine.py:"),
    sample(
        "return torch.zeros(1 + index), 0",
        "samples cannot form a batch: stack expects each tensor to be equal size",
    ),
    sample("return object()", "samples cannot form a batch: default_collate: batch must contain tensors"),
    (
        "def together(samples):\n    return {'rows': lambda: samples}",
        {"data": {"collate": "mine.py:together", "workers": 1}},
        "a batch holds a function; allowed: tensors, numbers and text",
    ),
    (
        "def together(one, other): ...",
        {"data": {"collate": "mine.py:together"}},
        "its signature is (one, other): missing a required argument: 'other'",
    ),
    (STREAM, {"data": {"workers": 2}}, "data.workers = 2: an iterable is read by one process; set 0 or 1"),
    (
        STREAM,
        {"run": {"steps": 0, "epochs": 1.0}},
        "run.epochs = 1.0: the data have no length; set run.steps",
    ),
    (
        "class data(IterableDataset):\n    def __init__(self, split): ...\n    def __iter__(self):\n"
        "        yield torch.zeros(4), 0",
        {},
        "has no length; give it __len__, or return None for 'val'",
    ),
    (
        "class Empty(IterableDataset):\n    def __iter__(self):\n        return iter(())\n"
        "def data(split):\n    return Empty() if split == 'train' else None",
        {},
        "ValueError: it is empty",
    ),
    keys("run.batch_size = 8: the training", data={"options": {"rows": 3}}),
    (
        "def together(samples):\n    return {'input': torch.stack([row for row, _ in samples])}",
        {"data": {"collate": "mine.py:together"}},
        "loss.name: is needed: Sequential gives no `loss` for input",
    ),
    sample(
        "return torch.zeros(4), 0.5",
        "loss.name: is needed for batches that are neither (inputs, classes) nor named columns",
    ),
    (
        "def own(batch): ...",
        {"loss": OWN},
        "its signature is (batch): too many positional arguments; expected: NAME(model, batch",
    ),
    loss(
        "return loss(model, batch).item()",
        "gave a float; expected: NAME(model, batch, **loss.options) -> Tensor ()",
    ),
    loss("return model(batch[0]).sum(1)", "gave a tensor of shape [8], not the mean ()"),
    loss("return loss(model, batch).detach()", "does not depend on any parameter of the model"),
    loss(
        "return loss(model, batch) * float('nan')",
        "the loss of the first batch is nan, before any step",
    ),
    loss(
        "return model(batch['rows'])",
        "loss.name = 'mine.py:own': TypeError: list indices must be integers or slices, not str (mine.py:",
    ),
    (
        "def count(batch):\n    return batch[1].float().mean()",
        {"loss": {"mean_over": "mine.py:count"}},
        "loss.mean_over = 'mine.py:count': gave a Tensor; expected: NAME(batch) -> int or Tensor ()",
    ),
    metric(
        "return {'error': (1.0, 2.0, 3.0)}",
        "gave 3 values for 'error'; expected: NAME(model, batch",
    ),
    metric("return 0.5", "gave a float; expected: NAME(model, batch, **metric.options) -> dict"),
    metric(
        "return {'accuracy': batch['targets']}",
        "metric.name = 'mine.py:own': TypeError: list indices must be integers or slices, not str (mine.py:",
    ),
    (
        "class Held(Rows):\n    def __getitem__(self, index):\n        return {}['price']\n"
        "def data(split):\n    return Rows(split) if split == 'train' else Held(split)",
        {},
        "KeyError: 'price' (mine.py:",
    ),
    (
        "def own(parameters, lr):\n    return parameters",
        {"optimizer": OWN},
        "gave a list; expected: NAME(parameters, lr",
    ),
    (
        "def own(parameters): ...",
        {"optimizer": OWN},
        "its signature is (parameters): got an unexpected keyword argument 'lr'",
    ),
    ("import sys\nsys.exit(2)", {}, "ends the program: SystemExit: 2 (mine.py:"),
    sample("raise SystemExit(0)", "ends the program: SystemExit: 0 (mine.py:"),
    (
        "import os\nhere = os.getpid()\nclass Rows(Rows):\n    def __getitem__(self, index):\n"
        "        if os.getpid() != here:\n            raise SystemExit(0)\n"
        "        return super().__getitem__(index)",
        {"data": {"workers": 1}},
        "ends the program: SystemExit: 0 (mine.py:",
    ),
    ("from .layers import model", {}, "name a module of a package as package.module:NAME, not as FILE.py"),
    data(
        "return torch.utils.data.DataLoader(Rows(split), batch_size=8)",
        "gave a DataLoader, which has batches; give its data set",
    ),
    data(
        "return {'rows': torch.zeros(64, 4), 'labels': torch.zeros(64)}",
        "gave a dict of 'rows', 'labels'; give samples by number, of one split",
    ),
    data(
        "return torch.zeros(64, 4), torch.zeros(64)",
        "gave a tuple of arrays, not samples; give torch.utils.data.TensorDataset(*them)",
    ),
    ("class data(Rows):\n    iloc = None", {}, "gave a data, whose [] takes columns; give rows by number"),
    data("return 'train.csv'", "gave a str; expected"),
    (
        "class Rows(Rows):\n    def __len__(self):\n        return 64.0",
        {},
        "'train': its len(): TypeError: 'float' object cannot be interpreted as an integer",
    ),
    keys("data: columns = ('rows',) is for data.path", data={"columns": ["rows"]}),
    keys("augmentation = 'shift' is for data.path", data={"augmentation": "shift"}),
    keys(
        "options = {'amsgrad': True} is for an optimizer of your own, not for adamw",
        optimizer={"options": {"amsgrad": True}},
    ),
    keys(
        "momentum = 0.5 is not handed to torch.optim:RMSprop; set it in optimizer.options",
        optimizer={"name": "torch.optim:RMSprop", "momentum": 0.5},
    ),
    keys(
        "options.weight_decay = 0.3 has no effect, as torch.optim:AdamW gets a decay for each parameter; "
        "set optimizer.weight_decay",
        optimizer={"name": "torch.optim:AdamW", "options": {"weight_decay": 0.3}},
    ),
    keys("is for a function of your own; name it", loss={"options": {"power": 2}}),
    keys("is for a function of your own; name it", metric={"options": {"k": 2}}),
    (
        "def own(parameters, lr):\n    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=lr)",
        {"optimizer": OWN},
        "gave an optimizer without any of the given parameters",
    ),
    keys(
        "optimizer.name = 'torch.optim:SparseAdam': RuntimeError: SparseAdam does not support dense",
        optimizer={"name": "torch.optim:SparseAdam"},
    ),
    model("return nn.Linear(4, 2, device='meta')", "has parameters on the device 'meta', which hold nothing"),
    loss("return loss(model, batch) * 1j", "gave a torch.complex64, not a real number"),
    (
        "kept = []\ndef own(model, batch):\n    kept.append(loss(model, batch))\n    return sum(kept)",
        {"loss": OWN},
        "a loss depends on the graph of an earlier step, which is freed; detach tensors that your code keeps",
    ),
    metric(
        "return {'error': None}",
        "metric.name = 'mine.py:own': gave None for 'error'; expected: NAME(model, batch",
    ),
    metric(
        "return {'error': torch.zeros(8)}",
        "metric.name = 'mine.py:own': gave a tensor of shape [8] for 'error'",
    ),
    metric(
        "return {'loss': 1.0}",
        "gave 'loss' as a name; allowed: text except 'loss', which is always reported",
    ),
    metric("return {1: 1.0}", "gave 1 as a name; allowed: text"),
    keys("set one of path (now 'data/digits') and name", data={"path": "data/digits"}),
    keys(
        "can spread the model 'gpt' only, not 'mine.py:model'; ddp and fsdp take every model",
        parallel={"strategy": "tensor"},
    ),
]


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


@pytest.mark.parametrize(("more", "keys", "message"), MISTAKES, ids=[message for _, _, message in MISTAKES])
def test_a_mistake_is_one_message(more, keys, message, place):
    folder = place(more)

    status, said = tried_alone(table_of(folder, keys), folder)

    assert message in said
    assert status == 65
    assert said.startswith("error: ")
    assert "Traceback" not in said
    assert not (folder / "run/checkpoints/step-2").exists()  # told at the start, and not first at the end


@pytest.mark.parametrize(
    ("more", "keys", "message"),
    [
        sample("return {}['price']", "KeyError: 'price' (mine.py:"),
        loss("return model(batch['rows'])", "TypeError: list indices must be integers or slices"),
        keys("mat1 and mat2 shapes cannot be", model={"options": {"width": 5}}),
    ],
)
def test_on_several_ranks_the_first_says_it_alone(more, keys, message, place):
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
    keys = {"loss": OWN, "run": {"steps": 8}}

    said = refused(table_of(folder, keys), folder)

    assert "loss.name = 'mine.py:own': AssertionError: row 63 (mine.py:" in said


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
            with_buffer(
                value="torch.ones(1)",
                options=", persistent=False",
                step="self.held.add_(rows.mean().detach())",
            ),
            "model.held",
        ),
        (
            with_buffer(step="self.seen = self.seen + 1"),
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
        with_buffer("torch.ones(2).to(torch.float8_e4m3fn)"),
        with_buffer(
            "torch.ones(2)", step="hasattr(self, 'late') or self.register_buffer('late', torch.ones(1))"
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

    status, said = tried_alone(table_of(folder, {"metric": OWN}), folder)

    assert (status, "gave 'error', 'last', and for another batch 'error'; expected" in said) == (65, True), (
        said
    )


def test_a_metric_that_is_no_number_is_left_out_of_what_is_written(place):
    """JSON has no NaN: a strict reader would refuse all of result.json."""
    folder = place("def own(model, batch):\n    return {'error': float('nan')}")

    status, said = tried_alone(table_of(folder, {"metric": OWN}), folder)

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
    keys = changed({"loss": OWN, "run": {"steps": 2}}, **keys)

    said = run_ranks(tried_in, 2, folder, table_of(folder, keys))

    assert [status for status, _ in said] == [65, 65]
    assert "the weights of rank 0 are no finite numbers after step 1" in said[0][1]
    assert said[1][1] == ""
    assert not list((folder / "run/checkpoints").glob("step-*"))


def test_the_traceback_is_shown_when_asked(place, monkeypatch):
    monkeypatch.setenv("GPU_FLEET_TRACEBACK", "1")
    folder = place("import no_such_library")

    assert "Traceback (most recent call last)" in tried_alone(table_of(folder, {}), folder)[1]
