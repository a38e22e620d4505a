"""Ignored targets are uneven over the ranks; each counted target weighs the same on any rank."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_fleet.metrics.records import read_json_lines
from tests.training.examples import VOCABULARY, changed, gpt_table, losses, train_on, write_tokens

LENGTH = 16


@pytest.fixture(scope="module")
def holey(tmp_path_factory) -> Path:
    """Write token files; two of five sequences are corrupt, and a neighbour without targets replaces them."""
    folder = write_tokens(tmp_path_factory.mktemp("holey"))
    file = folder / "train" / "tokens.bin"
    tokens = np.fromfile(file, dtype="<u2")
    starts = np.arange(0, len(tokens) - LENGTH, LENGTH)
    tokens[starts[(starts // LENGTH) % 5 < 2] + LENGTH // 2] = VOCABULARY
    tokens.tofile(file)
    return folder


def table_of(data: Path, directory: Path, **run: Any) -> dict[str, Any]:
    run = {"batch_size": 48, **run}
    return changed(gpt_table(data, directory), run=run, data={"corrupt_limit": 1000})


@pytest.fixture(scope="module")
def whole(holey, tmp_path_factory) -> list[float]:
    """Return the losses of one rank that reads each step as one batch."""
    directory = tmp_path_factory.mktemp("whole")
    train_on(1, table_of(holey, directory, accumulation=1))
    return losses(directory)


@pytest.mark.parametrize(
    ("ranks", "accumulation", "parallel"),
    [
        (1, 4, {}),
        (2, 1, {}),
        (2, 3, {}),
        (2, 2, {"strategy": "fsdp"}),
        (2, 2, {"strategy": "tensor", "tensor": 2}),
        (2, 3, {"strategy": "pipeline", "pipeline": 2}),
    ],
    ids=["micro-batches", "ranks", "both", "fsdp", "tensor", "pipeline"],
)
def test_a_step_is_the_same_however_it_is_cut(*, ranks, accumulation, parallel, holey, whole, tmp_path):
    table = table_of(holey, tmp_path, accumulation=accumulation)

    train_on(ranks, changed(table, parallel=parallel))

    assert losses(tmp_path) == pytest.approx(whole, abs=2e-5)


ANSWERS = """
import torch

class Answers:  # prompts whose tokens are no targets, of uneven length; every ninth has no target at all
    def __len__(self):
        return 96
    def __getitem__(self, index):
        tokens = torch.randint(0, 32, (12,), generator=torch.Generator().manual_seed(index))
        labels = tokens.clone()
        labels[: 12 if index % 9 == 0 else index % 11] = -100
        return {"input_ids": tokens, "labels": labels}

def answers(split):
    return Answers()

def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=32, max_position_embeddings=16))

def classes(split):
    return [(torch.eye(16)[n % 16], -100 if n % 3 < n % 7 % 2 + 1 else n % 2) for n in range(96)]

def classifier():
    torch.manual_seed(3)
    return torch.nn.Linear(16, 2)

def own_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

def plain_mean(model, batch):  # 0 / 0 where a batch has no target
    kept = (batch[1] != -100).float()
    each = torch.nn.functional.cross_entropy(model(batch[0]), batch[1].clamp(min=0), reduction="none")
    return (each * kept).sum() / kept.sum()

def marked(split):  # which count is in the inputs
    return [(torch.eye(16)[n % 16], float(n % 2)) for n in range(96)]

def counts(inputs):
    return inputs[:, 1:6].sum(dim=1) == 0

def number_of(batch):
    return counts(batch[0]).sum()

def mean_of_those(model, batch):
    return masked(model, batch) / number_of(batch).clamp(min=1)

def masked(model, batch):
    return ((model(batch[0])[:, 0] - batch[1]) ** 2 * counts(batch[0])).sum()

def error(model, batch):
    return {"error": (masked(model, batch), number_of(batch))}
"""


@pytest.fixture(scope="module")
def own_file(tmp_path_factory) -> Path:
    """Write a user's file with data of uneven targets, and models for them."""
    file = tmp_path_factory.mktemp("own") / "answers.py"
    file.write_text(ANSWERS)
    return file


def own_table(kind: dict[str, str], file: Path, directory: Path, accumulation: int) -> dict[str, Any]:
    own = {key: f"{file}:{name}" for key, name in kind.items()}
    mean_over = {"mean_over": own["count"]} if "count" in own else {}
    return {
        "run": {
            "directory": str(directory),
            "steps": 3,
            "batch_size": 24,
            "accumulation": accumulation,
            "log_every_steps": 1,
        },
        "model": {"name": own["model"]},
        "data": {"name": own["data"]},
        "loss": {"name": own.get("loss", ""), **mean_over},
        "metric": {"name": own.get("metric", "")},
        "optimizer": {"learning_rate": 0.05},
        "metrics": {"progress": False},
        "checkpoint": {"every_steps": 0},
    }


CLASSES = {"model": "classifier", "data": "classes"}


@pytest.mark.parametrize(
    "kind",
    [
        {"model": "llama", "data": "answers"},
        CLASSES,
        CLASSES | {"loss": "own_loss"},
        CLASSES | {"loss": "plain_mean"},
        {"model": "classifier", "data": "marked", "loss": "mean_of_those", "count": "number_of"}
        | {"metric": "error"},
    ],
    ids=["labels", "classes", "own loss", "plain mean", "own count"],
)
def test_targets_of_own_data_weigh_alike_in_training_and_in_the_score(kind, own_file, tmp_path):
    """Some micro-batches of two samples have no target: fine-tuning on answers, and a hole."""
    whole = train_on(1, own_table(kind, own_file, tmp_path / "whole", accumulation=1))
    cut = train_on(2, own_table(kind, own_file, tmp_path / "cut", accumulation=6))

    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "whole"), abs=2e-5)
    assert cut["metric"] == pytest.approx(whole["metric"], abs=2e-5)
    records = read_json_lines(tmp_path / "cut" / "metrics.jsonl")
    evaluated = [record for record in records if record["kind"] == "evaluation"]
    assert cut["metric"] == pytest.approx(evaluated[-1]["loss"], abs=2e-5)  # the own metric is the own loss


def test_a_metric_that_counted_nothing_has_no_value(own_file, tmp_path):
    """The value 0 would look like the best error."""
    with own_file.open("a") as file:
        file.write(
            "\n\ndef of_none(model, batch):\n    return {'error': (torch.tensor(0.0), torch.tensor(0))}\n"
        )
    table = own_table(CLASSES, own_file, tmp_path / "run", accumulation=1)
    table["metric"]["name"] = f"{own_file}:of_none"

    result = train_on(1, table)

    assert (result["metric_name"], result["metric"]) == ("error", None)


def test_a_mean_over_no_targets_reaches_no_weight_of_a_sharded_model(own_file, tmp_path):
    kind = CLASSES | {"loss": "plain_mean"}
    train_on(1, own_table(kind, own_file, tmp_path / "whole", accumulation=1))
    cut = own_table(kind, own_file, tmp_path / "cut", accumulation=6)
    train_on(2, changed(cut, parallel={"strategy": "fsdp"}))

    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "whole"), abs=2e-5)
