"""The GPU bench is kept working where there is no GPU: on tiny models, and with a known peak made up."""

from typing import Any

import pytest

from tests.bench import bench_trainer_gpu as bench
from tests.bench.__main__ import FIELDS
from tests.training.ranks import run_ranks
from training.bench import StepTimes
from training.metrics.flops import Utilisation


def test_both_models_are_measured_on_their_own_data(tmp_path):
    pictures = bench.resnet50_table(bench.write_pictures(tmp_path / "p", count=32, side=32), tmp_path / "run")
    pictures["model"] = {"name": "resnet_small", "options": {"widths": [8]}}
    text = bench.gpt2_table(bench.write_tokens(tmp_path / "t", count=4000, vocabulary=64), tmp_path / "run")
    text["model"]["options"] = {"hidden_size": 16, "layers": 1, "heads": 2}
    for table, batch in ((pictures, 8), (text, 4)):
        table["run"]["batch_size"] = batch
        table["data"] |= {"workers": 0, "sequence_length": 16}

    measured = run_ranks(measure_both, 1, pictures, text)[0]

    assert [times.samples_per_step for times in measured] == [8, 4]
    assert all(times.ratio > 0 for times in measured)


def measure_both(pictures: dict[str, Any], text: dict[str, Any]) -> list[StepTimes]:
    """One after the other in one process, as the bench does."""
    return [bench.measure(table, turns=1, steps=2) for table in (pictures, text)]


def test_entries_have_every_field_of_the_bench_file():
    times = StepTimes([0.02], [0.0199], Utilisation(1e12, 1e15), samples_per_step=16)

    entries = bench.entries_of("gpt2", times)

    assert entries.keys() == {"gpt2_step_ratio", "gpt2_mfu"}
    assert all(entry.keys() == FIELDS for entry in entries.values())
    assert entries["gpt2_step_ratio"]["ratio"] == pytest.approx(0.995)
    assert entries["gpt2_mfu"]["value"] == pytest.approx(16 / 0.02 * 1e12 / 1e15)


def test_without_a_gpu_there_are_no_entries(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    bench.main()

    assert capsys.readouterr().out == "{}\n"
