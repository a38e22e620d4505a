"""result.json: how a run ended and what came of it. It is also the marker that says why a run stopped."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from training.checkpoint.local import sync_folder, write_bytes

RESULT = "result.json"


@dataclass(frozen=True)
class Outcome:
    """What result.json holds."""

    outcome: Literal["finished", "stopped"]
    reason: str  # of a stop: sigterm, sigint, spot-notice, rebalance, stop-file; else "all steps done"
    detail: str  # for people: what the notice said, on which rank
    step: int  # optimizer steps done
    epoch: float  # passes over the training data
    parameters_sha256: str  # of parameters and buffers, see state.parameters_sha256
    resumed_from_step: int | None
    checkpoint: str  # where a resumed run will find this step
    metric_name: str = ""
    metric: float | None = None  # on the held-out data; None when the run stopped before it was measured
    baseline_name: str = ""
    baseline: float | None = None  # the same metric of a simple method on the same data


def write(directory: Path, outcome: Outcome) -> None:
    """Writes result.json as a whole or not at all; several machines may do so in one shared folder."""
    directory.mkdir(parents=True, exist_ok=True)
    staged = directory / f"{RESULT}.{platform.node()}-{os.getpid()}.tmp"
    write_bytes(staged, (json.dumps(asdict(outcome), indent=1) + "\n").encode())
    staged.replace(directory / RESULT)
    sync_folder(directory)


def remove(directory: Path) -> None:
    """Takes the result of an earlier run away, so that nobody reads it as this one's."""
    (directory / RESULT).unlink(missing_ok=True)


def stopped_since(directory: Path, started_at_s: float) -> bool:
    """Whether a run that saved, stopped and left word did so after `started_at_s` (seconds of the epoch)."""
    try:
        file = directory / RESULT
        fresh = file.stat().st_mtime >= started_at_s
        return fresh and json.loads(file.read_text(encoding="utf-8"))["outcome"] == "stopped"
    except (OSError, ValueError, KeyError):
        return False
