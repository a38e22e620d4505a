"""result.json: how a run ended, and its results. It is also the marker that says why a run stopped."""

import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from gpu_fleet.errors import CheckpointError, TrainingError
from gpu_fleet.files import sync_folder, write_bytes

BEGUN = ".begun"  # in the run directory
RESULT = "result.json"
FAILURE = "failure.json"
LAUNCHED = "GPU_FLEET_LAUNCHED"  # set by `launch` for its ranks, to distinguish their failure from another's
COLLECTIVES = "collectives-rank-"  # and the rank: what torch's flight recorder had when a run stood still


@dataclass(frozen=True)
class Outcome:
    """What result.json holds."""

    outcome: Literal["finished", "stopped"]
    reason: str  # of a stop: sigterm, spot-notice...; else "all steps done", or "left the loop" of Run
    detail: str  # for users: what the notice said, on which rank
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
    """Writes result.json as a whole or not at all; several instances may do so in one shared folder.

    Raises CheckpointError when the disk takes no more.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _replace(directory / RESULT, asdict(outcome))
        sync_folder(directory)
    except OSError as error:
        raise CheckpointError(f"{directory / RESULT}: cannot be written: {error.strerror}") from error


def _replace(file: Path, table: dict[str, Any]) -> None:
    staged = file.with_name(f"{file.name}.{platform.node()}-{os.getpid()}.tmp")
    write_bytes(staged, (json.dumps(table, indent=1) + "\n").encode())
    staged.replace(file)


def remove_failure(directory: Path) -> None:
    """Removes why an earlier run failed, once this one has the directory; raises OSError."""
    if not restarted():
        (directory / FAILURE).unlink(missing_ok=True)


def remove_result(directory: Path) -> None:
    """Removes how an earlier run ended, before this one's first step; raises OSError.

    No sooner: a start that is refused leaves it.
    """
    if not restarted():
        (directory / RESULT).unlink(missing_ok=True)


def write_failure(directory: Path, error: str, rank: int) -> None:
    """Leaves word, for `launch` and a restarted rank, that no other try can help; makes the folder."""
    directory.mkdir(parents=True, exist_ok=True)
    launched = os.environ.get(LAUNCHED, "")
    table = {"error": error, "rank": rank, "attempt": attempt(), "launched": launched}
    _replace(directory / FAILURE, table)


def leave(directory: Path, error: TrainingError, rank: int) -> NoReturn:
    """Ends a program that is not ours with one message; of what all ranks raise alike rank 0 speaks.

    Where no other try can help it leaves word of that: torchrun itself ends with 1, whatever has happened.
    """
    if rank == 0 or not error.shared:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the program has no command line of ours
        if error.for_good:
            with suppress(OSError):  # the disk may be why it failed; the exit status says it too
                write_failure(directory, str(error), rank)
    sys.exit(error.exit_status)


def failed_since(directory: Path, started_at_s: float, launched: str = "") -> bool:
    """Whether a run left word after `started_at_s` (seconds of the epoch) that it failed for good.

    With `launched` only the ranks count that have it in their environment: what somebody else starts in the
    same directory by mistake, and is refused, must not end the run that is there.
    """
    try:
        file = directory / FAILURE
        fresh = file.stat().st_mtime >= started_at_s
        return fresh and (
            not launched or json.loads(file.read_text(encoding="utf-8")).get("launched") == launched
        )
    except (OSError, ValueError):
        return False


def failed_before(directory: Path) -> str:
    """The error for which an earlier try of this very torchrun failed for good; empty where there is none."""
    try:
        table = json.loads((directory / FAILURE).read_text(encoding="utf-8"))
        return str(table["error"]) if table["attempt"] == attempt() != "" and restarted() else ""
    except (OSError, ValueError, KeyError):
        return ""


def attempt() -> str:
    """What torchrun calls this run; empty without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def restarted() -> bool:
    """Whether torchrun has started this rank again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def note_begin(directory: Path) -> None:
    """Leaves word that this try does its first step; by one rank of each instance."""
    with suppress(OSError):  # a full disk is named by what has to be written
        (directory / BEGUN).touch()


def begun_since(directory: Path, started_at_s: float) -> bool:
    """Whether a run began its first step after `started_at_s` (seconds of the epoch)."""
    try:
        return (directory / BEGUN).stat().st_mtime >= started_at_s
    except OSError:
        return False


def stopped_since(directory: Path, started_at_s: float) -> bool:
    """Whether a run that saved, stopped and left word did so after `started_at_s` (seconds of the epoch)."""
    try:
        file = directory / RESULT
        fresh = file.stat().st_mtime >= started_at_s
        return fresh and json.loads(file.read_text(encoding="utf-8"))["outcome"] == "stopped"
    except (OSError, ValueError, KeyError):
        return False
