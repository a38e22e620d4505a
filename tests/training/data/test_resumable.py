"""A user's own DataLoader resumes in the middle of an epoch with the batches of an undisturbed run."""

import os
import random
import signal
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    default_collate,
    get_worker_info,
)

from gpu_fleet import Run
from gpu_fleet.data.generators import restore_generators, states_of_generators
from gpu_fleet.data.loader import explain_ended_readers
from gpu_fleet.data.resumable import ResumableLoader, SeededReads, draws, seeded

SAMPLES, BATCH, EPOCHS = 22, 4, 3
LOADERS: dict[str, dict[str, Any]] = {
    "here": {},
    "a generator": {"generator": 3},
    "a sampler with a generator": {"sampler": 4},
    "a sampler with one of numpy": {"shuffled": 4},
    "whole batches": {"drop_last": True},
    "readers": {"num_workers": 2},
    "readers that stay": {"num_workers": 2, "persistent_workers": True},
    "readers that stay, a generator": {"num_workers": 2, "persistent_workers": True, "generator": 3},
}

PROVEN = ("readers", "readers that stay, a generator")  # on demand, as processes take time


class Rows(Dataset[torch.Tensor]):
    """Samples of a number and random values from three generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, float(torch.rand(())), np.random.random(), random.random()])


class Shuffled(Sampler[int]):
    """An order of a user's own, from numpy."""

    def __init__(self, seed: int) -> None:
        self.source = np.random.RandomState(seed)

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(self.source.permutation(SAMPLES).tolist())


def noisy(samples: list[torch.Tensor]) -> torch.Tensor:
    batch: torch.Tensor = default_collate(samples)
    return batch + torch.tensor([0.0, 0.0, 0.0, 1.0]) * torch.rand(4)


def loader_of(how: Mapping[str, Any]) -> ResumableLoader:
    more = dict(how)
    if "generator" in more:
        more["generator"] = torch.Generator().manual_seed(more["generator"])
    if "sampler" in more:
        generator = torch.Generator().manual_seed(more["sampler"])
        more["sampler"] = RandomSampler(Rows(), generator=generator)
    elif "shuffled" in more:
        more["sampler"] = Shuffled(more.pop("shuffled"))
    else:
        more["shuffle"] = True
    return ResumableLoader(Rows(), BATCH, collate_fn=noisy, **more)


def trained(loader: ResumableLoader, done: int = 0) -> Generator[tuple[int, Any]]:
    """Yield (epoch, batch) to the end; each step draws from the saved generator, as dropout does."""
    epoch = done // len(loader)
    while epoch < EPOCHS:
        for batch in loader:
            yield epoch, batch.tolist()
            torch.rand(3)
        epoch += 1


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, id=name, marks=[pytest.mark.prove] * (name in PROVEN))
        for name, how in LOADERS.items()
    ],
)
def test_a_loader_goes_on_with_the_order_and_the_draws_of_its_epoch(how):
    torch.manual_seed(0)
    straight = list(trained(loader_of(how)))
    of_epochs = [[row for of, rows in straight if of == epoch for row in rows] for epoch in range(EPOCHS)]
    read = [{round(row[0]) for row in rows} for rows in of_epochs]
    assert all(len(numbers) == (20 if how.get("drop_last") else SAMPLES) for numbers in read)
    assert of_epochs[0] != of_epochs[1]

    for stop_at in (4, len(straight) * 2 // 3 + 2):
        torch.manual_seed(0)
        first = loader_of(how)
        steps = trained(first)
        before = [next(steps) for _ in range(stop_at)]
        saved = first.state_dict(), first.begun_with, states_of_generators()
        steps.close()
        torch.manual_seed(9)
        second = loader_of(how)
        second.load_state_dict(saved[0])
        second.begun_with = saved[1]
        resumed = trained(second, stop_at)
        after = [next(resumed)]
        restore_generators(saved[2])
        torch.rand(3)
        after += resumed

        assert before + after == straight


def test_a_sample_is_the_same_wherever_it_is_read():
    reads, indices = SeededReads(Rows(), noisy), [3, 9, 3, 0]
    reads.begin(2**40, 7)
    before = torch.get_rng_state().tolist(), random.getstate()

    samples = reads.__getitems__(indices)
    alone = [reads[index] for index in indices]

    assert torch.equal(torch.stack(samples), torch.stack(alone))
    assert torch.equal(reads.collate(samples), reads.collate(samples))
    assert before == (torch.get_rng_state().tolist(), random.getstate())


def test_readers_that_stay_end_with_their_loader():
    loader = loader_of({"num_workers": 1, "persistent_workers": True})
    next(iter(loader))
    (reader,) = loader._iterator._workers

    del loader

    assert not reader.is_alive()


def test_a_loader_that_is_there_already_draws_by_epoch_and_index():
    """The libraries make such loaders: the epoch must reach persistent readers."""
    loader: DataLoader[torch.Tensor] = DataLoader(Rows(), BATCH, num_workers=1, persistent_workers=True)
    reads = seeded(loader)
    assert reads is not None

    epochs = []
    for epoch in (0, 1, 0):
        reads.begin(7, epoch)
        epochs.append(torch.cat(list(loader)).tolist())

    assert epochs[0] == epochs[2] != epochs[1]


class Flow(IterableDataset[Any]):
    def __init__(self, *, drawing: bool) -> None:
        self.drawing = drawing

    def __iter__(self) -> Iterator[float]:
        return (float(torch.rand(())) if self.drawing else 1.0 for _ in range(4))


@pytest.mark.parametrize("drawing", [True, False])
def test_samples_that_draw_are_found(*, drawing):
    assert seeded(DataLoader(Flow(drawing=drawing))) is None
    assert draws(Flow(drawing=drawing)) is drawing
    assert draws(Rows() if drawing else [0, 1]) is drawing


def looped(
    directory: Path, steps: int, *, given: bool = True, chance: torch.Generator | None = None
) -> torch.Tensor:
    """Return the weight after a loop over a DataLoader, which is `given` to the run or not."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Rows(), BATCH, shuffle=True, collate_fn=noisy, generator=chance)
    with Run(directory, model=model, optimizer=optimizer) as run:
        batches = run.batches_of(loader) if given else (batch for _ in range(steps) for batch in loader)
        for _ in run.steps(steps):
            model(next(batches) + torch.randn(4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.weight.detach()


@pytest.mark.parametrize("seed", [None, 7])
def test_a_run_goes_on_in_the_midst_of_an_epoch_of_an_own_loader(seed, tmp_path, caplog):
    def ended(where: str, steps: int) -> torch.Tensor:
        chance = None if seed is None else torch.Generator().manual_seed(seed)
        return looped(tmp_path / where, steps, chance=chance)

    straight, resumed = ended("straight", 10), {}

    for where, stopped_at in {"first epoch": 1, "boundary": 6, "second epoch": 8}.items():
        ended(where, stopped_at)
        resumed[where] = ended(where, 10)

    assert [where for where, weight in resumed.items() if not torch.equal(weight, straight)] == []
    assert "run.batches_of" not in caplog.text


class Budgeted(Sampler[list[int]]):
    """Batches whose number differs by epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 2 + self.epoch % 3

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[self.epoch, number] for number in range(len(self))])


def test_epochs_of_different_lengths_resume_at_their_place(tmp_path):
    read: dict[str, list[Any]] = {"straight": [], "stopped": []}
    for name, steps in [("straight", 12), *[("stopped", steps) for steps in (2, 4, 5, 9, 12)]]:
        with Run(tmp_path / name) as run:
            batches = run.batches_of(DataLoader(torch.arange(9), batch_sampler=Budgeted()))
            read[name] += [next(batches).tolist() for _ in run.steps(steps)]

    assert read["stopped"] == read["straight"]


def test_a_loader_that_is_not_given_to_the_run_is_reported(tmp_path, caplog):
    looped(tmp_path, 3, given=False)

    assert "not exact: the loop reads a DataLoader" in caplog.text


def test_a_loader_that_no_run_can_resume_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as end, Run(tmp_path) as run:
        run.batches_of(DataLoader(Flow(drawing=False)))

    said = "run.batches_of: takes a DataLoader of torch that reads samples by index"
    assert (end.value.code, said in capsys.readouterr().err) == (65, True)


class Killed(Rows):
    """Samples that kill their reader process, as full memory does."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_killed_reader_process_ends_a_run_with_one_message(tmp_path, capsys):
    with pytest.raises(SystemExit) as end, Run(tmp_path) as run:
        next(run.batches_of(DataLoader(Killed(), BATCH, num_workers=1)))

    assert end.value.code == 75
    assert "error: a reader process of the data has ended: DataLoader worker" in capsys.readouterr().err


def test_a_killed_reader_process_in_a_librarys_loop_is_one_message(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    explain_ended_readers()

    def _try_get_data() -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ConnectionResetError) as broken:  # as in torch, before it misses the process
        _try_get_data()
    killed = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    for error in (killed, broken.value, KeyError("mine")):
        sys.excepthook(type(error), error, None)

    *ended, other = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in ended] == ["a reader process of the data has ended"] * 2
    assert other == "KeyError: 'mine'"
