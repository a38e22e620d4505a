"""Compiled models learn the same as others, for every strategy."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.utils import counters

from tests.training.examples import (
    changed,
    compile_without_code,
    gpt_table,
    losses,
    train_on,
    train_rank,
)
from tests.training.proofs import by_proof
from tests.training.ranks import run_ranks

TOLERANCE = 2e-5  # as among the strategies: sums in another order
STEPS = 3
FSDP = {"strategy": "fsdp"}
TENSOR = {"strategy": "tensor", "tensor": 2}
PIPELINE = {"strategy": "pipeline", "pipeline": 2}


def compiled_rank(table: dict[str, Any]) -> int:
    """Train on this rank; return the number of compiled graphs."""
    compile_without_code()
    train_rank(table)
    return int(counters["stats"]["unique_graphs"])


@pytest.fixture(scope="module")
def plain(tokens, tmp_path_factory) -> Callable[[int], list[float]]:
    """Return a function from a number of layers to the losses of a plain model; each is trained once."""

    @cache
    def trained(layers: int) -> list[float]:
        directory = tmp_path_factory.mktemp("plain")
        train_on(1, table_of(tokens, directory, layers))
        return losses(directory)

    return trained


def table_of(tokens: Path, directory: Path, layers: int) -> dict[str, Any]:
    table = gpt_table(tokens, directory, STEPS)
    table["model"]["options"]["layers"] = layers
    return table


@pytest.mark.parametrize(
    ("size", "parallel", "layers"),
    [
        (1, {}, 1),
        *by_proof((2, {}, 1), (2, FSDP, 2), (2, TENSOR, 1), (4, PIPELINE, 2)),
    ],
    ids=["alone", "ddp", "fsdp", "tensor", "pipeline of sharded stages"],
)
def test_a_compiled_model_learns_what_the_plain_one_learns(
    *, size, parallel, layers, plain, tokens, tmp_path
):
    table = changed(table_of(tokens, tmp_path, layers), parallel=parallel, precision={"compile": True})

    graphs = run_ranks(compiled_rank, size, table)

    assert graphs == [2] * size  # one to train and one to evaluate: each layer of FSDP uses the same
    assert losses(tmp_path) == pytest.approx(plain(layers), rel=TOLERANCE)


def test_what_torch_compiles_wrongly_is_refused(tokens, tmp_path):
    table = changed(gpt_table(tokens, tmp_path), parallel=TENSOR, precision={"compile": True})

    with pytest.raises(
        AssertionError, match=r"precision.compile = true: .* parallel.tensor = 4, fsdp and ddp"
    ):
        train_on(4, table)
