"""How the figures of many benches come into one file."""

import json
import subprocess
import sys

import pytest

from tests.bench.__main__ import ROOT, BenchError, entries_in, merge, names

ENTRY = {"value": 1.0, "unit": "s", "peer": 2.0, "ratio": 0.5, "goal": "< 1.3", "command": "make bench"}


def test_the_entries_are_what_the_output_ends_with():
    output = "warming up\n" + json.dumps({"stack_seconds": ENTRY}, indent=2) + "\n"

    assert entries_in(output, "stacks") == {"stack_seconds": ENTRY}


def test_an_entry_without_a_field_is_named():
    broken = {key: value for key, value in ENTRY.items() if key != "peer"}

    with pytest.raises(BenchError, match="stacks: entry stack_seconds lacks peer"):
        entries_in(json.dumps({"stack_seconds": broken}, indent=2), "stacks")


def test_output_without_figures_is_an_error():
    with pytest.raises(BenchError, match="ends with no JSON object"):
        entries_in("nothing measured", "stacks")


def test_new_figures_come_beside_the_old_ones(tmp_path):
    target = tmp_path / "build" / "bench.json"
    merge(target, {"old": ENTRY, "both": ENTRY})

    merge(target, {"both": ENTRY | {"value": 3.0}})

    written = json.loads(target.read_text())
    assert written["old"] == ENTRY
    assert written["both"]["value"] == 3.0


def test_every_room_that_measures_has_its_bench():
    assert "agent" in names()


def test_an_unknown_bench_is_answered_with_those_there_are():
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "agnet"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "did you mean agent?" in done.stderr
