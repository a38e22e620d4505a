"""Copies of batches to the device while it computes on earlier batches."""

from collections import deque
from collections.abc import Iterator

import torch

from gpu_fleet.data.loader import Batch


def to_device(batches: Iterator[Batch], device: torch.device, ahead: int) -> Iterator[Batch]:
    """Return the batches on `device`; a separate stream copies up to `ahead` of them early."""
    if device.type != "cuda":
        return batches
    return _copied_ahead(batches, device, ahead)


def _copied_ahead(batches: Iterator[Batch], device: torch.device, ahead: int) -> Iterator[Batch]:
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no hints here
    waiting: deque[tuple[Batch, torch.cuda.Event]] = deque()
    for batch in batches:
        with torch.cuda.stream(side):
            copied = batch.to(device)
            waiting.append((copied, side.record_event()))
        if len(waiting) > ahead:
            yield _received(*waiting.popleft())
    while waiting:
        yield _received(*waiting.popleft())


def _received(batch: Batch, copied: torch.cuda.Event) -> Batch:
    stream = torch.cuda.current_stream()
    stream.wait_event(copied)
    for tensor in batch.tensors:
        tensor.record_stream(stream)  # else the side stream may reuse the memory too early
    return batch
