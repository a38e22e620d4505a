"""Data that already gives each rank a share, although every rank must read all samples."""

import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from gpu_fleet import Run
from gpu_fleet.core import config
from gpu_fleet.core.world import world
from tests.training.commands import tried_alone
from tests.training.ranks import run_ranks

SOURCES = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset

class Stream(IterableDataset):
    def __init__(self, take=lambda number: True, drawn=False):
        self.take, self.drawn = take, drawn
    def __iter__(self):
        for number in range(64):
            if self.take(number):
                yield torch.full((4,), float(number)), number % 2

class Known(Stream):
    def __len__(self):
        return 32

def by_environment(number):
    return number % int(os.environ["WORLD_SIZE"]) == int(os.environ["RANK"])

def by_group(number):
    return number % dist.get_world_size() == dist.get_rank()

def streams(split):
    return Stream(by_environment) if split == "train" else None

def streams_by_group(split):
    return Known(by_group) if split == "train" else None

def streams_held_out(split):
    return Stream() if split == "train" else Known(by_environment)

def rows(split):
    return list(Stream(by_environment)) if split == "train" else None

def whole(split):
    return Stream() if split == "train" else None

def model():
    return nn.Linear(4, 2)
"""


def table(folder: Path, data: str) -> dict[str, Any]:
    return {
        "run": {"directory": str(folder / "run"), "steps": 2, "batch_size": 8},
        "model": {"name": "mine.py:model"},
        "data": {"name": f"mine.py:{data}"},
        "schedule": {"name": "constant"},
        "metrics": {"progress": False},
    }


def tried_in(folder: Path, data: str) -> tuple[int, str]:
    os.chdir(folder)
    return tried_alone(table(folder, data), folder)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "mine.py").write_text(SOURCES)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "split"),
    [("streams", "train"), ("streams_by_group", "train"), ("streams_held_out", "val"), ("rows", "train")],
)
def test_data_of_which_each_rank_gives_a_part_are_refused(data, split, folder):
    (status, said), (other_status, other_said) = run_ranks(tried_in, 2, folder, data)

    assert (status, other_status, other_said) == (65, 65, ""), said
    assert f"error: data.name = 'mine.py:{data}', '{split}': rank 1 reads other samples than rank 0" in said
    assert "shares them out before" in said
    assert said.count("error: ") == 1


@pytest.mark.parametrize(("data", "ranks"), [("streams", 1), ("whole", 2)])
def test_data_that_are_whole_on_each_rank_are_trained_on(data, ranks, folder):
    for status, said in run_ranks(tried_in, ranks, folder, data):
        assert status == 0, said


class Numbers(IterableDataset[torch.Tensor]):
    """Samples that differ by rank, or are the same on all ranks."""

    def __init__(self, begin: int, stride: int) -> None:
        self.numbers = range(begin, 64, stride)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((3,), float(number)) for number in self.numbers)


def script_rank(directory: str, shares: bool, held_out_on_first: bool) -> tuple[int, str]:
    """Run a script with Run on this rank; return its exit status and stderr."""
    heard, model = StringIO(), nn.Linear(3, 1)
    with world(config.Parallel()) as where, redirect_stderr(heard):
        try:
            with Run(directory, model=model) as run:
                if held_out_on_first and where.leads:
                    run.batches([torch.ones(3)], batch_size=2)
                read = run.batches(Numbers(where.rank * shares, 1 + shares), batch_size=4)
                for _ in run.steps(2):
                    model(next(read))
        except SystemExit as end:
            return int(end.code or 0), heard.getvalue()
    return 0, heard.getvalue()


def test_a_stream_of_which_each_rank_gives_a_part_is_refused_in_a_script(tmp_path):
    (status, said), (other_status, other_said) = run_ranks(script_rank, 2, str(tmp_path), True, False)

    assert (status, other_status, other_said) == (65, 65, "")
    assert "error: run.batches(samples): rank 1 reads other samples than rank 0" in said


def test_one_rank_of_a_script_may_read_held_out_data_beside(tmp_path):
    for status, said in run_ranks(script_rank, 2, str(tmp_path), False, True):
        assert status == 0, said
