"""A kill or a notice at the worst moment changes no bit of the resumed run, or gives a status why."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.checkpoint import local
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.errors import StoreError
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.step.state import State
from gpu_fleet.trainer import loop
from gpu_fleet.trainer.prepared_run import PreparedRun
from gpu_fleet.trainer.scoring import HeldOutScore
from tests.training.commands import tried_alone
from tests.training.examples import (
    CountingInterruption,
    await_checkpoint,
    changed,
    gpt_table,
    killed_rank,
    train_on,
    train_rank,
)
from tests.training.ranks import run_ranks

STEPS = 6


def table_of(tokens: Path, directory: Path, **checkpoint: Any) -> dict[str, Any]:
    """Return a configuration of six steps with dropout; every second step and the last are evaluated."""
    table = gpt_table(tokens, directory, STEPS)
    options = {**table["model"]["options"], "attention_dropout": 0.2}
    run = {"evaluate_every_steps": 2}
    return changed(table, run=run, model={"options": options}, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def straight(tokens, tmp_path_factory) -> dict[str, Any]:
    """Return the outcome of two undisturbed ranks."""
    return train_on(2, table_of(tokens, tmp_path_factory.mktemp("straight")))


@pytest.fixture(scope="module")
def alone(tokens, tmp_path_factory) -> dict[str, Any]:
    """Return the outcome of one undisturbed rank."""
    return train_rank(table_of(tokens, tmp_path_factory.mktemp("alone")))


def killed_in_evaluation(table: dict[str, Any], step: int) -> None:
    """Train on this rank, and kill it in the evaluation after so many steps."""
    scored = loop.scored

    def fatal(run: PreparedRun, state: State, stop: Stop) -> tuple[HeldOutScore | None, dict[str, float]]:
        if state.step == step:
            await_checkpoint(run.directory)
            os._exit(137)
        return scored(run, state, stop)

    loop.scored = fatal
    train_rank(table)


@pytest.mark.parametrize("step", [4, STEPS], ids=["on the way", "at the end"])
def test_a_kill_during_evaluation_changes_no_bit(step, straight, tokens, tmp_path):
    table = table_of(tokens, tmp_path, every_steps=4)

    with pytest.raises(AssertionError, match="ended without a word"):
        run_ranks(killed_in_evaluation, 2, table, step)
    resumed = train_on(2, table)

    assert resumed["resumed_from_step"] in (4, step)  # the last save runs beside the evaluation
    assert resumed["parameters_sha256"] == straight["parameters_sha256"]
    assert resumed["metric"] == straight["metric"]


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_kill_before_any_checkpoint_costs_its_steps_alone(micro_batches, straight, tokens, tmp_path):
    table = table_of(tokens, tmp_path)

    with pytest.raises(AssertionError, match="ended without a word"):
        run_ranks(killed_rank, 2, table, micro_batches)
    again = train_on(2, table)

    assert again["resumed_from_step"] is None
    assert again["parameters_sha256"] == straight["parameters_sha256"]


def unmeasured(table: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration without evaluations between steps, which poll for notices too."""
    return changed(table, run={"evaluate_every_steps": 0})


def upload_with(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[int, Callable[[int], None]], None]
) -> None:
    """Make each upload of a step call `before`(step, moved) first."""
    upload = CheckpointStore.upload_files

    def disturbed(
        store: CheckpointStore, folder: Path, step: int, names: Iterable[str], moved: Callable[[int], None]
    ) -> None:
        before(step, moved)
        upload(store, folder, step, names, moved)

    monkeypatch.setattr(CheckpointStore, "upload_files", disturbed)


def test_a_notice_during_a_slow_upload_brings_the_newer_step_up(alone, bucket, tokens, tmp_path, monkeypatch):
    """The slow upload moves byte after byte, and would take longer than the instance lives."""
    uri = f"s3://{bucket}/run"

    def crawl(step: int, moved: Callable[[int], None]) -> None:
        while step == 2:
            moved(1)
            time.sleep(0.01)

    upload_with(monkeypatch, crawl)
    here = unmeasured(table_of(tokens, tmp_path / "here", every_steps=2, uri=uri))
    stopped = train_rank(here, stop_at=3)

    resumed = train_rank(table_of(tokens, tmp_path / "there", every_steps=2, uri=uri))

    assert (stopped["outcome"], stopped["step"], resumed["resumed_from_step"]) == ("stopped", 3, 3)
    assert resumed["parameters_sha256"] == alone["parameters_sha256"]


def test_a_notice_whose_last_upload_fails_says_which_step_is_missing(
    alone, bucket, tokens, tmp_path, monkeypatch
):
    uri = f"s3://{bucket}/run"
    table = unmeasured(table_of(tokens, tmp_path / "run", every_steps=2, uri=uri))

    def fail(step: int, _moved: Callable[[int], None]) -> None:
        if step == 3:
            raise StoreError(f"{uri}: cannot take step 3: Read timeout", passing=True)

    with monkeypatch.context() as patch:
        upload_with(patch, fail)
        patch.setattr("gpu_fleet.checkpoint.uploader.NOTICE_PATIENCE_S", 0.0)
        patch.setattr(
            "gpu_fleet.trainer.rank.Interruption", lambda *_: CountingInterruption(4)
        )  # after step 3
        status, said = tried_alone(table, tmp_path)
    uploaded, here = CheckpointStore(uri).steps(), local.steps(tmp_path / "run/checkpoints")
    resumed = train_rank(table)

    # that of step 2 may have been given up for it, where a busy computer has not ended it before
    assert (status, 3 in uploaded, here, "Traceback" in said) == (75, False, [2, 3], False)
    assert f"error: {uri}: cannot take step 3: Read timeout" in said
    assert resumed["resumed_from_step"] == 3
    assert resumed["parameters_sha256"] == alone["parameters_sha256"]
