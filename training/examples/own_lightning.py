"""Lightning's Trainer: a callback, `newest()`, and a loader that resumes in the middle of an epoch.

.venv/bin/torchrun --standalone --nproc-per-node 2 training/examples/own_lightning.py runs/own_lightning
"""

import os
import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from gpu_fleet.integrations.lightning import FleetCallback, ResumableLoader


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main(directory: str) -> None:
    torch.manual_seed(int(os.environ["RANK"]))  # another dropout on each rank; DDP shares rank 0's weights
    samples = TensorDataset(points := torch.arange(768.0).sin().view(96, 8), (points.sum(dim=1) > 0).long())
    ranks, workers = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ.get("WORKERS", "0"))
    loader = ResumableLoader(samples, batch_size=8, shuffle=True, num_workers=workers)
    callback = FleetCallback(directory)
    trainer = Trainer(default_root_dir=directory, max_steps=11, devices=ranks, callbacks=[callback])
    trainer.fit(Net(), loader, ckpt_path=callback.newest())
    trainer.save_checkpoint(f"{directory}/model.ckpt")


main(sys.argv[1])
