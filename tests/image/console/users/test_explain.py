"""Explanation why an instance is kept or terminated, with a chart of the heartbeats."""

import json
import os
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.users import explain_live, timeline
from gpu_fleet_image.console.users.timeline import MOST_CELLS, PERIODS_S, Cell
from gpu_fleet_image.core.metrics import CODE_HUNG, CODE_UNKNOWN
from gpu_fleet_image.instance.agent.idle_detection import Limits
from gpu_fleet_image.instance.agent.sensors.reading import Rates, Session
from tests.image.fake_aws import fake_aws
from tests.image.moto_fleet import NOW, MotoFleet, write_policy
from tests.image.one_instance import one_instance
from tests.image.programs import running
from tests.image.samples import NOON, gpu, presence, sample, use


def test_a_period_is_shown_by_its_smallest_value():
    cells = {
        None: Cell.SILENT,
        CODE_UNKNOWN: Cell.UNKNOWN,
        CODE_HUNG: Cell.HUNG,
        0.0: Cell.ACTIVE,
        59.0: Cell.ACTIVE,
        60.0: Cell.IDLE,
        86_400.0: Cell.IDLE,
    }

    assert {value: timeline.cell(value) for value in cells} == cells


def test_a_row_has_half_a_day_at_most_ends_with_the_present_and_counts_the_point_that_speaks_for_use():
    start = NOON - timedelta(hours=13)
    points = [(start, 7200.0), (start, 0.0), (NOON, 46_800.0)]

    first, second = timeline.rows(points, start, NOON, 1800)

    assert (first.start, second.start) == (start, NOON - timedelta(hours=1))
    assert first.cells == (Cell.ACTIVE, *[Cell.SILENT] * 23)
    assert second.cells == (Cell.SILENT, Cell.SILENT, Cell.IDLE)


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - zone given
    st.floats(0.05, 336),
)
def test_every_window_fits_the_picture_and_is_shown_whole(now, hours):
    window = timedelta(hours=hours)
    period = timeline.period_s(window)
    start = timeline.start_of(now, window, period)

    cells = timeline.counts(timeline.rows([], start, now, period))

    assert period in PERIODS_S
    assert start <= now - window < start + timedelta(seconds=period)
    assert cells[Cell.SILENT] == (now - start) // timedelta(seconds=period) + 1 <= MOST_CELLS + 2


@pytest.fixture(scope="module")
def fleet():
    with fake_aws():
        made = MotoFleet()
        idle, silent = made.start(2)
        made.heartbeats([idle], idle_hours=2.5)
        yield idle, silent


@pytest.fixture
def explain(fleet, tmp_path):
    path = str(write_policy(tmp_path / "policy.json"))
    return lambda instance, *words: CliRunner().invoke(
        main, ["explain", instance, "--policy", path, "--now", NOW.isoformat(), *words]
    )


QUARTERS = (10, 11)  # of an hour: two hours and a half


def test_an_idle_instance_is_explained_with_its_heartbeats_to_people_and_programs(explain, fleet):
    idle, _ = fleet

    result = explain(idle)

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith(f"{idle}: dev g5.xlarge, ada, 1.006 USD an hour, up since ")
    assert lines[1].startswith("verdict: MARK: idle for 2.5 h")
    assert "pool dev: marked after 2.0 h idle with 90 % of the heartbeats, terminate 30 min later" in lines
    picture = "".join(line[len("  2026-11-21 12:00 ") :] for line in lines if line.startswith("  20"))
    assert picture.strip().strip("█") in {"·" * count for count in QUARTERS}
    assert "█ active" in lines[-1]
    said = json.loads(explain(idle, "-o", "json").output)
    assert (said["verdict"], said["pool"], said["failures"]) == ("MARK", "dev", [])
    cells = [cell for each in said["heartbeats"]["rows"] for cell in each["cells"]]
    assert cells.count("idle") in QUARTERS


def test_a_silent_instance_shows_that_it_is_silent_and_a_mistyped_one_is_answered_with_the_nearest(
    explain, fleet
):
    idle, silent = fleet

    found, mistyped = explain(silent), explain(idle[:-1])

    assert "verdict: KEEP-unknown: no heartbeat in the whole window: does the agent run?" in found.output
    assert "blank no heartbeat" in found.output
    assert mistyped.exit_code == 1
    said = f"{idle[:-1]}: no existing instance of this stack (nearest: {idle})"
    assert said in mistyped.output


def test_live_shows_each_sensor_with_what_makes_it_busy():
    seen = presence(
        [Session("terminal", "bob on pts/3", 1800.0), Session("jupyter", "kernel 1 of eve, busy")],
        watched=["mpirun (7, bob)"],
        processes=[use("ssh", "bob (9)", bytes_per_s=100.0), use(ranks=16)],
        unknown=["jupyter server of bob (7): its API answers 403"],
    )
    reading = sample(
        Rates(cpu_cores=0.02), [gpu(), gpu("1", utilisation=5.0)], seen, ["command: exit code 3"]
    )

    shown = [(line.sensor, line.state) for line in explain_live.lines(reading, Limits())]

    assert shown == [
        ("cpu, disk, network", "idle"),
        ("gpu 0", "idle"),
        ("gpu 1", "busy"),
        ("terminal", "idle"),
        ("jupyter", "busy"),
        ("ssh", "idle"),
        ("gpu", "unknown"),
        ("program", "busy"),
        ("jupyter", "unknown"),
        ("command", "unknown"),
    ]


def test_the_name_of_a_process_neither_marks_up_nor_moves_the_terminal_of_root(capsys):
    named = explain_live.SensorLine("program", "[/red] \x1b[2J (7, eve)", "busy", "[bold]")

    Console(width=150).print(explain_live.table([named]))

    assert r"[/red] \x1b[2J (7, eve)  busy       [bold]" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone sees everybody's processes")
def test_live_looks_at_the_instance_it_runs_on(tmp_path, monkeypatch):
    (tmp_path / "mpirun").symlink_to("/usr/bin/sleep")
    with one_instance(tmp_path) as environment, running(tmp_path / "mpirun", "600") as launcher:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(explain_live, "COMPARED_S", 0.2)

        result = CliRunner().invoke(main, ["explain", "--live"], catch_exceptions=False)

    assert result.exit_code == 0
    assert f"mpirun ({launcher.pid}, root)" in result.output
    assert "all of them" in result.output.splitlines()[-1]
