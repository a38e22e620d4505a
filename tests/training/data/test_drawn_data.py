"""A user's own data that is drawn again in every process, or relabelled: the warnings of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from gpu_fleet.checkpoint import run_identity
from gpu_fleet.data.own_data import OwnData, Stream
from tests.training.commands import refused, tried_alone
from tests.training.examples import changed, train_rank

DRAWN = """
import numpy as np
import torch
from torch.utils.data import IterableDataset

class Rows:
    def __init__(self, rows=32, width=4):
        self.rows, self.width = rows, width
    def __len__(self):
        return self.rows
    def __getitem__(self, index):
        chance = np.random.default_rng()  # which nobody could have set
        return torch.from_numpy(chance.random(self.width, dtype=np.float32)), index % 2

class Flow(Rows, IterableDataset):
    def __iter__(self):
        return (Rows.__getitem__(self, index) for index in range(self.rows))

def rows(split, **options):
    return Rows(**options)

def flow(split, **options):
    return Flow(**options)

def fixed(split, **options):
    return [(torch.ones(4), 0)] * 32

def model(width=4):
    return torch.nn.Linear(width, 2)
"""


@pytest.fixture
def drawn(tmp_path, monkeypatch) -> dict[str, Any]:
    """Return a configuration of three steps on samples that every process draws differently."""
    monkeypatch.chdir(tmp_path)
    Path("drawn.py").write_text(DRAWN)
    return {
        "run": {"directory": "run", "steps": 3, "batch_size": 8},
        "model": {"name": "drawn.py:model"},
        "data": {"name": "drawn.py:rows"},
        "schedule": {"name": "constant"},
        "metrics": {"progress": False},
    }


@pytest.mark.parametrize("kind", ["rows", "flow"])
def test_data_that_draw_from_a_generator_of_their_own_resume_with_a_warning(kind, drawn, tmp_path, caplog):
    drawn = changed(drawn, data={"name": f"drawn.py:{kind}"})
    train_rank(drawn)

    status, said = tried_alone(changed(drawn, run={"steps": 5}), tmp_path)

    warned = [record.getMessage() for record in caplog.records if "not exact" in record.getMessage()]
    assert (status, said) == (0, said), said
    assert len(warned) == 2  # once at each start
    assert f"data.name = 'drawn.py:{kind}', 'train' draws from a generator of its own" in warned[0]


@pytest.mark.parametrize(
    ("other", "row"),
    [
        ({"data": {"options": {"rows": 24}}}, "data.samples"),
        ({"data": {"options": {"width": 5}}, "model": {"options": {"width": 5}}}, "data.shape"),
        ({"data": {"name": "drawn.py:fixed"}}, "data.content"),
    ],
    ids=["length", "shape", "not drawn"],
)
def test_other_data_are_refused_by_what_is_known_of_them(other, row, drawn, tmp_path):
    train_rank(drawn)
    allowed = ("data.options", "data.name", "model.options")
    flags = [word for key in allowed for word in ("--allow", key)]

    assert f"\n  {row} " in refused(changed(drawn, run={"steps": 5}, **other), tmp_path, *flags)


def test_what_was_allowed_once_may_stay_allowed(drawn, tmp_path):
    train_rank(drawn)

    status, said = tried_alone(
        changed(drawn, run={"steps": 5}, data={"name": "drawn.py:fixed"}),
        tmp_path,
        *("--allow", "data.name", "--allow", "data.content", "--allow", "data.shape"),
    )

    assert (status, said) == (0, said), said


def equal_samples() -> list[dict[str, Any]]:
    """Return two equal samples that differ in the order of a set and in memory addresses."""
    return [
        {
            "words": np.array(["".join(["a", str(n)]) for n in range(2)], dtype=object),
            "set": set(order),
            "half": torch.arange(3, dtype=torch.bfloat16),
        }
        for order in ((0, 8), (8, 0))
    ]


def test_equal_samples_are_the_same_wherever_they_lie_in_memory_and_others_are_not():
    samples = [*equal_samples(), equal_samples()[1]]
    samples[2]["half"][1] = 7

    first, second, other = (run_identity.of_data(OwnData([each], "", default_collate)) for each in samples)

    assert first == second
    assert first["content"] not in (run_identity.ANOTHER, other["content"])


class Labelled:
    """Samples with some changed labels."""

    def __init__(self, size: int = 1000, relabelled: float = 0.0, seed: int = 0) -> None:
        self.labels = np.arange(size) % 10
        others = np.random.default_rng(seed).permutation(size)[: round(size * relabelled)]
        self.labels[others] += 1

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(self.labels[index])

    def __iter__(self) -> Any:
        return ((index, int(label)) for index, label in enumerate(self.labels))


def content(samples: Any, kind: type[OwnData] = OwnData) -> dict[str, str]:
    return {"data.content": json.dumps(run_identity.of_data(kind(samples, "mine", list))["content"])}


@pytest.mark.parametrize("kind", [OwnData, Stream])
def test_relabelled_samples_are_other_data(kind, monkeypatch):
    monkeypatch.setattr(
        run_identity, "LOOK_AT_ALL_S", 30.0
    )  # one sample in a thousand is seen by all of them
    known = content(Labelled(), kind)

    others = [content(Labelled(relabelled=0.001, seed=seed), kind) for seed in range(5)]

    assert [bool(run_identity.differences(known, other)) for other in others] == [True] * 5
    assert not run_identity.differences(known, content(Labelled(), kind))


def test_samples_that_are_slow_are_compared_as_far_as_both_looked(monkeypatch):
    known, other = content(Labelled()), content(Labelled(relabelled=0.05))
    monkeypatch.setattr(run_identity, "LOOK_S", 0.0)
    monkeypatch.setattr(run_identity, "LOOK_AT_ALL_S", 0.0)
    hasty = content(Labelled())

    assert len(hasty["data.content"]) < len(known["data.content"])
    assert not run_identity.differences(known, hasty)
    assert run_identity.differences(known, other)
