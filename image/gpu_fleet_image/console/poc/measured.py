"""Figures that instances measured, from the lines of a run's log. Pure.

training/gpu_fleet_jobs/measure/rows.py prints the lines.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

PREFIX = "gpu-fleet-measured "
TEXTS = ("subject", "metric", "unit", "tool", "note", "stands_for")
NUMBERS = ("nodes", "ranks", "size_mib")
FLAGS = ("lower_bound", "absent")


@dataclass(frozen=True)
class Measurement:
    """One figure, or the reason why there is none.

    Attributes:
        subject: ``scratch``, ``home``, ``shared_scratch``, ``bucket``, ``all_reduce``, or a model.
        value: None for unknown; then ``note`` gives the reason.
        nodes: instances that measured at the same time.
        ranks: processes, one for each GPU; 0 where they do not matter.
        size_mib: of an all-reduce; else 0.
        stands_for: the model in whose place a small one was trained; empty for none.
        lower_bound: the tool itself may be the limit.
        absent: the stack has none by its own settings.
    """

    subject: str
    metric: str
    value: float | None
    unit: str
    nodes: int
    ranks: int = 0
    size_mib: int = 0
    tool: str = ""
    note: str = ""
    stands_for: str = ""
    lower_bound: bool = False
    absent: bool = False


@dataclass(frozen=True)
class Device:
    """Device of the ranks of one instance."""

    name: str
    ranks_per_node: int
    backend: str
    torch: str


@dataclass(frozen=True)
class MeasuredLog:
    """Content of a log, malformed lines left out.

    Attributes:
        device: None if no rank has begun; of the last part, which has all ranks of an instance.
    """

    device: Device | None
    rows: tuple[Measurement, ...]


def parse_log(text: str) -> MeasuredLog:
    """Return the figures of a log; of a try that was repeated, the newer ones."""
    device: Device | None = None
    rows: dict[tuple[object, ...], Measurement] = {}
    for line in text.splitlines():
        said = _said(line)
        row = measurement_of(said.get("row"))
        if row is not None:
            rows[row.subject, row.metric, row.nodes, row.ranks, row.size_mib] = row
        device = _device(said) or device
    return MeasuredLog(device, tuple(rows.values()))


def _said(line: str) -> Mapping[str, Any]:
    if not line.startswith(PREFIX):
        return {}
    try:
        said = json.loads(line.removeprefix(PREFIX))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _device(said: Mapping[str, Any]) -> Device | None:
    ranks = said.get("ranks_per_node")
    if not isinstance(ranks, int) or "device" not in said:
        return None
    return Device(str(said["device"]), ranks, str(said.get("backend", "")), str(said.get("torch", "")))


def measurement_of(raw: object) -> Measurement | None:
    """Return a row; None if it is malformed."""
    known = {field.name for field in fields(Measurement)}
    if (
        not isinstance(raw, dict)
        or not raw.keys() <= known
        or not {"subject", "metric", "unit"} <= raw.keys()
    ):
        return None
    value = raw.get("value")
    right = (
        all(isinstance(raw.get(name, ""), str) for name in TEXTS)
        and all(type(raw.get(name, 0)) is int and raw.get(name, 0) >= 0 for name in NUMBERS)
        and all(isinstance(raw.get(name, False), bool) for name in FLAGS)
        and (value is None or (type(value) in (int, float) and math.isfinite(value) and value >= 0))
        and raw.get("nodes", 0) > 0
    )
    return Measurement(**{"value": None, **raw}) if right else None
