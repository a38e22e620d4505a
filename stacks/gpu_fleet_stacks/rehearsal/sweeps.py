"""Sweeps of a rehearsed stack: by an operator's command, and by the function in the stack's archive."""

import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.payload import sweep_archive
from gpu_fleet_stacks.rehearsal import archives, lambda_runtime, processes
from gpu_fleet_stacks.rehearsal.program import Rehearsed

FUNCTION = "aws:lambda/function:Function"
HANDLE_ONCE = Path(__file__).with_name("handle_once.py")
Report = dict[str, Any]


@dataclass(frozen=True)
class Function:
    """The sweep's function, unpacked.

    Attributes:
        folder: holds its modules and ``policy.json``.
        environment: the variables that the stack gives it.
        runtime: the packages that Lambda provides.
    """

    folder: Path
    environment: Mapping[str, str]
    runtime: Path


def unpacked(rehearsed: Rehearsed, folder: Path) -> Function:
    """Zip the function's archive as in an upload, and unzip it as Lambda does."""
    (function,) = [resource for resource in rehearsed.of_type(FUNCTION) if resource.name.endswith("-reaper")]
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".zip")
    archive.write_bytes(archives.zip_bytes(function.inputs["code"]))
    with zipfile.ZipFile(archive) as content:
        content.extractall(folder)
    runtime = lambda_runtime.laid_out(folder.with_name(f"{folder.name}-runtime"))
    return Function(folder, function.inputs["environment"]["variables"], runtime)


def by_command(function: Function, now: datetime) -> Report:
    """Run ``gpu-fleet sweep --dry-run`` with the function's own policy at a given time; return its report.

    Raises ChildError if it fails in part or completely.
    """
    stem = function.folder.parent / "sweep-dry"
    report, log = stem.with_suffix(".json"), stem.with_suffix(".log")
    command = [
        *(sys.executable, "-m", "gpu_fleet_image.console", "sweep"),
        *("--policy", str(function.folder / "policy.json"), "--now", now.isoformat()),
        *("--report", str(report)),
        "--dry-run",
    ]
    processes.run(command, log, {**function.environment, "PYTHONPATH": str(sweep_archive.ROOT)})
    content: Report = json.loads(report.read_text())
    return content


def by_function(function: Function, now: datetime | None = None) -> Report:
    """Run the function's handler, in an interpreter that has Lambda's packages and none of ours.

    Returns its answer with each verdict.

    Args:
        now: the time of its clock; by default the present.

    Raises:
        ChildError: the handler raises an error.
    """
    log = function.folder.parent / "function.log"
    command = [
        *(sys.executable, "-I", "-S", str(HANDLE_ONCE)),
        *(str(function.folder), "{}", str(function.runtime)),
        *([now.isoformat()] if now else []),
    ]
    processes.run(command, log, function.environment)
    *events, answer = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    verdicts = [event for event in events if event.get("event") == "verdict"]
    return {**answer, "verdicts": verdicts}
