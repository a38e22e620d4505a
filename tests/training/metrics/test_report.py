"""Reports: the page has the numbers of the run, and needs no other file."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpu_fleet import cli
from gpu_fleet.metrics.goodput import KIND
from gpu_fleet.metrics.report import TEMPLATE, order_records, summary, waiting_percent


def train_record(step: int, **changes: float) -> dict:
    waits = {"step_s": 0.5, "data_wait_s": 1.0, "checkpoint_stall_s": 0.25}
    return {"kind": "train", "step": step, "loss": 3.0 / step, "samples_per_s": 100.0, **waits, **changes}


@pytest.fixture
def run(tmp_path) -> Path:
    """Write the files of a finished run of forty steps, measured once on held-out data."""
    records = [train_record(step) for step in range(10, 50, 10)]
    records.append({"kind": "evaluation", "step": 40, "metric_name": "accuracy", "metric": 0.9, "loss": 0.2})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    result = {"outcome": "finished", "reason": "all steps done", "metric_name": "accuracy", "metric": 0.9}
    (tmp_path / "result.json").write_text(json.dumps(result))
    return tmp_path


def report(run: Path):
    return CliRunner().invoke(cli.main, ["report", str(run)])


def test_a_run_becomes_a_picture_and_a_page_that_says_how_it_finished_and_fetches_nothing(run):
    result = report(run)

    assert result.exit_code == 0, result.output
    with Image.open(run / "report.png") as picture:
        assert picture.width > 1000
    page = (run / "report.html").read_text()
    assert re.findall(r'<svg role="img" aria-label="(.*?)"', page) == [
        f"{figure} by step" for figure in ("Loss", "Throughput", "Memory at most", "Waiting for data")
    ]
    units = ("loss", "samples per second", "GiB per rank", "% of the time")
    assert [unit for unit in units if f">{unit}</text>" not in page] == []
    assert "<td>outcome</td><td>finished: all steps done</td>" in page
    assert "<td>accuracy</td><td>0.9000</td>" in page
    assert re.findall(r'\s(?:src|href|data|srcset)="([^#].*?)"', page) == []


def try_record(began_s: float, step: int, resumed: int) -> dict:
    return {"kind": KIND, "started_at_s": began_s, "step": step, "resumed_from_step": resumed}


def test_a_run_that_was_stopped_in_order_says_how_often_it_was_resumed():
    """It repeats no step: a report of such a run used to say that it was resumed 0 times."""
    records = [
        train_record(10),
        try_record(1.0, 10, 0),
        try_record(2.0, 10, 0),  # of a try before it has found its checkpoint
        train_record(20),
        try_record(2.0, 20, 10),
        train_record(30),
        try_record(3.0, 30, 20),
    ]

    timeline = order_records(records)

    assert summary(timeline, {})["resumed"] == "2 times"
    assert timeline.resumed_at == [10, 20]


def test_a_run_that_began_anew_was_not_resumed():
    records = [train_record(10), try_record(1.0, 10, 0), train_record(10), try_record(2.0, 10, 0)]

    assert summary(order_records(records), {})["resumed"] == "0 times"


def test_waiting_is_a_share_of_the_time_between_two_records_and_utilisation_one_of_the_peak():
    records = [train_record(10), train_record(20, data_wait_s=1.0, step_s=0.5, mfu=0.412)]

    assert waiting_percent(records) == [(20, 20.0)]
    assert summary(order_records(records), {})["model FLOPs utilisation"] == "41.2 %"


def test_what_a_resumed_run_did_again_counts_once_and_drops_the_evaluation_that_was_undone():
    records = [train_record(step) for step in (10, 20, 30)]
    records.append({"kind": "evaluation", "step": 30, "loss": 1.0})
    records += [train_record(20, loss=9.0), train_record(30, loss=8.0)]

    timeline = order_records(records)

    steps = [(record["step"], record["loss"]) for record in timeline.train]
    assert (steps, timeline.evaluation) == ([(10, 0.3), (20, 9.0), (30, 8.0)], [])


@given(st.lists(st.integers(1, 30), max_size=40))
def test_steps_only_ever_grow(steps):
    timeline = order_records([train_record(step) for step in steps])

    kept = [record["step"] for record in timeline.train]
    assert kept == sorted(set(kept))
    assert not steps or kept[-1] == steps[-1]


def test_tokens_are_shown_and_a_last_line_that_was_cut_off_is_passed_over(run):
    records = [train_record(step, tokens_per_s=5000.0) for step in (10, 20)]
    lines = [*map(json.dumps, records), '{"kind": "train", "st']
    (run / "metrics.jsonl").write_text("\n".join(lines))

    assert report(run).exit_code == 0


def test_what_is_no_run_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")

    absent, empty = report(tmp_path / "absent"), report(tmp_path)

    assert (absent.exit_code, empty.exit_code) == (65, 65)
    assert "absent/metrics.jsonl cannot be read: No such file or directory" in absent.output
    assert "holds no training steps" in empty.output


def test_a_folder_that_takes_no_report_is_named(run):
    (run / "report.png").mkdir()

    result = report(run)

    assert result.exit_code == 65
    assert result.output == f"error: RUN = {str(run)!r}: cannot be written: Is a directory\n"


def test_names_are_text_and_never_markup():
    page = TEMPLATE.render(name="<script>", lines={"<b>": "&"}, plots=["<svg></svg>"])

    assert "<script>" not in page
    assert "<td>&lt;b&gt;</td><td>&amp;</td>" in page
