"""A plain loop of PyTorch; the lines with `run` make it exact, safe on spot instances, and upload.

.venv/bin/torchrun --standalone --nproc-per-node 2 training/examples/own_loop.py runs/own_loop
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

from gpu_fleet import Run

STEPS, WORKERS = int(os.environ.get("STEPS", "40")), int(os.environ.get("WORKERS", "0"))


def main(directory: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(points := torch.randn(500, 8), (points.sum(dim=1) > 0).long())
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    schedule = CosineAnnealingLR(optimizer, STEPS)
    with Run(directory, model=model, optimizer=optimizer, schedule=schedule) as run:
        batches = run.batches(dataset, batch_size=32, workers=WORKERS)
        for _ in run.steps(STEPS):
            inputs, targets = next(batches)
            optimizer.zero_grad()
            cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
            schedule.step()


main(sys.argv[1])
