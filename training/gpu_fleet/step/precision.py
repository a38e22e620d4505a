"""Number formats: autocast, the gradient scaler, clipping."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_fleet.core import config

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_matrix_format(settings: config.Precision) -> None:
    """Set the format of matrix products (TF32 only for dtype tf32) and cuDNN's benchmark mode."""
    chosen = "tf32" if settings.dtype == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = chosen
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark
    torch.backends.cudnn.conv.fp32_precision = chosen  # type: ignore[attr-defined]  # torch 2.9 and later, not in its hints


def autocast(settings: config.Precision, device: torch.device) -> AbstractContextManager[None]:
    dtype = DTYPES.get(settings.dtype)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def scaler(settings: config.Precision, device: torch.device) -> torch.amp.GradScaler:
    """Return a scaler of the loss for fp16, whose gradients would underflow; no effect for other formats."""
    return torch.amp.GradScaler(device.type, enabled=settings.dtype == "fp16")


def clip(parameters: Sequence[nn.Parameter], limit: float, others: dist.ProcessGroup | None = None) -> Tensor:
    """Scale gradients to the norm `limit`, if not 0; `others` hold other layers. Return their norm ()."""
    kinds: dict[object, list[Tensor]] = {}  # by device mesh
    for parameter in parameters:
        if parameter.grad is not None:
            mesh = parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None
            kinds.setdefault(mesh, []).append(parameter)
    norms = []
    for alike in kinds.values():  # torch's fused norms take tensors of one mesh only, or plain ones
        norm = torch.nn.utils.get_total_norm([cast("Tensor", p.grad) for p in alike])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if len(norms) == 1 and others is None:
        total = norms[0]
    else:
        squared = torch.zeros((), device=parameters[0].device)
        for norm in norms:
            squared += norm**2
        if others is not None:
            dist.all_reduce(squared, group=others)
        total = squared.sqrt()
    if limit > 0:
        for alike in kinds.values():
            torch.nn.utils.clip_grads_with_norm_(alike, limit, total)
    return total


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether these local tensors have no NaN or infinity; waits for the device."""
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault(tensor.dtype, []).append(tensor)
    norms = (torch.nn.utils.get_total_norm(alike, math.inf) for alike in kinds.values())
    return all(bool(norm.isfinite()) for norm in norms)
