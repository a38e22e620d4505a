"""The simulated day of `bench_goodput`: what kills, starts and saves cost is what its goodput lacks."""

import pytest

from tests.bench import bench_goodput
from tests.bench.bench_goodput import DAY_S, Costs, day

START_S, SAVE_S = 20.0, 0.5
FREE = Costs(between=0.0, start=0.0, stall=0.0)


def test_a_day_without_kills_lacks_its_start_and_its_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_goodput, "KILLS_A_DAY", 1e-9)
    saves = (DAY_S - START_S) // (60.0 + SAVE_S)

    found = day(Costs(between=0.0, start=START_S, stall=SAVE_S), every_s=60.0, seed=0)

    assert found == pytest.approx(1 - (START_S + saves * SAVE_S) / DAY_S, abs=2 * 60.0 / DAY_S)


def test_a_kill_costs_half_an_interval_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    kills, every_s = 100, 60.0
    monkeypatch.setattr(bench_goodput, "KILLS_A_DAY", kills)

    found = [day(FREE, every_s, seed) for seed in range(5)]

    assert sum(found) / len(found) == pytest.approx(1 - kills * every_s / 2 / DAY_S, abs=0.01)
