"""A program that saves by itself: `run` sends it a signal at a notice, and copies its folder to the bucket.

gpu-fleet train run --checkpoints r -- torchrun --nproc-per-node 2 training/examples/own_program.py r 1000
"""

import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(file: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    notices: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: notices.append(number))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first, *states = torch.load(file) if file.exists() else (0,)
    for thing, state in zip((model, optimizer), states, strict=False):
        thing.load_state_dict(state)
    sys.stderr.write(f"begins at {first}\n")
    for step in range(first, steps):
        drawn = torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        optimizer.zero_grad()
        (model(drawn).squeeze(1) - drawn.sum(dim=1)).square().mean().backward()
        optimizer.step()
        dist.all_reduce(stop := torch.tensor(len(notices)))  # all ranks stop after the same step
        if (stop or step + 1 == steps) and dist.get_rank() == 0:
            torch.save([step + 1, model.state_dict(), optimizer.state_dict()], part := f"{file}.part")
            Path(part).replace(file)
        if stop:
            return


main(Path(sys.argv[1]) / "state.pt", int(sys.argv[2]))
