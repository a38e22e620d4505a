"""A loop with Accelerate: FleetSteps gives its batches, saves, and ends at a notice.

.venv/bin/torchrun --standalone --nproc-per-node 2 training/examples/own_accelerate.py runs/own_accelerate
"""

import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gpu_fleet.integrations.accelerate import FleetSteps

WORKERS = int(os.environ.get("WORKERS", "0"))


def main(directory: str) -> None:
    torch.manual_seed(0)
    points = torch.randn(96, 8)
    samples = TensorDataset(points, (points.sum(dim=1) > 0).long())
    # the order of samples has a seed of its own, which a resumed run needs
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(samples, batch_size=8, shuffle=True, num_workers=WORKERS)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    torch.manual_seed(accelerator.process_index)  # another dropout on each process
    for inputs, labels in FleetSteps(accelerator, directory).over(loader, steps=11):
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(inputs), labels))
        optimizer.step()
    accelerator.save_model(model, f"{directory}/model")


main(sys.argv[1])
