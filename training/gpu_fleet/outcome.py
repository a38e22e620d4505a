"""result.json: how a run ended, and its results. It is also the marker that says why a run stopped."""

import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from gpu_fleet import exit_codes
from gpu_fleet.errors import CheckpointError, FailedBeforeError, StoppedError, TrainingError
from gpu_fleet.files import sync_folder, write_bytes

BEGUN = ".begun"  # in the run directory
RESULT = "result.json"
FAILURE = "failure.json"
REFUSED = "GPU_FLEET_REFUSED"  # a file of one `launch` alone, see write_refusal
LAUNCHED = "GPU_FLEET_LAUNCHED"  # set by `launch` for its ranks, to distinguish their word from another's
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
        _replace(directory / RESULT, asdict(outcome) | _launched())
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
    _replace(directory / FAILURE, {"error": error, "rank": rank, "attempt": attempt()} | _launched())


def write_refusal(error: str, *, stopped: bool = False) -> None:
    """Leaves word, for `launch` and a restarted rank, that another try may help, but none of this torchrun.

    `stopped` says that a notice ended the wait. Not in the run directory, which may be another process's:
    that is what is refused. Raises OSError.
    """
    if file := os.environ.get(REFUSED):
        _replace(Path(file), {"error": error, "stopped": stopped})


def stopped_waiting(refusal: Path) -> bool:
    """Whether the ranks were refused because a notice came while they waited."""
    try:
        return bool(json.loads(refusal.read_text(encoding="utf-8"))["stopped"])
    except (OSError, ValueError, KeyError):
        return False


def _launched() -> dict[str, str]:
    """The token of the `launch` that has started this rank, by which it knows its own word."""
    return {"launched": os.environ.get(LAUNCHED, "")}


def leave(directory: Path, error: TrainingError, rank: int) -> NoReturn:
    """Ends a program that is not ours with one message; of what all ranks raise alike rank 0 speaks.

    Where no other try can help it leaves word of that: torchrun itself ends with 1, whatever has happened.
    """
    if rank == 0 or not error.shared:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the program has no command line of ours
    leave_word(directory, error, rank)
    sys.exit(status_of(error))


def status_of(error: TrainingError) -> int:
    """What this process ends with; under torchrun, which starts others again at once, a stop is 0."""
    return exit_codes.FINISHED if isinstance(error, StoppedError) and attempt() else error.exit_status


def leave_word(directory: Path, error: TrainingError, rank: int) -> None:
    """Leaves word of an error that no other try of this torchrun can heal, if it is one."""
    with suppress(OSError):  # the disk may be why it failed; the exit status says it too
        if error.for_good and (rank == 0 or not error.shared):
            write_failure(directory, str(error), rank)
        if not (error.for_good or error.at_once):  # each instance has a `launch` that is to hear of it
            write_refusal(str(error), stopped=isinstance(error, StoppedError))


def failed_before(directory: Path) -> FailedBeforeError | None:
    """What no other try of this very torchrun can heal, of a try before this one; None without."""
    if not restarted():
        return None
    try:
        table = json.loads((directory / FAILURE).read_text(encoding="utf-8"))
        if table["attempt"] == attempt() != "":
            return FailedBeforeError(str(table["error"]))
    except (OSError, ValueError, KeyError):
        pass
    try:
        table = json.loads(Path(os.environ.get(REFUSED, "")).read_text(encoding="utf-8"))
        return FailedBeforeError(str(table["error"]), for_good=False)
    except (OSError, ValueError, KeyError):
        return None


def attempt() -> str:
    """What torchrun calls this run; empty without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def restarted() -> bool:
    """Whether torchrun has started this rank again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def note_begin(directory: Path) -> None:
    """Leaves word that this try does its first step; by one rank of each instance."""
    with suppress(OSError):  # a full disk is named by what has to be written
        _replace(directory / BEGUN, _launched())


class NewWord:
    """What a run leaves in its directory from now on; no clock counts, as it may be set, or a server's.

    A file is new where it is another one than now, and of this launch where it has its token. Without a token
    in it, as of programs that are not ours, or without one here, any new file counts.
    """

    def __init__(self, directory: Path, launched: str = "") -> None:
        self._directory, self._launched = directory, launched
        self._before = {name: _version(directory / name) for name in (RESULT, FAILURE, BEGUN)}

    @property
    def failed(self) -> bool:
        """Whether the run has failed for good.

        What somebody else starts in the same directory by mistake, and is refused, does not end this one.
        """
        return self._read(FAILURE) is not None

    @property
    def ended(self) -> str:
        """The outcome of the run, `finished` or `stopped`; empty while there is none."""
        return str((self._read(RESULT) or {}).get("outcome", ""))

    @property
    def begun(self) -> bool:
        """Whether the run has begun its first step."""
        return self._read(BEGUN) is not None

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self._directory / name
        version = _version(file)
        if version is None or version == self._before[name]:
            return None
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            return None
        except ValueError:
            table = {}
        table = table if isinstance(table, dict) else {}
        return (
            table if not self._launched or table.get("launched", self._launched) == self._launched else None
        )


def _version(file: Path) -> tuple[int, int, int] | None:
    """Another one for each time that a file is written; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
