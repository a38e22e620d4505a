"""Number formats: autocast, the gradient scaler, clipping."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from training import config

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_matrix_format(settings: config.Precision) -> None:
    """Lets matrix products round to TF32 when asked; fp32 keeps them whole."""
    chosen = "tf32" if settings.dtype == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = chosen
    torch.backends.cudnn.conv.fp32_precision = chosen  # type: ignore[attr-defined]  # torch 2.9 and later, not in its hints


def autocast(settings: config.Precision, device: torch.device) -> AbstractContextManager[None]:
    """The context of a forward pass."""
    dtype = DTYPES.get(settings.dtype)
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def scaler(settings: config.Precision, device: torch.device) -> torch.amp.GradScaler:
    """Scales the loss for fp16, whose gradients would underflow; does nothing for the other formats."""
    return torch.amp.GradScaler(device.type, enabled=settings.dtype == "fp16")


def clip(model: nn.Module, limit: float) -> Tensor:
    """The norm of all gradients () float32, which are scaled down to `limit` when above it; 0 never clips."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if limit > 0:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)
    return norm
