"""The exception tree of gpu_fleet. A user sees the message of these errors, and never a traceback."""

import difflib
from collections.abc import Iterable
from typing import Self

from gpu_fleet.core import exit_codes


class TrainingError(Exception):
    """An error on which a user can act; the message says what is wrong, where, and what is allowed."""

    silent = False  # another rank reports the same error
    shared = False  # every rank raises the same error, so rank 0 reports for all
    for_good = True  # another try would end in the same way
    at_once = True  # if another try may help, torchrun may start it at once

    @property
    def exit_status(self) -> int:
        return exit_codes.FAILED_FOR_GOOD if self.for_good else exit_codes.FAILED_PERHAPS


class ConfigError(TrainingError):
    """A key, flag or value of the configuration is wrong."""


class MissingPackageError(TrainingError):
    """A Python package that a command needs is not installed here."""

    @classmethod
    def of(cls, module: str | None) -> Self:
        package = (module or "").partition(".")[0]
        return cls(
            f"needs the Python package {package}, which is not installed here; "
            "pip install 'gpu-fleet[train]' installs it"
        )


class DataError(TrainingError):
    """The data set is missing, empty, of the wrong kind, or has too many corrupt samples."""


class CorruptLimitError(DataError):
    """More samples are corrupt than data.corrupt_limit allows; all ranks raise it between two steps."""


class SilentSourceError(DataError):
    """The bucket of the data has not answered in time; another try may get an answer."""

    for_good = False


class ModelError(TrainingError):
    """The model cannot be built from its options or its weights."""


class UserCodeError(TrainingError):
    """A user's own model, data, loss, metric or optimizer has failed; the message names file and line."""


class PassingCodeError(UserCodeError):
    """A user's own code failed because of a disk, a server or a network; another try may succeed."""

    for_good = False


class ParallelError(TrainingError):
    """The parallel sizes do not fit the processes or the model."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, read or trusted."""

    for_good = False  # the bucket may answer again, or another instance may have a good disk


class StoreError(CheckpointError):
    """An object store does not answer, or refuses: its content is unknown."""

    def __init__(
        self, message: str, *, passing: bool = False, answered: bool = False, refused: bool = False
    ) -> None:
        """Create the error: `passing` if the same request may succeed a minute later.

        A store has `answered` if the endpoint is right, and `refused` if it did not accept the credentials.
        """
        super().__init__(message)
        self.passing, self.answered, self.refused = passing, answered, refused
        self.for_good = not passing


def as_checkpoint_error(error: Exception, what: str) -> CheckpointError:
    """Return a CheckpointError itself; for any other error, one that says `what` failed, and why."""
    return error if isinstance(error, CheckpointError) else CheckpointError(f"{what}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Return the message of an error that a user knows, and for others their kind too."""
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        error = error.__context__  # torch hides a full disk behind what it meets as it closes the file
    known = isinstance(error, OSError | RuntimeError | CheckpointError)
    return str(error) if known else f"{type(error).__name__}: {error}"


class SilentStoreError(CheckpointError):
    """An object store has not answered for too long, and the wait is over; the request may still run."""


class IdentityError(CheckpointError):
    """A checkpoint is of another run: another configuration, or other data."""

    for_good = True


class UnreadableError(CheckpointError):
    """A state holds a value that cannot be restored from a checkpoint."""

    for_good = True


class RunLeaseError(CheckpointError):
    """Another process trains this run, on this or another instance; it may end later."""

    at_once = False  # a start has already waited for it


class StoppedError(TrainingError):
    """A notice came before the first step, while another process had the run: there is nothing to save."""

    for_good = False
    at_once = False  # the instance is about to stop
    exit_status = exit_codes.STOPPED  # under torchrun it is 0: see outcome.status_of


class StandstillError(TrainingError):
    """A run fails again and again before its next checkpoint."""


class DivergenceError(TrainingError):
    """The loss or the model is no longer finite; all ranks compare what they see."""

    shared = True


class UntrainedError(TrainingError):
    """The steps train nothing: no parameter of any rank gets a gradient."""

    shared = True


class OutOfMemoryError(TrainingError):
    """The device has too little memory for the step; the message names the settings that help."""


class FailedBeforeError(TrainingError):
    """An earlier try of the same torchrun failed, and a retry cannot help; the message is that try's."""

    shared = True

    def __init__(self, message: str, *, for_good: bool = True) -> None:
        super().__init__(message)
        self.for_good = for_good


class PeerError(TrainingError):
    """Another rank is gone or no longer answers."""

    for_good = False


class CommandError(TrainingError):
    """The command of `run` cannot be started."""


class LaunchError(TrainingError):
    """The peers of this instance cannot be found, or torchrun cannot be started."""

    for_good = False


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and a noun that agree: ``1 file``, ``2 files``, ``2 batches``."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def a_kind(value: object) -> str:
    """Return what a value is, with its article: ``an int``, ``a Tensor``, ``None``."""
    name = type(value).__name__
    if value is None:
        return "None"
    return f"an {name}" if name[0] in "aeioAEIO" else f"a {name}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(choices)}"
