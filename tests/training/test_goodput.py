"""Where the wall time of a run went: each second is booked once, and what was done twice is lost."""

import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet import cli
from gpu_fleet.metrics.goodput import BOOKED, Book, goodput, process_started_at_s
from gpu_fleet.metrics.records import read_json_lines
from tests.training.examples import changed, gpt_table, killed_rank, train_on
from tests.training.ranks import run_ranks


def time_record(began: float, at: float, step: int, resumed: int = 0, **seconds: float) -> dict:
    booked = {**dict.fromkeys(BOOKED, 0.0), **seconds}
    times = {"started_at_s": began, "at_s": at}
    return {"kind": "time", "step": step, "resumed_from_step": resumed, **times, **booked}


@given(
    st.lists(st.tuples(st.sampled_from(BOOKED), st.floats(0, 1e4), st.sampled_from(BOOKED), st.floats(0, 1)))
)
def test_every_second_is_booked_once(moves):
    now = [1000.0]
    book = Book(started_at_s=990.0, clock=lambda: now[0])

    for account, seconds, other, part in moves:
        book.switch(account)
        now[0] += seconds
        book.shift(other, part * seconds)

    found = goodput([book.record(5)])
    assert found is not None
    assert found.wall_s == pytest.approx(now[0] - 990.0)
    assert found.accounted == pytest.approx(1.0)


def test_what_a_later_try_did_again_and_the_time_between_are_lost():
    first = [
        time_record(0, 10, step=0, start_s=10),
        time_record(0, 110, step=100, start_s=10, productive_s=90, waiting_s=10),
        time_record(0, 210, step=200, start_s=10, productive_s=180, waiting_s=20),
    ]
    second = [
        time_record(300, 320, step=150, resumed=150, start_s=20),
        time_record(300, 400, step=250, resumed=150, start_s=20, productive_s=70, stall_s=10),
    ]

    found = goodput([*first, *second])

    assert found is not None
    assert (found.wall_s, found.tries) == (400, 2)
    assert found.lost_s == 45 + 90  # fifty steps at 0.9 s, and from 210 to 300
    assert found.productive_s == 90 + 45 + 70
    assert found.ettr == pytest.approx(205 / 400)
    assert found.accounted == 1.0
    assert found.price_lost(price_per_hour=36.0) == pytest.approx(195 / 100)


def test_a_run_of_before_says_nothing():
    assert goodput([{"kind": "train", "step": 10}]) is None


def test_the_start_of_the_process_counts():
    assert 0 < time.time() - process_started_at_s() < 24 * 3600


def test_a_killed_and_resumed_run_accounts_for_its_wall_time(tokens: Path, tmp_path: Path, monkeypatch):
    """On two ranks: the first try dies in its fifth step, and leaves a checkpoint of the third."""
    table = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"every_steps": 3})
    begin = time.time()
    with pytest.raises(AssertionError, match="ended without a word"):
        run_ranks(killed_rank, 2, table, 2 * 4 + 1)
    time.sleep(1.0)  # nobody starts it again at once
    train_on(2, table)
    end = time.time()

    found = goodput(read_json_lines(tmp_path / "run" / "metrics.jsonl"))

    assert found is not None
    assert found.tries == 2
    assert found.accounted >= 0.99
    assert 1.0 <= found.lost_s < found.wall_s <= end - begin
    shown = CliRunner().invoke(cli.main, ["report", str(tmp_path / "run"), "--price", "98.32"])
    assert f"effective training time ratio (ETTR): {100 * found.ettr:.1f} %" in shown.output
    assert f"cost of unproductive time: {found.price_lost(98.32):,.2f} of " in shown.output
