"""A user's own model may use other parameters in every step, micro-batch and rank."""

import os
from typing import Any

import pytest

from gpu_fleet.core import config
from gpu_fleet.models import pretrained
from gpu_fleet.trainer import train
from tests.training.commands import tried
from tests.training.examples import changed, losses, train_on

EXPERTS = """
import torch
from torch import nn

def rows(split):
    inputs = torch.randn(96, 6, generator=torch.Generator().manual_seed(5))
    return [(row, row.sum()) for row in inputs] if split == "train" else None

class Experts(nn.Module):  # each sample has one, so the cut of a step changes who is used where, not the loss
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 1) for _ in range(4))

    def forward(self, inputs):
        hidden, chosen = torch.tanh(self.trunk(inputs)), (inputs[:, 0] > 0) + 2 * (inputs[:, 1] > 0)
        outputs = torch.zeros(len(inputs))
        for number in chosen.unique().tolist():
            outputs = outputs.masked_scatter(chosen == number, self.experts[number](hidden[chosen == number]))
        return outputs

def error(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()
"""


@pytest.fixture
def table(tmp_path) -> dict[str, Any]:
    """Return a configuration with steps of six samples; few steps use all experts."""
    file = tmp_path / "experts.py"
    file.write_text(EXPERTS)
    return {
        "run": {"directory": str(tmp_path / "run"), "steps": 8, "batch_size": 6, "log_every_steps": 1},
        "model": {"name": f"{file}:Experts"},
        "data": {"name": f"{file}:rows"},
        "loss": {"name": f"{file}:error"},
        "optimizer": {"learning_rate": 0.05},
        "metrics": {"progress": False},
        "checkpoint": {"every_steps": 0},
    }


def test_parameters_that_are_left_out_here_and_there_learn_as_on_one_rank(table, tmp_path):
    train_on(1, table)
    train_on(2, changed(table, run={"directory": str(tmp_path / "cut"), "accumulation": 3}))

    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "run"), abs=2e-5)


def test_a_graph_that_is_not_what_it_was_said_to_be_is_one_message(table, tmp_path):
    ends = tried(2, changed(table, parallel={"static_graph": True}), tmp_path)

    statuses = [status for status, said in ends if "set parallel.static_graph = false" in said]
    assert statuses == [65]  # another rank may notice it too, or only lose touch with the one that did
    assert "parallel.static_graph" in (tmp_path / "run" / "failure.json").read_text()  # what `launch` obeys
    assert not any("Traceback" in said for _, said in ends)


ALL_USED = """
class Plain(nn.Linear):
    def __init__(self):
        super().__init__(6, 1)

    def forward(self, inputs):
        return super().forward(inputs)[:, 0]
"""


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [("Plain", {}, 1), ("Plain", {"static_graph": False}, 0), ("Experts", {}, 0)],
)
def test_rank_0_says_once_that_a_look_for_unused_parameters_is_in_vain(name, keys, expected, table, tmp_path):
    file = tmp_path / "experts.py"
    file.write_text(EXPERTS + ALL_USED)
    table = changed(table, model={"name": f"{file}:{name}"}, parallel=keys, run={"batch_size": 2, "steps": 3})

    ends = tried(2, table, tmp_path)

    assert [status for status, _ in ends] == [0, 0], ends
    assert [said.count("parallel.static_graph = true avoids that") for _, said in ends] == [expected, 0]


@pytest.mark.parametrize(
    ("keys", "ranks", "level"),
    [
        ({}, 2, "ERROR"),
        ({"model": {"name": "AutoModelForCausalLM"}}, 2, "ERROR"),
        ({}, 1, None),
        ({"parallel": {"static_graph": True}}, 2, None),
        ({"parallel": {"strategy": "fsdp"}}, 2, None),
        ({"model": {"name": "resnet_small"}, "loss": {"name": ""}}, 2, None),
    ],
    ids=["own model", "of transformers", "alone", "static", "sharded", "of this trainer"],
)
def test_torchs_warnings_are_kept_out_only_where_every_rank_would_advise(
    keys, ranks, level, table, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "")
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")

    train.spare_advice(config.from_table(changed(table, **keys), "test"))

    assert os.environ.get("TORCH_CPP_LOG_LEVEL") == level


def test_what_config_json_says_of_parameters_that_are_left_out():
    import transformers  # noqa: PLC0415 - seconds

    for kind, options, left_out in [
        ("LlamaConfig", {}, False),
        ("MixtralConfig", {"num_local_experts": 4}, True),
        ("OPTConfig", {"layerdrop": 0.0}, False),
        ("OPTConfig", {"layerdrop": 0.1}, True),
    ]:
        configuration = getattr(transformers, kind)(**options)
        assert pretrained.says_left_out(configuration.to_dict()) == left_out, (kind, options)
