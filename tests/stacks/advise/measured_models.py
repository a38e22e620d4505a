"""Small models trained for one step on the CPU, and their real memory."""

import torch
from torch import nn

MODELS = {
    "perceptron": lambda: (
        nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)),
        torch.randn(4, 256),
    ),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 3),
        torch.randn(2, 16, 128),
    ),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.Flatten()),
        torch.randn(2, 3, 12, 12),
    ),
}


def measured(name: str) -> tuple[int, int]:
    """Train one step with AdamW; return the number of parameters, and the bytes of all remaining state."""
    model, sample = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    model(sample).square().mean().backward()
    optimizer.step()
    tensors = [*model.parameters(), *(parameter.grad for parameter in model.parameters()), *model.buffers()]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    count = sum(parameter.numel() for parameter in model.parameters())
    return count, sum(tensor.untyped_storage().nbytes() for tensor in tensors)
