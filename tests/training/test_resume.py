"""A run that was interrupted anywhere ends with the very parameters of one that was not."""

from pathlib import Path
from typing import Any

import pytest

from tests.training.examples import (
    changed,
    few_digits,
    gpt_table,
    killed_rank,
    resnet_table,
    train_on,
    write_tokens,
)
from tests.training.ranks import run_ranks

STEPS_AN_EPOCH = 4  # 512 samples, 128 a step


@pytest.fixture(scope="module")
def pictures(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return few_digits(digits, tmp_path_factory.mktemp("few"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def table_of(pictures: Path, directory: Path) -> dict[str, Any]:
    """Ten steps with dropout, augmentation, accumulation and an averaged model."""
    average = {"name": "ema", "decay": 0.9, "batch_norm_batches": 2}
    return changed(resnet_table(pictures, directory, steps=10), average=average)


@pytest.fixture(scope="module")
def straight(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of two ranks that nobody disturbs."""
    return train_on(2, table_of(pictures, tmp_path_factory.mktemp("straight")))


@pytest.mark.parametrize("steps", [2, STEPS_AN_EPOCH], ids=["mid-epoch", "at the boundary"])
def test_an_interruption_changes_no_bit(steps: int, straight, pictures: Path, tmp_path: Path) -> None:
    table = table_of(pictures, tmp_path)

    stopped = train_on(2, table, stop_at=steps)
    resumed = train_on(2, table)

    assert (stopped["outcome"], stopped["reason"]) == ("stopped", "stop-file")
    assert resumed["resumed_from_step"] == stopped["step"] == steps
    assert resumed["parameters_sha256"] == straight["parameters_sha256"] != stopped["parameters_sha256"]
    assert resumed["metric"] == straight["metric"]


@pytest.mark.parametrize(
    ("size", "powersgd_rank", "steps"),
    [
        (3, 0, 2),
        (2, 4, 12),
    ],  # three summands have an order; compression leaves something over from step 10 on
    ids=["three ranks", "compressed gradients"],
)
def test_what_the_ranks_exchange_is_resumed_too(
    *, size: int, powersgd_rank: int, steps: int, tokens: Path, tmp_path: Path
) -> None:
    def table(name: str) -> dict[str, Any]:
        run = {"batch_size": 12 * size}
        return changed(
            gpt_table(tokens, tmp_path / name, steps + 3), run=run, parallel={"powersgd_rank": powersgd_rank}
        )

    straight = train_on(size, table("straight"))
    train_on(size, table("interrupted"), stop_at=steps)
    resumed = train_on(size, table("interrupted"))

    assert resumed["resumed_from_step"] == steps
    assert resumed["parameters_sha256"] == straight["parameters_sha256"]


def test_a_kill_inside_accumulation_changes_no_bit(straight, pictures: Path, tmp_path: Path) -> None:
    table = changed(table_of(pictures, tmp_path), checkpoint={"every_steps": 3})
    first_of_two_in_step_6 = 2 * 5 + 1

    with pytest.raises(AssertionError, match="ended without a word"):
        run_ranks(killed_rank, 2, table, first_of_two_in_step_6)
    resumed = train_on(2, table)

    assert resumed["resumed_from_step"] == 3
    assert resumed["parameters_sha256"] == straight["parameters_sha256"]


def test_reader_processes_change_no_bit(straight, pictures: Path, tmp_path: Path) -> None:
    outcome = train_on(2, changed(table_of(pictures, tmp_path), data={"workers": 1}))

    assert outcome["parameters_sha256"] == straight["parameters_sha256"]


def test_a_run_goes_on_with_fewer_and_with_more_ranks(pictures: Path, tmp_path: Path) -> None:
    table = table_of(pictures, tmp_path)

    steps = [train_on(size, table, stop_at=2)["step"] for size in (2, 1)]
    finished = train_on(2, table)

    assert steps == [2, 4]
    assert (finished["resumed_from_step"], finished["step"]) == (4, 10)


def test_a_finished_run_is_measured_again_and_not_trained(pictures: Path, tmp_path: Path) -> None:
    table = table_of(pictures, tmp_path)

    first, second = train_on(1, table), train_on(1, table)

    assert second["resumed_from_step"] == first["step"] == second["step"]
    assert second["parameters_sha256"] == first["parameters_sha256"]
    assert second["metric"] == first["metric"]
