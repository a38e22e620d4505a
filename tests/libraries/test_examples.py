"""The examples for other libraries' loops on two ranks: a notice in the midst of an epoch changes no bit."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "training/examples"
STOP_AT = 4

pytestmark = [pytest.mark.libraries, pytest.mark.prove, pytest.mark.timeout(900)]


def run(python: Path, example: str, folder: Path, workers: int, stop_at: int = 0) -> str:
    """One training on two ranks; all it said. Under torchrun a stopped one ends with 0, too."""
    words = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += [HERE / "stopped.py", EXAMPLES / f"{example}.py", folder, str(stop_at)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORKERS": str(workers)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def weights(folder: Path) -> dict[str, Tensor] | None:
    """Of the finished model; None where the training has not come to its end."""
    if (folder / "model.ckpt").exists():
        found: dict[str, Tensor] = torch.load(folder / "model.ckpt", weights_only=False)["state_dict"]
        return found
    file = folder / "model/model.safetensors"
    return load_file(file) if file.exists() else None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("example", ["own_huggingface", "own_accelerate", "own_lightning"])
def test_an_example_that_is_interrupted_on_two_ranks_ends_with_the_same_bits(
    example, workers, python, tmp_path
):
    straight, broken = tmp_path / "straight", tmp_path / "broken"

    said = run(python, example, straight, workers)
    stopped = run(python, example, broken, workers, stop_at=STOP_AT)
    unfinished = weights(broken)
    run(python, example, broken, workers)

    assert "not exact" not in said
    assert unfinished is None
    assert "event=stopped" in stopped
    expected, found = weights(straight), weights(broken)
    assert expected is not None
    assert found is not None
    assert all(torch.equal(found[name], expected[name]) for name in expected)
