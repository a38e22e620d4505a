"""Checksums of tensors, by which a change of a state shows without a copy of it."""

import math
import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# Of all tensors of one look: 0.3 s of a core. Of more, each is looked at in blocks.
MOST_BYTES, BLOCK_BYTES = 1 << 30, 1 << 18
HERE = "cpu"  # the device that need not be waited for


def outlines(tensors: Iterable[Tensor], most_bytes: float = math.inf) -> list[int | None]:
    """Return a checksum of each tensor, or of its shard; None for a sparse one. Waits once for a GPU."""
    plain = [local_part(tensor) for tensor in tensors]
    parts = {n: _part_of(tensor, most_bytes) for n, tensor in enumerate(plain) if tensor is not None}
    for device in {part.device for part in parts.values() if part.device.type != HERE}:
        there = {n: part for n, part in parts.items() if part.device == device}
        together = torch.cat([*there.values()]).cpu()
        parts |= dict(zip(there, torch.split(together, [*map(len, there.values())]), strict=True))
    return [zlib.crc32(parts[n].numpy().data) if n in parts else None for n in range(len(plain))]


def bound_of_each(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of each tensor that a look reads, so that it reads MOST_BYTES of all of them."""
    sizes = [plain.nbytes for plain in map(local_part, tensors) if plain is not None]
    return MOST_BYTES if sum(sizes) <= MOST_BYTES else max(BLOCK_BYTES, MOST_BYTES // len(sizes))


def local_part(tensor: Tensor) -> Tensor | None:
    """Return this rank's part of a tensor, without its graph; None for one without plain numbers here."""
    if nn.parameter.is_lazy(tensor):
        return None
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
    if local.layout != torch.strided or local.is_meta or is_traceable_wrapper_subclass(local):
        return None
    return local.int_repr() if local.is_quantized else local.resolve_conj().resolve_neg()


def _part_of(tensor: Tensor, most_bytes: float) -> Tensor:
    """Return bytes (1-d, on its device) that change with a tensor; one of many on a GPU is summed there."""
    part = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    part = part if part.nbytes <= most_bytes else _blocks_of(part, int(most_bytes))
    if part.is_floating_point() and part.device.type != HERE and part.nbytes > BLOCK_BYTES:
        part = part.sum(dtype=torch.double)
    return part.reshape(-1).view(torch.uint8)


def _blocks_of(tensor: Tensor, most_bytes: int) -> Tensor:
    """Return a view of parts of a tensor, `most_bytes` together; of one that is not contiguous, of rows."""
    if not tensor.is_contiguous():
        longest = max(range(tensor.dim()), key=tensor.size)
        return tensor.transpose(0, longest)[:: math.ceil(tensor.nbytes / most_bytes)]
    flat, block = tensor.view(-1), BLOCK_BYTES // tensor.element_size()
    count = max(1, most_bytes // BLOCK_BYTES)
    return flat.unfold(0, block, max(block, (len(flat) - block) // max(1, count - 1)))
