"""The bench: both loops are timed in turns on the same work, and reductions counted as in nccl-tests."""

from typing import Any
from unittest import mock

import pytest
import torch
from transformers import GPT2Config

from gpu_fleet.core import config
from gpu_fleet.core.errors import ParallelError
from gpu_fleet.core.world import world
from gpu_fleet.trainer.loop import train_steps
from gpu_fleet_jobs.measure import bench
from gpu_fleet_jobs.measure.bench import StepTimes, Turns
from tests.training.examples import changed, gpt_table, write_tokens
from tests.training.ranks import run_ranks


@pytest.fixture
def table(tmp_path) -> dict[str, Any]:
    return gpt_table(write_tokens(tmp_path / "data"), tmp_path / "run")


def measure_rank(table: dict[str, Any]) -> tuple[StepTimes, dict[int, float]]:
    settings = config.from_table(table, "test")
    with world(settings.parallel) as where:
        times = bench.measure_steps(settings, where, turns=2, steps=3)
        return times, bench.measure_reductions(where, (1,))


def test_each_turn_times_both_loops_and_the_measured_run_leaves_nothing_behind(table, tmp_path):
    times, bandwidths = run_ranks(measure_rank, 2, table)[0]

    assert not (tmp_path / "run").exists()
    assert len(times.trainer_s) == len(times.bare_s) == 2
    assert all(seconds > 0 for seconds in times.trainer_s + times.bare_s)
    assert bandwidths.keys() == {1}
    assert bandwidths[1] > 0


def turns_and_end(table: dict[str, Any]) -> list[str]:
    """Return what comes after what: a look at the clock, and the end of all steps."""
    settings, happened = config.from_table(table, "test"), []

    def trained(*arguments: Any) -> bool:
        stopped = train_steps(*arguments)
        happened.append("end")
        return stopped

    def seconds(_device: torch.device) -> float:
        happened.append("clock")
        return 1.0

    with (
        world(settings.parallel) as where,
        mock.patch.object(bench, "_now_s", seconds),
        mock.patch.object(bench, "train_steps", trained),
    ):
        bench.measure_steps(settings, where, turns=1, steps=1)
    return happened


def test_no_turn_includes_the_end_of_the_reader_processes(table):
    """It took 180 ms on an H100, a sixth of a turn of 20 steps."""
    (happened,) = run_ranks(turns_and_end, 1, table)

    assert happened[-1] == "end"


def test_a_model_of_transformers_has_its_turns_too_and_one_rank_nothing_to_reduce(table, tmp_path):
    GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16).save_pretrained(tmp_path)
    chosen = {**table, "model": {"name": "AutoModelForCausalLM", "config": str(tmp_path)}}

    times, bandwidths = run_ranks(measure_rank, 1, chosen)[0]

    assert len(times.bare_s) == 2
    assert bandwidths == {}


def test_other_strategies_have_no_bare_loop(table):
    sharded = changed(table, parallel={"strategy": "fsdp"})

    with pytest.raises(AssertionError, match=f"{ParallelError.__name__}: .*bench compares ddp only"):
        run_ranks(measure_rank, 1, sharded)


def test_the_first_turn_warms_up_and_the_turns_alternate():
    order = []
    times = StepTimes()
    turns = Turns(times, 2, torch.device("cpu"), lambda: order.append("bare"))

    for step in range(1, 7):
        turns.before_step(step)
        order.append(step)
        turns.after_step(step)
    turns.finish()

    assert order == ["bare", 1, 2, "bare", 3, 4, "bare", 5, 6, "bare"]
    assert len(times.trainer_s) == len(times.bare_s) == 2


def test_the_ratio_is_the_median_of_the_turns_and_the_table_names_what_was_measured(capsys):
    times = StepTimes(trainer_s=[0.010, 0.010, 0.010], bare_s=[0.008, 0.009, 0.011], samples_per_step=64)
    where = type("World", (), {"size": 2, "device": torch.device("cpu")})()

    bench.show(times, {16: 1.25}, where)

    shown = capsys.readouterr().out
    assert StepTimes(trainer_s=[1.0, 2.0, 10.0], bare_s=[1.0, 1.0, 9.0]).ratio == 0.9
    assert "0.9000 (0.800 to 1.100)" in shown
    assert "6,400.0" in shown
    assert "all-reduce 16 MiB, GB/s" in shown
