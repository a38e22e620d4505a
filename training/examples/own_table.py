"""Regression on the columns of a table: Parquet, JSON lines or a Hugging Face data set; see own_table.toml.

pip install datasets 'pyarrow<26'
gpu-fleet train start training/examples/own_table.toml
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

Columns = dict[str, Tensor]  # a batch: (batch,) each


def model(columns: int) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))


def predicted(model: nn.Module, batch: Columns) -> Tensor:
    inputs = [column.float() for name, column in batch.items() if name != "price"]
    prices: Tensor = model(torch.stack(inputs, dim=1)).squeeze(1)
    return prices


def loss(model: nn.Module, batch: Columns) -> Tensor:
    return mse_loss(predicted(model, batch), batch["price"].float())


def metrics(model: nn.Module, batch: Columns) -> dict[str, Tensor]:
    return {"mean absolute error": (predicted(model, batch) - batch["price"]).abs().mean()}
