"""Generators in a user's data are seeded for each sample, like those of torch, numpy and random."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from gpu_fleet.data.generators import held_by, kept_generators, seed_generators
from gpu_fleet.data.own_data import OwnData
from tests.training.commands import tried_alone
from tests.training.examples import changed, train_rank
from tests.training.proofs import by_proof

# One of each kind; the effect of `seldom` is rare: samples that are read twice may look the same.
HELD = """
import random
import numpy as np
import torch
from torch.utils.data import IterableDataset

dice = random.Random()

def seldom(row):
    return -row if dice.random() < 0.2 else row

def shifted(state):
    return lambda row: row + float(state.rand())

class Rows:
    noise = np.random.default_rng()
    def __init__(self, size=32):
        self.size, self.shift = size, shifted(np.random.RandomState())
        self.crop = torch.Generator()
        self.crop.seed()
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        row = torch.full((4,), index / 32) * torch.rand(4, generator=self.crop)
        return self.shift(seldom(row)) + float(self.noise.random()), index % 2

class Flow(IterableDataset):
    def __init__(self, size=12):
        self.size, self.order = size, torch.Generator()
    def __len__(self):
        return self.size
    def set_epoch(self, epoch):
        self.order.manual_seed(epoch)
    def __iter__(self):
        return iter(self.drawn(torch.randperm(self.size, generator=self.order)))
    def drawn(self, order):
        for index in order.tolist():
            yield torch.full((4,), index / 12) + torch.rand(4, generator=self.order), index % 2

def rows(split):
    return Rows() if split == "train" else None

def flow(split):
    return Flow() if split == "train" else None

def model():
    return torch.nn.Linear(4, 2)
"""


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("rows", 2),
        ("flow", 0),
        *by_proof(("rows", 0), ("flow", 1)),
    ],
)
def test_an_interrupted_run_on_them_has_the_same_bits(kind, workers, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    Path("held.py").write_text(HELD)
    table: dict[str, Any] = {
        "run": {"directory": "straight", "steps": 7, "batch_size": 4},
        "model": {"name": "held.py:model"},
        "data": {"name": f"held.py:{kind}", "workers": 0},
        "schedule": {"name": "constant"},
        "metrics": {"progress": False},
    }

    straight = train_rank(table)
    broken = changed(table, run={"directory": "broken"}, data={"workers": workers})
    train_rank(changed(broken, run={"steps": 4}))  # of a flow in the midst of its second pass
    status, said = tried_alone(broken, tmp_path)

    assert (status, said) == (0, said), said
    assert straight["parameters_sha256"] in Path("broken/result.json").read_text()
    assert "not exact" not in caplog.text


def test_those_that_can_be_reached_are_found_in_one_order():
    class Data:
        def __init__(self) -> None:
            self.numpy, self.torch = np.random.default_rng(), torch.Generator()
            self.transforms = [partial(print, random.Random()), lambda: hidden]

    hidden = np.random.RandomState()
    data = Data()

    kinds = [type(generator).__name__ for generator in held_by(data)]

    assert sorted(kinds) == ["Generator", "Generator", "Random", "RandomState"]
    assert [type(generator).__name__ for generator in held_by(data)] == kinds


def test_those_that_are_set_anyway_cannot_be_set_or_are_beyond_very_much_are_left_out():
    held = [torch.default_generator, np.random.mtrand._rand, random._inst, random.SystemRandom()]  # type: ignore[attr-defined]
    many: list[Any] = [[number, str(number)] for number in range(200_000)]
    many.append(many)

    assert held_by(held) == held_by(many) == ()


def test_two_of_one_kind_draw_other_numbers():
    pair = [random.Random(), random.Random()]

    seed_generators(np.random.default_rng(0), pair)

    assert pair[0].random() != pair[1].random()


def test_what_else_draws_from_them_is_not_disturbed_by_a_sample():
    class Drawn:
        chance = np.random.default_rng(3)

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> float:
            return float(self.chance.random())

    expected = np.random.default_rng(3).random()
    data = OwnData(Drawn(), "samples", default_collate)

    with kept_generators(data.generators):
        data.sample(0, np.random.default_rng(0))

    assert Drawn.chance.random() == expected
