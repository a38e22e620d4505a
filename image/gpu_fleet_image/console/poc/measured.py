"""Figures that instances measured, from the lines of a run's log. Pure.

training/gpu_fleet_jobs/measure/rows.py prints the lines.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from gpu_fleet_image.core import document
from gpu_fleet_image.core.document import number, whole

PREFIX = "gpu-fleet-measured "
_MOST = 1 << 40
FROM_ZERO = number(0, 1e18)


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
    value: Annotated[float, FROM_ZERO] | None
    unit: str
    nodes: Annotated[int, whole(1, _MOST)]
    ranks: Annotated[int, whole(0, _MOST)] = 0
    size_mib: Annotated[int, whole(0, _MOST)] = 0
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
    return document.read(Measurement, {"value": None, **raw} if isinstance(raw, dict) else raw, "", [])
