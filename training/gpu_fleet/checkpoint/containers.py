"""Containers of a saved state, which a restore gives back in their kind: a schedule needs its Counter."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import torch


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
    """Return a saved state with each container in the kind that the `live` state has in its place.

    This serves kinds that torch.load refuses, such as a defaultdict or a named tuple, and checkpoints of
    trainers that saved only plain containers.
    """
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
    if isinstance(saved, set) and isinstance(live, set):
        return type(live)(saved)
    return saved
