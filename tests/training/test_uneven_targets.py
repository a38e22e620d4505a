"""Targets that count in no loss lie unevenly; each that counts weighs the same, wherever it is read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.examples import VOCABULARY, changed, gpt_table, losses, train_on, write_tokens

LENGTH = 16


@pytest.fixture(scope="module")
def holey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files; two of five sequences are corrupt, and a neighbour without targets takes their place."""
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
def whole(holey: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one rank that reads each step as one batch."""
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
def test_a_step_is_the_same_however_it_is_cut(
    *,
    ranks: int,
    accumulation: int,
    parallel: dict[str, Any],
    holey: Path,
    whole: list[float],
    tmp_path: Path,
) -> None:
    table = table_of(holey, tmp_path, accumulation=accumulation)

    train_on(ranks, changed(table, parallel=parallel))

    assert losses(tmp_path) == pytest.approx(whole, abs=2e-5)
