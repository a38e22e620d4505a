"""Traces: the chosen steps and no others, in a file that the viewers read."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.metrics.profiling import StepTrace, marked


def run_steps(trace: StepTrace, steps: range) -> None:
    """Multiply matrices of another size in each step, so that the trace shows the step."""
    for step in steps:
        trace.before_step(step)
        torch.ones(step, 2) @ torch.ones(2, step)
        trace.after_step(step)


def traced_sizes(file) -> list[int]:
    events = json.loads(file.read_text())["traceEvents"]
    return [event["args"]["Input Dims"][0][0] for event in events if event.get("name") == "aten::mm"]


@pytest.mark.parametrize(
    ("chosen", "run", "traced"),
    [((3, 4), (1, 7), [3, 4]), ((2, 100), (1, 4), [2, 3]), ((2, 5), (4, 8), [4, 5])],
    ids=["within", "the run ends inside", "the run resumes inside"],
)
def test_the_trace_holds_the_chosen_steps_that_were_run_and_their_memory(chosen, run, traced, tmp_path):
    with StepTrace(chosen, tmp_path) as trace:
        run_steps(trace, range(*run))

    assert traced_sizes(trace.file) == traced
    assert '"[memory]"' in trace.file.read_text()


def test_without_steps_nothing_is_written(tmp_path):
    with StepTrace((), tmp_path) as trace:
        run_steps(trace, range(1, 4))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps", [(5,), (5, 4), (0, 3), (1, 2, 3)])
def test_a_wrong_range_is_named(steps, tmp_path):
    with pytest.raises(ConfigError, match=r"metrics.profile_steps = \["):
        StepTrace(steps, tmp_path)


def test_ranges_are_named_for_nsight_systems_where_there_is_a_gpu(monkeypatch):
    named = []

    @contextmanager
    def noted(name):
        named.append(name)
        yield

    with marked("nothing"):
        pass
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("gpu_fleet.metrics.profiling.nvtx", SimpleNamespace(range=noted))
    with marked("update"):
        pass

    assert named == ["update"]
