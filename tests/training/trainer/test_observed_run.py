"""A whole run as users observe it: its trace, its metrics, and a rank that hangs."""

import itertools
import json
import math
import os
import pickle
import re
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import gpu_fleet.trainer.initial_state
from gpu_fleet.metrics.flops import Utilisation
from gpu_fleet.metrics.records import read_json_lines
from gpu_fleet.preemption.watchdog import Watchdog
from gpu_fleet.trainer import loop
from tests.training.examples import changed, gpt_table, train_on, train_rank, write_tokens
from tests.training.ranks import run_ranks


@pytest.fixture
def table(tmp_path) -> dict[str, Any]:
    return gpt_table(write_tokens(tmp_path / "data"), tmp_path / "run", steps=4)


def test_the_chosen_steps_are_traced_once_for_all_ranks(table, tmp_path):
    train_on(2, changed(table, metrics={"profile_steps": [2, 3]}))

    trace = json.loads((tmp_path / "run" / "trace-steps-2-3.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "aten::mm" in names
    assert any("AdamW" in str(name) for name in names)


def test_every_record_says_how_much_memory_was_used_and_what_part_of_a_known_peak(table, tmp_path):
    run_ranks(peak_rank, 1, table)

    records = [r for r in read_json_lines(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "train"]
    assert len(records) == 4
    assert all(0.01 < record["memory_gib"] < 100 for record in records)
    assert all(record["mfu"] == pytest.approx(record["samples_per_s"] * 3e6 / 1e9) for record in records)


def peak_rank(table: dict[str, Any]) -> None:
    """Train on this rank as on a device of 1 GFLOP/s, with 3 MFLOP a sample."""
    gpu_fleet.trainer.initial_state.utilisation_of = lambda _run, _model: Utilisation(3e6, 1e9)
    train_rank(table)


def test_every_instance_of_a_run_finds_its_result(table, tmp_path):
    """Two ranks run as on two instances with separate disks."""
    outcomes = run_ranks(instance_rank, 2, table)

    for number, found in enumerate(outcomes):
        result = json.loads((tmp_path / "run" / f"instance-{number}" / "result.json").read_text())
        assert result == found | {"launched": ""}  # by nobody: started here by hand
    assert outcomes[0]["parameters_sha256"] == outcomes[1]["parameters_sha256"]


def instance_rank(table: dict[str, Any]) -> dict[str, Any]:
    """Train on this rank as on an instance without other ranks."""
    rank, os.environ["LOCAL_RANK"] = os.environ["RANK"], "0"
    return train_rank(changed(table, run={"directory": f"{table['run']['directory']}/instance-{rank}"}))


def test_a_loss_that_is_no_number_ends_all_ranks_with_rank_and_step(table):
    with pytest.raises(AssertionError, match="DivergenceError: the loss of rank 1 is nan at step 3"):
        run_ranks(diverging_rank, 2, table)


def diverging_rank(table: dict[str, Any]) -> None:
    """Train on this rank; the loss of rank 1 is NaN from the third step (of two micro-batches) on."""
    real, calls = loop.mean_loss, itertools.count(1)
    if os.environ["RANK"] == "1":
        loop.mean_loss = lambda *tensors: real(*tensors) * (math.nan if next(calls) > 4 else 1)
    train_rank(table)


def test_a_rank_that_hangs_and_those_that_wait_for_it_end_and_leave_their_stacks(table, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(AssertionError, match="rank 0 of 2:\nended without a word"):
        run_ranks(hang_rank, 2, changed(table, parallel={"timeout_s": PATIENT_S}))

    waiting, hanging = ((tmp_path / "run" / f"stacks-rank-{rank}.txt").read_text() for rank in (0, 1))
    assert "in never_done" in hanging
    assert "in accumulate" in waiting
    assert waiting.startswith("held up by rank 1: behind the others, after step 0 at ")
    assert "in never_done" not in waiting


# The watchdogs bark after LIMIT_S; a collective, however slow the computer is, does not fail before them.
PATIENT_S, LIMIT_S = 60.0, 2.4


def hang_rank(table: dict[str, Any]) -> None:
    """Train on this rank; rank 1 hangs in its first loss, and its watchdog lets rank 0 end first.

    Both are alive, so neither counts as silent, however late its thread gets a core.
    """
    process_id = Path(table["run"]["directory"]) / "process-of-rank-0"

    def never_done(*_tensors: object) -> None:
        threading.Event().wait()

    def ended_first() -> bool:
        return process_id.exists() and not psutil.pid_exists(int(process_id.read_text()))

    peers = loop.of_world
    loop.of_world = lambda rank, size, _every_s: peers(rank, size, PATIENT_S)
    loop.SOONER = LIMIT_S / PATIENT_S
    if os.environ["RANK"] == "1":
        loop.mean_loss = never_done
        loop.Watchdog = partial(Watchdog, clock=lambda: PATIENT_S if ended_first() else 0.0)
    else:
        process_id.with_suffix(".new").write_text(str(os.getpid()))
        process_id.with_suffix(".new").rename(process_id)
    train_rank(table)


def test_a_stopped_rank_is_named_by_the_one_that_waits_for_it(table, tmp_path):
    """kill -STOP or a lost instance stops a rank so; rank 0 used to name itself."""
    with pytest.raises(AssertionError, match="rank 0 of 2:\nended without a word"):
        run_ranks(stopped_rank, 2, changed(table, parallel={"timeout_s": PATIENT_S}))

    said = (tmp_path / "run" / "stacks-rank-0.txt").read_text()
    assert said.startswith("held up by rank 1: stopped or gone, silent for ")
    assert re.match(".* after step [01]\n", said)  # it told of itself before it was stopped, not while
    recorded = pickle.loads((tmp_path / "run" / "collectives-rank-0").read_bytes())
    assert recorded["entries"]


def stopped_rank(table: dict[str, Any]) -> None:
    """Train on this rank; rank 1 is stopped in its second step (of two micro-batches)."""
    real, calls = loop.mean_loss, itertools.count(1)

    def stopping_loss(*tensors: Any) -> Any:
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*tensors)

    loop.SOONER = LIMIT_S / PATIENT_S
    if os.environ["RANK"] == "1":
        loop.mean_loss = stopping_loss
    train_rank(table)
