"""A run stops, saves, or fails at one step on all ranks, and never saves a broken state over a good one."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from gpu_fleet.checkpoint import names
from gpu_fleet.checkpoint.manager import Checkpoints, location
from gpu_fleet.core import config
from gpu_fleet.core.errors import CheckpointError, DivergenceError
from gpu_fleet.core.world import World, world
from gpu_fleet.metrics.records import read_json_lines
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.preemption.interrupt import Interruption, Reason
from tests.training.examples import (
    CountingInterruption,
    changed,
    few_digits,
    gpt_table,
    resnet_table,
    train_on,
    train_rank,
)
from tests.training.ranks import run_ranks
from tests.training.trainer.test_bad_input import tried_alone

WIDER = {"hidden_size": 32, "layers": 2, "heads": 4, "intermediate_size": 96}


@pytest.fixture
def alone() -> Iterator[World]:
    with world(config.Parallel()) as where:
        yield where


@pytest.fixture(scope="module")
def pictures(digits, tmp_path_factory) -> Path:
    return few_digits(digits, tmp_path_factory.mktemp("few"), count=256)


def test_a_reason_is_agreed_on_one_call_later(alone):
    stop = Stop(alone, CountingInterruption(stop_at=1), 0.0, save_due=lambda: False, moved=lambda: None)

    assert [stop.agreed() for _ in range(4)] == [False, False, True, True]
    assert stop.reason is Reason.STOP_FILE


def test_a_save_is_asked_for_once_until_it_is_taken(alone):
    stop = Stop(alone, Interruption([], 1.0), 0.0, save_due=lambda: True, moved=lambda: None)

    taken = []
    for _ in range(6):
        assert not stop.agreed()
        taken.append(stop.take_save_request())

    assert taken == [False, True, False, True, False, True]  # asked, agreed one call later, asked again


class Echo:
    """Process group in which the other ranks have seen nothing."""

    def allreduce(self, _tensors: Any, _options: Any) -> "Echo":
        return self

    def wait(self) -> None: ...


@pytest.fixture
def one_of_two(alone) -> World:
    return replace(alone, size=2, control=cast("Any", Echo()))


def seconds_to_stop(where: World, fast: int, slow_s: float) -> float:
    """Return the seconds from a notice at the start of the first slow step, after fast ones, to the stop."""
    now, interruption = [0.0], Interruption([lambda: (Reason.SPOT_NOTICE, "soon")], 1.0)
    stop = Stop(where, interruption, 0.25, lambda: False, lambda: None, clock=lambda: now[0])
    for _ in range(fast):
        assert not stop.agreed_soon()
        now[0] += 0.001
    interruption.poll()
    noticed_at = now[0]
    now[0] += slow_s
    while not stop.agreed_soon():
        now[0] += slow_s
    return now[0] - noticed_at


def test_steps_that_become_slow_delay_a_stop_by_nine_of_them_at_most_and_by_one_if_alone(alone, one_of_two):
    latest = max(seconds_to_stop(one_of_two, fast, slow_s=8.0) for fast in range(40, 60))

    assert latest == pytest.approx(9 * 8.0)
    assert seconds_to_stop(alone, fast=40, slow_s=8.0) == pytest.approx(8.0)


def exchanges(where: World, every_s: float, step_s: list[float]) -> list[int]:
    """Return the calls, from 0, at which the ranks make an exchange, for steps of these lengths."""
    now = [0.0]
    interruption = CountingInterruption(stop_at=0)
    stop = Stop(where, interruption, every_s, lambda: False, lambda: None, clock=lambda: now[0])
    found = []
    for call, seconds in enumerate(step_s):
        asked = interruption.asked
        stop.agreed_soon()
        if interruption.asked > asked:
            found.append(call)
        now[0] += seconds
    return found


def test_short_steps_share_an_exchange_of_eight_at_most_and_long_ones_have_one_each(one_of_two):
    assert exchanges(one_of_two, every_s=0.25, step_s=[0.06] * 16) == [0, 1, 5, 9, 13]
    assert exchanges(one_of_two, every_s=0.25, step_s=[0.2] * 6) == [0, 1, 2, 3, 4, 5]
    assert exchanges(one_of_two, every_s=0.25, step_s=[0.001] * 24) == [0, 1, 9, 17]


def test_an_evaluation_says_nothing_about_the_pace_of_the_steps_after_it(one_of_two):
    now, interruption = [0.0], CountingInterruption(stop_at=0)
    stop = Stop(one_of_two, interruption, 0.25, lambda: False, lambda: None, clock=lambda: now[0])
    for _ in range(100):
        stop.agreed()  # once per batch, of a millisecond
        now[0] += 0.001
    before = interruption.asked

    for _ in range(4):
        stop.agreed_soon()
        now[0] += 20.0

    assert interruption.asked == before + 4


def stopped_at(scenarios: list[tuple[list[float], int, int]]) -> list[int]:
    """Return the call at which this rank learns that it has to stop, in each scenario.

    A scenario is the step time of every rank in seconds, the rank that sees a reason, and its call then.
    """
    found = []
    with world(config.Parallel()) as where:
        for step_s, rank, call in scenarios:
            now, interruption = [0.0], Interruption([lambda: (Reason.STOP_FILE, "idle")], 1.0)
            stop = Stop(where, interruption, 0.25, lambda: False, lambda: None, clock=lambda now=now: now[0])
            calls = 0
            while not stop.agreed_soon():
                now[0] += step_s[where.rank]
                if where.rank == rank and calls == call:
                    interruption.poll()
                calls += 1
            found.append(calls)
    return found


def test_ranks_of_any_speed_stop_at_the_same_step_soon_after_one_knows():
    random = Random(1)
    speeds = (0.0001, 0.001, 0.03, 0.1, 0.5, 4.0)
    scenarios = [(random.choices(speeds, k=2), random.randrange(2), random.randrange(60)) for _ in range(200)]

    rank_0, other = run_ranks(stopped_at, 2, scenarios)

    assert rank_0 == other
    for stopped, (step_s, _, call) in zip(rank_0, scenarios, strict=True):
        assert call < stopped
        assert (stopped - call - 3) * max(step_s) <= 0.25


def test_a_stop_during_the_evaluation_is_taken_at_once(pictures, tmp_path):
    table = resnet_table(pictures, tmp_path, steps=2)

    stopped = train_on(2, table, stop_at=4)
    measured = train_on(2, table)

    assert (stopped["outcome"], stopped["step"], stopped["metric"]) == ("stopped", 2, None)
    assert (measured["outcome"], measured["resumed_from_step"]) == ("finished", 2)
    assert measured["parameters_sha256"] == stopped["parameters_sha256"]


def scores(directory: Path) -> list[tuple[Any, Any]]:
    """Return the steps and metrics of all evaluations of a run."""
    records = read_json_lines(directory / "metrics.jsonl")
    return [(record["step"], record["metric"]) for record in records if record["kind"] == "evaluation"]


def test_an_evaluation_between_two_steps_that_a_stop_cut_off_is_done_anew(pictures, tmp_path):
    every = {"evaluate_every_steps": 2}
    straight, broken = (
        changed(resnet_table(pictures, tmp_path / name, steps=4), run=every)
        for name in ("straight", "broken")
    )

    undisturbed = train_on(2, straight)
    stopped = train_on(2, broken, stop_at=4)
    cut_off = scores(tmp_path / "broken")
    resumed = train_on(2, broken)

    assert (stopped["outcome"], stopped["step"], cut_off) == ("stopped", 2, [])
    assert scores(tmp_path / "broken") == scores(tmp_path / "straight")
    assert resumed["parameters_sha256"] == undisturbed["parameters_sha256"]


def test_an_evaluation_that_was_measured_is_not_done_anew(pictures, tmp_path):
    """The run stops at the step of the evaluation, after the evaluation."""
    table = changed(resnet_table(pictures, tmp_path, steps=4), run={"evaluate_every_steps": 2})
    train_on(1, changed(table, checkpoint={"every_steps": 2}))
    before = scores(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / names.step_name(4))

    resumed = train_on(1, table)

    assert (resumed["resumed_from_step"], len(before)) == (2, 2)
    assert [step for step, _ in scores(tmp_path)] == [2, 4, 4]


def test_the_stop_file_stops_a_run_and_says_why(pictures, no_fleet, tmp_path):
    (no_fleet / "stop").write_text("idle for 24 h\n")

    status, _ = tried_alone(resnet_table(pictures, tmp_path / "run", steps=1000), tmp_path)

    result = json.loads((tmp_path / "run/result.json").read_text())
    assert status == 85
    assert (result["outcome"], result["reason"]) == ("stopped", "stop-file")
    assert result["detail"] == "rank 0: idle for 24 h"


def test_a_loss_that_is_no_number_ends_the_run_and_is_not_saved(tokens, tmp_path):
    table = changed(
        gpt_table(tokens, tmp_path, steps=50),
        optimizer={"learning_rate": 1e30, "clip_norm": 0.0},
        run={"log_every_steps": 50},
        checkpoint={"every_steps": 10},
    )

    with pytest.raises(DivergenceError, match=r"the loss of rank 0 is nan at step 3; lower optimizer"):
        train_rank(table)

    assert list((tmp_path / "checkpoints").glob("step-*")) == []


@pytest.mark.parametrize(
    ("change", "allowed", "message"),
    [
        ({"model": {"name": "gpt2", "options": {}}}, [], "is of the model 'gpt', not of 'gpt2'"),
        ({"model": {"options": WIDER}}, ["model.options"], "does not fit the configuration"),
        ({"optimizer": {"name": "sgd"}}, ["optimizer.name"], "is of another optimizer than"),
        ({"parallel": {"strategy": "fsdp"}}, [], "is whole, this strategy needs a sharded one"),
    ],
    ids=["model", "size", "optimizer", "layout"],
)
def test_a_checkpoint_of_something_else_is_refused(change, allowed, message, tokens, tmp_path):
    table = gpt_table(tokens, tmp_path, steps=1)
    train_rank(table)

    with pytest.raises(CheckpointError, match=message):
        train_rank(changed(table, **change, checkpoint={"allow": allowed}))


def test_what_an_earlier_run_left_is_never_taken_for_that_of_a_run_that_began_anew(
    tokens, tmp_path, monkeypatch
):
    table = gpt_table(tokens, tmp_path, steps=3)
    train_rank(table)
    anew = changed(table, checkpoint={"resume": False})

    stopped = train_rank(anew, stop_at=1)
    assert stopped["resumed_from_step"] is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    restarted = train_rank(anew, stop_at=1)

    assert (stopped["step"], restarted["resumed_from_step"]) == (1, 1)
    assert (tmp_path / "checkpoints/step-3.earlier").is_dir()


def test_a_run_does_not_begin_anew_on_top_of_what_was_uploaded(bucket, tokens, tmp_path):
    table = changed(gpt_table(tokens, tmp_path, steps=1), checkpoint={"uri": f"s3://{bucket}/run"})
    train_rank(table)

    with pytest.raises(CheckpointError, match=r"has checkpoints of an earlier run, up to step 1"):
        train_rank(changed(table, checkpoint={"resume": False}))


def test_a_checkpoint_is_due_by_time(alone, tmp_path):
    now = [0.0]
    settings = config.from_table(
        changed(gpt_table(tmp_path, tmp_path / "run"), checkpoint={"every_s": 60.0}), "test"
    )
    checkpoints = Checkpoints(settings, alone, identity={}, clock=lambda: now[0])

    now[0] = 59.0
    early = checkpoints.due_by_time()
    now[0] = 60.0

    assert (early, checkpoints.due_by_time()) == (False, True)
    checkpoints.flush()


def test_checkpoints_go_where_the_configuration_or_else_the_instance_says(no_fleet, tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(no_fleet / "instance.toml"))
    (no_fleet / "instance.toml").write_text('checkpoint_uri = "s3://bucket/dev"\n')
    table = changed(gpt_table(tmp_path, tmp_path / "my-run"), run={"owner": "alice"})

    for uri, expected in {
        "": "s3://bucket/dev/alice/my-run",  # from the instance, and one folder for each run
        "s3://elsewhere/x": "s3://elsewhere/x",
        "none": "",
    }.items():
        assert location(config.from_table(changed(table, checkpoint={"uri": uri}), "test")) == expected
