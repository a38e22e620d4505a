"""The GPU bench is kept working where there is no GPU: on tiny models, and with a known peak made up."""

from typing import Any

import pytest

from gpu_fleet.metrics.flops import Utilisation
from gpu_fleet_jobs.measure.bench import StepTimes
from tests.bench import bench_trainer_gpu as bench
from tests.bench.__main__ import FIELDS
from tests.training.examples import compile_without_code
from tests.training.ranks import run_ranks


@pytest.mark.prove
def test_both_models_are_measured_eager_and_compiled(tmp_path):
    pictures = bench.resnet50_table(bench.write_pictures(tmp_path / "p", count=32, side=32), tmp_path / "run")
    pictures["model"] = {"name": "resnet_small", "options": {"widths": [8]}}
    text = bench.gpt2_table(bench.write_tokens(tmp_path / "t", count=4000, vocabulary=64), tmp_path / "run")
    text["model"]["options"] = {"hidden_size": 16, "layers": 1, "heads": 2}
    for table, batch in ((pictures, 8), (text, 4)):
        table["run"]["batch_size"] = batch
        table["data"] |= {"workers": 0, "sequence_length": 16}

    found = run_ranks(measured, 1, {"resnet50": pictures, "gpt2": text})[0]

    names = ("resnet50", "resnet50_compiled", "gpt2", "gpt2_compiled")
    assert [*found] == [f"{name}_step_ratio" for name in names]
    assert all(entry["value"] > 0 and entry["ratio"] > 0 for entry in found.values())


def measured(tables: dict[str, Any]) -> dict[str, Any]:
    """What the bench does, in a process of its own."""
    compile_without_code()
    return bench.entries(tables, turns=1, steps=2)


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
