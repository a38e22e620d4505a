"""A run that was interrupted anywhere ends with the same parameters as an undisturbed one."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from gpu_fleet.core.errors import IdentityError
from gpu_fleet.data.loader import Batch
from gpu_fleet.metrics.meter import Meter
from gpu_fleet.step.state import State
from gpu_fleet.trainer import loop
from gpu_fleet.trainer.loop import take_step
from gpu_fleet.trainer.prepared_run import PreparedRun
from tests.training.examples import (
    NUMBERED_LENGTH,
    changed,
    few_digits,
    gpt_table,
    interrupted,
    killed_rank,
    resnet_table,
    train_on,
    train_rank,
    write_numbered,
)
from tests.training.ranks import run_ranks

STEPS_AN_EPOCH = 4  # 512 samples, 128 a step


@pytest.fixture(scope="module")
def pictures(digits, tmp_path_factory) -> Path:
    return few_digits(digits, tmp_path_factory.mktemp("few"))


def table_of(pictures: Path, directory: Path) -> dict[str, Any]:
    """Return a configuration of ten steps with dropout, augmentation, accumulation and an averaged model."""
    average = {"name": "ema", "decay": 0.9, "batch_norm_batches": 2}
    return changed(resnet_table(pictures, directory, steps=10), average=average)


@pytest.fixture(scope="module")
def straight(pictures, tmp_path_factory) -> dict[str, Any]:
    """Return the outcome of two undisturbed ranks."""
    return train_on(2, table_of(pictures, tmp_path_factory.mktemp("straight")))


@pytest.mark.parametrize("steps", [2, STEPS_AN_EPOCH], ids=["mid-epoch", "at the boundary"])
def test_an_interruption_changes_no_bit(steps, straight, pictures, tmp_path):
    interrupted(2, lambda _: table_of(pictures, tmp_path), steps, straight)


@pytest.mark.parametrize(
    ("size", "powersgd_rank", "steps"),
    [
        (3, 0, 2),
        (2, 4, 12),
    ],  # three summands have an order; compression leaves something over from step 10 on
    ids=["three ranks", "compressed gradients"],
)
def test_what_the_ranks_exchange_is_resumed_too(*, size, powersgd_rank, steps, tokens, tmp_path):
    def table(name: str) -> dict[str, Any]:
        run = {"batch_size": 12 * size}
        return changed(
            gpt_table(tokens, tmp_path / name, steps + 3), run=run, parallel={"powersgd_rank": powersgd_rank}
        )

    interrupted(size, table, stop_at=steps)


def test_a_kill_inside_accumulation_changes_no_bit(straight, pictures, tmp_path):
    table = changed(table_of(pictures, tmp_path), checkpoint={"every_steps": 3})
    first_of_two_in_step_6 = 2 * 5 + 1

    with pytest.raises(AssertionError, match="ended without a word"):
        run_ranks(killed_rank, 2, table, first_of_two_in_step_6)
    resumed = train_on(2, table)

    assert resumed["resumed_from_step"] == 3
    assert resumed["parameters_sha256"] == straight["parameters_sha256"]


def test_reader_processes_change_no_bit(straight, pictures, tmp_path):
    outcome = train_on(2, changed(table_of(pictures, tmp_path), data={"workers": 1}))

    assert outcome["parameters_sha256"] == straight["parameters_sha256"]


def test_fewer_and_more_ranks_read_every_sample_of_an_epoch_once(tmp_path):
    samples, per_step = 64, 16
    table = changed(
        gpt_table(write_numbered(tmp_path / "data", samples), tmp_path / "run", steps=8),
        run={"batch_size": per_step},
        data={"sequence_length": NUMBERED_LENGTH},
    )

    read = [run_ranks(reading_rank, size, table, stop_at) for size, stop_at in ((2, 3), (1, 2), (2, 0))]

    assert [len(ranks[0]) for ranks in read] == [3, 2, 3]
    steps = [[n for part in parts for n in part] for ranks in read for parts in zip(*ranks, strict=True)]
    for epoch in (steps[:4], steps[4:]):
        assert sorted(number for step in epoch for number in step) == list(range(samples))


@pytest.mark.parametrize(("accumulation", "allowed"), [(2, True), (4, False)])
def test_half_the_ranks_go_on_with_twice_the_micro_batches_each(*, accumulation, allowed, tokens, tmp_path):
    def table(name: str, micro_batches: int = 1) -> dict[str, Any]:
        return changed(gpt_table(tokens, tmp_path / name, steps=4), run={"accumulation": micro_batches})

    train_on(2, table("straight"))
    train_on(2, table("halved"), stop_at=2)
    with nullcontext() if allowed else pytest.raises(IdentityError, match=r"run\.accumulation  1 -> 4"):
        resumed = train_rank(table("halved", accumulation))

        assert resumed["resumed_from_step"] == 2
        straight, halved = (
            load_file(tmp_path / name / "model/model.safetensors") for name in ("straight", "halved")
        )
        assert max(float((straight[name] - halved[name]).abs().max()) for name in straight) <= 5e-8


def reading_rank(table: dict[str, Any], stop_at: int) -> list[list[int]]:
    """Train on this rank; return the numbers of the samples of each step."""
    taken: list[list[int]] = []

    def noted(run: PreparedRun, state: State, batches: Iterator[Batch], meter: Meter, **options: bool) -> Any:
        taken.append([])

        def noting() -> Iterator[Batch]:
            for batch in batches:
                taken[-1] += batch.inputs[:, 0].tolist()
                yield batch

        return take_step(run, state, noting(), meter, **options)

    loop.take_step = noted
    train_rank(table, stop_at)
    return taken


def test_a_finished_run_is_measured_again_and_not_trained(pictures, tmp_path):
    table = table_of(pictures, tmp_path)

    first, second = train_on(1, table), train_on(1, table)

    assert second["resumed_from_step"] == first["step"] == second["step"]
    assert second["parameters_sha256"] == first["parameters_sha256"]
    assert second["metric"] == first["metric"]


def test_a_layout_of_its_own_is_resumed_without_changing_a_bit(pictures, tmp_path):
    def table(name: str) -> dict[str, Any]:
        return changed(resnet_table(pictures, tmp_path / name, steps=4), precision={"channels_last": True})

    interrupted(1, table, stop_at=2)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resumed_run_decays_weights_as_its_configuration_says(strategy, tokens, tmp_path):
    def outcome(name: str, weight_decay: float) -> dict[str, Any]:
        table = changed(gpt_table(tokens, tmp_path / name, steps=3), parallel={"strategy": strategy})
        train_rank(table, stop_at=2)
        allowed = {"allow": ["optimizer.weight_decay"]}
        return train_rank(changed(table, optimizer={"weight_decay": weight_decay}, checkpoint=allowed))

    as_saved, more = outcome("as saved", weight_decay=0.01), outcome("more", weight_decay=0.9)

    assert as_saved["resumed_from_step"] == more["resumed_from_step"] == 2
    assert as_saved["parameters_sha256"] != more["parameters_sha256"]


def test_a_run_may_go_on_in_another_number_format(tokens, tmp_path):
    table = gpt_table(tokens, tmp_path, steps=3)
    train_rank(table, stop_at=2)

    allowed = {"allow": ["precision.dtype"]}
    resumed = train_rank(changed(table, precision={"dtype": "fp16"}, checkpoint=allowed))

    assert (resumed["outcome"], resumed["resumed_from_step"]) == ("finished", 2)
