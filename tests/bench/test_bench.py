"""How the figures of many benches come into one file."""

import json
import os
import signal
import subprocess
import sys

import pytest

from image.reaper.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from tests.bench.__main__ import ROOT, BenchError, entries_in, merge
from tests.bench.bench_reaper import LARGE, custodian_policy
from tests.bench.bench_reaper_mutants import Witness, first_to_fail

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


def test_an_unknown_bench_is_answered_with_those_there_are():
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "agnet"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "did you mean agent?" in done.stderr


def test_the_peer_is_asked_by_its_own_uptime_and_by_our_metric_and_for_every_instance():
    policy = custodian_policy()
    by_type = {filter_["type"]: filter_ for filter_ in policy["filters"] if "type" in filter_}

    assert by_type["instance-uptime"] == {"type": "instance-uptime", "op": "greater-than", "days": 1 / 24}
    assert by_type["metrics"]["name"] == METRIC_SECONDS_SINCE_ACTIVITY
    assert policy["max-resources"] >= LARGE


@pytest.mark.parametrize(
    ("fails", "seen"),
    [(lambda: False, ""), (lambda: True, "second"), (lambda: os.kill(os.getpid(), signal.SIGKILL), "second")],
    ids=["nobody", "who fails", "who is killed"],
)
def test_a_mutant_is_seen_by_the_first_who_fails_or_comes_to_no_end(fails, seen):
    witnesses = [Witness("first", lambda: False), Witness("second", fails), Witness("third", lambda: False)]

    assert first_to_fail([], witnesses) == seen
