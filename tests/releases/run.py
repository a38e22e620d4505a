"""A run of two steps, as a user's own loop: what a release saves of it, and what a later one finds there."""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from gpu_fleet import Run

STEPS = 2


def loop(directory: Path, steps: int) -> list[list[float]]:
    """Train up to a step; return weights and momentum at the start."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Run(directory, model=model, optimizer=optimizer) as run:
        state = optimizer.state_dict()["state"].values()
        found = [
            model.weight.flatten().tolist(),
            *(row["momentum_buffer"].flatten().tolist() for row in state),
        ]
        for _ in run.steps(steps):
            optimizer.zero_grad()
            model(torch.ones(3)).sum().backward()
            optimizer.step()
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    loop(folder, STEPS)
    with TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        sys.stdout.write(json.dumps(loop(Path(copy), STEPS + 1)))
