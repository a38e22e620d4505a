"""The containers of a saved state, which come back as what they were: a schedule counts with its Counter."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import torch


def mapping_like(value: Mapping[Any, Any], items: Mapping[Any, Any]) -> dict[Any, Any]:
    """`items` in the kind of mapping that `value` is; a dict for a kind that torch reads no file of."""
    if type(value) is Counter:
        return Counter(items)
    if type(value) is OrderedDict:
        ordered = OrderedDict(items)
        vars(ordered).update(vars(value))  # _metadata of a module: the version of each layer's state
        return ordered
    return dict(items)


def sequence_like(value: Sequence[Any] | set[Any], items: Iterable[Any]) -> Any:
    """The same for lists, tuples and sets."""
    if isinstance(value, torch.Size):
        return torch.Size(items)
    return next(kind for kind in (list, tuple, set) if isinstance(value, kind))(items)


def shaped(saved: Any, live: Any) -> Any:
    """A state that was read, with each container in the kind that the `live` state has in its place.

    For kinds that torch reads no file of, such as a defaultdict or a named tuple, and for checkpoints of
    trainers that saved plain ones alone.
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
