"""result.json: the end of a run, and its results; files that report a failure to `launch` and to restarts."""

import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from gpu_fleet.core import exit_codes
from gpu_fleet.core.errors import ConfigError, FailedBeforeError, StoppedError, TrainingError
from gpu_fleet.core.files import on_disk, sync_folder, write_bytes

BEGUN = ".begun"  # this file and the next two are in the run directory
RESULT = "result.json"
FAILURE = "failure.json"
REFUSED = "GPU_FLEET_REFUSED"  # variable with the path of a file of one `launch`, see write_refusal
LAUNCHED = "GPU_FLEET_LAUNCHED"  # `launch` sets it for its ranks: a token that marks their files
COLLECTIVES = "collectives-rank-"  # and the rank: torch's flight record of a run that hung


@dataclass(frozen=True)
class Outcome:
    """Content of result.json."""

    outcome: Literal["finished", "stopped"]
    reason: str  # of a stop: sigterm, spot-notice...; else "all steps done", or "left the loop" by Run
    detail: str  # for users: text of the notice, and its rank
    step: int  # optimizer steps done
    epoch: float  # passes over the training data
    parameters_sha256: str  # of parameters and buffers, see state.parameters_sha256
    resumed_from_step: int | None
    checkpoint: str  # URI or folder from which a run resumes at this step
    metric_name: str = ""
    metric: float | None = None  # on the held-out data; None if the run stopped before the evaluation
    baseline_name: str = ""
    baseline: float | None = None  # the same metric of a simple method on the same data
    left_out: dict[str, Any] = field(default_factory=dict)  # of the data, by reason: count and example


def write(directory: Path, outcome: Outcome) -> None:
    """Write result.json, which several instances may do in one folder; raises CheckpointError."""
    with on_disk(directory / RESULT):
        directory.mkdir(parents=True, exist_ok=True)
        _replace(directory / RESULT, asdict(outcome) | _launched())
        sync_folder(directory)


def _replace(file: Path, table: dict[str, Any]) -> None:
    staged = file.with_name(f"{file.name}.{platform.node()}-{os.getpid()}.tmp")
    write_bytes(staged, (json.dumps(table, indent=1) + "\n").encode())
    staged.replace(file)


def remove(directory: Path, name: str) -> None:
    """Remove a file of an earlier run, but not at a restart by this torchrun."""
    if not restarted():
        (directory / name).unlink(missing_ok=True)


def write_failure(directory: Path, error: str, rank: int) -> None:
    """Write failure.json for `launch` and for restarted ranks: a retry cannot help."""
    directory.mkdir(parents=True, exist_ok=True)
    _replace(directory / FAILURE, {"error": error, "rank": rank, "attempt": attempt()} | _launched())


def write_refusal(error: str, *, stopped: bool = False) -> None:
    """Write a refusal for `launch` and restarted ranks: another has the run, and its directory."""
    if file := os.environ.get(REFUSED):
        _replace(Path(file), {"error": error, "stopped": stopped})


def stopped_waiting(refusal: Path) -> bool:
    """Return whether the ranks were refused because a notice came while they waited."""
    return bool(_read(refusal).get("stopped"))


def _read(file: Path) -> dict[str, Any]:
    """Return the table in a file; empty if there is none, or if it cannot be read."""
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _launched() -> dict[str, str]:
    return {"launched": os.environ.get(LAUNCHED, "")}


def leave(directory: Path, error: TrainingError, rank: int) -> NoReturn:
    """End a user's program with one message and a file: torchrun itself ends with 1 after any failure."""
    show(error, rank)
    leave_word(directory, error, rank)
    sys.exit(status_of(error))


def show(error: TrainingError, rank: int) -> None:
    """Print an error once for all ranks that have it."""
    if not error.silent and (rank == 0 or not (error.shared or isinstance(error, ConfigError))):
        where = f"rank {rank}: " if rank else ""
        print(f"error: {where}{error}", file=sys.stderr)  # noqa: T201 - not only of click commands


def leave_at_once(status: int) -> NoReturn:
    """End the process without a wait for threads that hang in a socket."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def leave_stopped() -> NoReturn:
    """End a process that has saved and stopped for a notice: with 85, or with 0 under torchrun."""
    sys.exit(exit_codes.FINISHED if attempt() else exit_codes.STOPPED)


def status_of(error: TrainingError) -> int:
    """Return the exit status; a stop is 0 under torchrun, which restarts other statuses at once."""
    return exit_codes.FINISHED if isinstance(error, StoppedError) and attempt() else error.exit_status


def leave_word(directory: Path, error: TrainingError, rank: int) -> None:
    """Write a file about an error if a restart by this torchrun cannot help."""
    with suppress(OSError):  # the disk may be the cause; the exit status also shows the failure
        if error.for_good and (rank == 0 or not error.shared):
            write_failure(directory, str(error), rank)
        if not (error.for_good or error.at_once):  # on every rank: each instance has a `launch`
            write_refusal(str(error), stopped=isinstance(error, StoppedError))


def failed_before(directory: Path) -> FailedBeforeError | None:
    """Return the error of an earlier try if a restart by this torchrun cannot help; None without one."""
    if not restarted():
        return None
    failure = _read(directory / FAILURE)
    if "error" in failure and failure.get("attempt") == attempt() != "":
        return FailedBeforeError(str(failure["error"]))
    refusal = _read(Path(os.environ.get(REFUSED, "")))
    return FailedBeforeError(str(refusal["error"]), for_good=False) if "error" in refusal else None


def attempt() -> str:
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def restarted() -> bool:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def note_begin(directory: Path) -> None:
    with suppress(OSError):  # necessary writes report a full disk
        _replace(directory / BEGUN, _launched())


class NewWord:
    """Files that a run writes into its directory from now on. No clock is used, as it may be wrong.

    A file belongs to this launch if it has its token. Without a token on one side, any new file counts.
    """

    def __init__(self, directory: Path, launched: str = "") -> None:
        self._directory, self._launched = directory, launched
        self._before = {name: _version(directory / name) for name in (RESULT, FAILURE, BEGUN)}

    @property
    def failed(self) -> bool:
        """True if the run has failed for good; a second start in the directory, which is refused, is none."""
        return self._read(FAILURE) is not None

    @property
    def ended(self) -> str:
        """Outcome of the run, `finished` or `stopped`; empty while there is none."""
        return str((self._read(RESULT) or {}).get("outcome", ""))

    @property
    def begun(self) -> bool:
        return self._read(BEGUN) is not None

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self._directory / name
        version = _version(file)
        if version is None or version == self._before[name]:
            return None
        table = _read(file)
        ours = not self._launched or table.get("launched", self._launched) == self._launched
        return table if ours else None


def _version(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
