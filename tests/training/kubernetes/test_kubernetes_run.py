"""Run the pods of a manifest: two pods meet, are drained, are replaced, and finish."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml

from tests.training.kubernetes.manifests.pods import Pod, action
from tests.training.ports import reserved_port
from tests.training.programs import ROOT

PATIENCE_S = 240
EXAMPLE = ROOT / "training/examples/own_model.py"
# The drained run has no end that it could come to before it is drained.
ENDLESS = 1_000_000
MORE = 30


def rendered(tmp_path: Path, steps: int) -> list[dict[str, Any]]:
    """Render a small run with its own model, one process a pod; volumes hold data and checkpoints."""
    (tmp_path / "perceptron.py").write_text(EXAMPLE.read_text())
    table = {
        "run": {"directory": "runs/small", "steps": steps, "batch_size": 32},
        "schedule": {"name": "constant"},  # whose run may be given another length
        "model": {"name": "perceptron.py:Perceptron", "options": {"width": 16, "dropout": 0.1}},
        "data": {"path": "data/digits"},
        "checkpoint": {"every_steps": 20},
    }
    (tmp_path / "small.toml").write_text(tomli_w.dumps(table))
    options = ["--nodes", "2", "--gpus", "0", "--claim", "datasets", "--claim", "results:runs"]
    made = subprocess.run(
        [sys.executable, "-m", "gpu_fleet", "render", "--kubernetes", "small.toml", "--image", "x", *options],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "training")},
        stdout=subprocess.PIPE,
        check=True,
    )
    return list(yaml.safe_load_all(made.stdout))


@contextmanager
def running(
    manifests: list[dict[str, Any]], folder: Path, claims: dict[str, Path]
) -> Iterator[tuple[list[Pod], Any]]:
    """Start two new pods; yield them and their stderr, and end them after the block."""
    reading, writing = os.pipe()
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        words = stack.enter_context(os.fdopen(reading))
        pods = []
        for index in (1, 0):  # pod 1 has to wait for pod 0
            pods.append(Pod(manifests, index, folder / str(index), claims, port=port, stderr=writing))
            stack.callback(pods[-1].end)
        os.close(writing)
        guard = threading.Timer(PATIENCE_S, lambda: [pod.end() for pod in pods])
        stack.callback(guard.cancel)
        guard.start()
        yield pods[::-1], words


@pytest.mark.prove
def test_drained_pods_save_and_their_successors_finish(digits, forked, tmp_path):
    manifests = rendered(tmp_path, ENDLESS)
    policy = manifests[-1]["spec"]["podFailurePolicy"]
    volumes = {"datasets": digits.parent, "results": tmp_path / "results"}
    volumes["results"].mkdir()

    with running(manifests, tmp_path / "first", volumes) as (pods, words):
        said = [next(line for line in words if "event=checkpoint step=" in line)]
        pods[1].process.terminate()  # as the kubelet does to one pod of a node that is drained
        said += words
        stopped = [pod.process.wait() for pod in pods]
    assert [action(policy, status) for status in stopped] == ["Ignore", "Ignore"], "".join(said)
    result = json.loads((volumes["results"] / "small/result.json").read_text())
    assert (result["outcome"], result["reason"]) == ("stopped", "sigterm")

    stopped_at = result["step"]
    shorter = rendered(tmp_path, stopped_at + MORE)
    with running(shorter, tmp_path / "second", volumes) as (pods, words):
        said = list(words)
        finished = [pod.process.wait() for pod in pods]
    assert finished == [0, 0], "".join(said)
    result = json.loads((volumes["results"] / "small/result.json").read_text())
    assert (result["outcome"], result["step"]) == ("finished", stopped_at + MORE)
    assert result["resumed_from_step"] == stopped_at
