"""The Trainer of transformers: a callback and `newest()` make your own program safe on spot instances.

.venv/bin/torchrun --standalone --nproc-per-node 2 training/examples/own_huggingface.py runs/own_huggingface
"""

import os
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from gpu_fleet.integrations.huggingface import FleetCallback


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": cross_entropy(self.layers(points), labels)}


def main(directory: str) -> None:
    torch.manual_seed(0)
    samples: Any = [{"points": point, "labels": int(point.sum() > 0)} for point in torch.randn(96, 8)]
    workers = int(os.environ.get("WORKERS", "0"))
    sizes: dict[str, Any] = {"max_steps": 11, "per_device_train_batch_size": 8, "learning_rate": 0.01}
    cpu: dict[str, Any] = {"use_cpu": True, "ddp_backend": "gloo", "dataloader_num_workers": workers}
    arguments = TrainingArguments(directory, report_to=[], save_strategy="no", **sizes, **cpu)
    callback = FleetCallback(directory)
    trainer = Trainer(Net(), arguments, train_dataset=samples, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.newest())
    trainer.save_model(f"{directory}/model")


main(sys.argv[1])
