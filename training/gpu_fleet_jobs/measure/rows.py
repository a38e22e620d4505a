"""Rows of a measurement, as lines of the run's log, which `gpu-fleet poc` reads.

image/gpu_fleet_image/console/poc/measured.py parses the same lines.
"""

import json
import sys
from dataclasses import asdict, dataclass

PREFIX = "gpu-fleet-measured "


@dataclass(frozen=True)
class MeasuredRow:
    """One figure, or the reason why there is none.

    Attributes:
        subject: `scratch`, `home`, `shared_scratch`, `bucket`, `all_reduce`, or a model.
        metric: name of the figure.
        value: None for unknown; then `note` gives the reason.
        nodes: instances that measured at the same time.
        ranks: processes, one for each GPU; 0 where they do not matter.
        size_mib: of an all-reduce; 0 for everything else.
        tool: program that measured.
        stands_for: the model in whose place a small one was trained; empty for none.
        lower_bound: the tool itself may be the limit, so the true value may be higher.
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


def print_row(row: MeasuredRow) -> None:
    """Print a row."""
    _print({"row": asdict(row)})


def print_device(device: str, ranks: int, backend: str, torch_version: str) -> None:
    """Print the device of the ranks of one instance."""
    _print({"device": device, "ranks_per_node": ranks, "backend": backend, "torch": torch_version})


def _print(said: dict[str, object]) -> None:
    sys.stdout.write(f"\n{PREFIX}{json.dumps(said)}\n")  # other ranks may have left half a line
    sys.stdout.flush()
