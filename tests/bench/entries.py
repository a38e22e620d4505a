"""The form of a figure in `build/bench.json`."""

from typing import Any


def entry(
    value: float, unit: str, peer: float | None, goal: object, *, command: str, ratio: float | None = None
) -> dict[str, Any]:
    """Return a figure beside its peer; their ratio is that of both values, unless it is given."""
    if ratio is None and peer:
        ratio = value / peer
    peer, ratio = (None if figure is None else round(figure, 5) for figure in (peer, ratio))
    return {
        "value": round(value, 5),
        "unit": unit,
        "peer": peer,
        "ratio": ratio,
        "goal": goal,
        "command": command,
    }
