"""Values of a saved state: those that can be restored from a checkpoint, and the kinds of containers."""

import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_fleet.core.errors import UnreadableError, a_kind

PLAIN = (bytes, complex, torch.dtype, torch.device, type(None))
NUMBERS_AND_TEXT = (bool, int, float, str)


def plain(value: Any, owner: str, path: str = "") -> Any:
    """Return a state that torch.load reads without running code; raises UnreadableError naming the place."""
    if isinstance(value, np.generic):  # before float: np.float64 is a float too
        return value.item()
    if isinstance(value, Tensor) and (kind := _without_elements(value)):
        raise UnreadableError(
            f"{owner}: its state_dict holds a {kind} tensor at {path or 'its top'}, which a checkpoint "
            "cannot hold; keep dense tensors, such as its indices and values, and build it from them"
        )
    if isinstance(value, PLAIN) or _is_readable(value):
        return value
    if isinstance(value, NUMBERS_AND_TEXT):  # converted: loading an IntEnum would need code
        return next(kind for kind in NUMBERS_AND_TEXT if isinstance(value, kind))(value)
    if isinstance(value, Mapping):
        items = value.items()
        return mapping_like(
            value, {plain(key, owner, path): plain(item, owner, f"{path}[{key!r}]") for key, item in items}
        )
    if isinstance(value, list | tuple | set):
        return sequence_like(value, (plain(item, owner, f"{path}[{n}]") for n, item in enumerate(value)))
    raise UnreadableError(
        f"{owner}: its state_dict holds {a_kind(value)} at {path or 'its top'}, which a checkpoint "
        "cannot restore; allowed: tensors, numbers and text, and lists and dictionaries of them"
    )


def _without_elements(tensor: Tensor) -> str:
    """Return the kind of a tensor that has not all its elements in memory; empty for one that has."""
    if nn.parameter.is_lazy(tensor):
        return ""
    kinds = {
        "nested": tensor.is_nested,
        "meta": tensor.is_meta,
        "quantized": tensor.is_quantized,
        "sparse": tensor.layout != torch.strided,
    }
    return next((kind for kind, is_so in kinds.items() if is_so), "")


def _is_readable(value: Any) -> bool:
    """Return whether a value is a tensor of a kind that torch.load knows, or that a user lets it load."""
    known = (Tensor, DTensor, *torch.serialization.get_safe_globals())
    return type(value) in known or isinstance(value, nn.Parameter)


def mapping_like(value: Mapping[Any, Any], items: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return `items` in the kind of mapping of `value`; a dict for kinds that torch.load refuses."""
    if type(value) is Counter:
        return Counter(items)
    if type(value) is OrderedDict:
        ordered = OrderedDict(items)
        vars(ordered).update(vars(value))  # a module's _metadata: the version of each layer's state
        return ordered
    return dict(items)


def sequence_like(value: Sequence[Any] | set[Any], items: Iterable[Any]) -> Any:
    """Return `items` in the kind of `value`: a list, tuple or set, or a torch.Size."""
    if isinstance(value, torch.Size):
        return torch.Size(items)
    return next(kind for kind in (list, tuple, set) if isinstance(value, kind))(items)


def shaped(saved: Any, live: Any) -> Any:
    """Return a saved state in containers of the `live` kinds that torch.load refuses, and on its devices."""
    if isinstance(saved, dict) and isinstance(live, Mapping):
        items = {key: shaped(item, live[key]) if key in live else item for key, item in saved.items()}
        if not isinstance(live, type(saved)) or type(live) is type(saved):
            return mapping_like(saved, items)
        kind = copy(live)
        kind.clear()
        kind.update(items)
        return kind
    if isinstance(saved, list | tuple) and isinstance(live, list | tuple):
        beside = [*live, *[None] * len(saved)]
        parts = [shaped(item, other) for item, other in zip(saved, beside, strict=False)]
        if not isinstance(live, type(saved)) or type(live) is type(saved):
            return sequence_like(saved, parts)
        return live._make(parts) if hasattr(live, "_make") else type(live)(parts)
    if isinstance(saved, Tensor) and isinstance(live, Tensor) and not live.is_meta:
        return saved.to(live.device)
    return type(live)(saved) if isinstance(saved, set) and isinstance(live, set) else saved


def read_state(path: Path, *, mapped: bool = False) -> Any:
    """Load the nested state of a file, `mapped` or into memory; raises UnreadableError."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        why = str(error).partition("\n")[0]
        raise UnreadableError(f"{path}: what was saved cannot be read again: {why}") from error
