"""The one exception tree of this room. A user sees the message of these and never a traceback."""

import difflib
from collections.abc import Iterable

from gpu_fleet import exit_codes


class TrainingError(Exception):
    """Something a user can act on; the message says what, where and what is allowed."""

    silent = False  # whether another rank says the same
    shared = False  # whether every rank raises the same, so that rank 0 speaks for all
    for_good = True  # whether another try would end the same way
    at_once = True  # whether another try that may help may be made at once, as torchrun makes it

    @property
    def exit_status(self) -> int:
        """Of the process that ends with this error."""
        return exit_codes.FAILED_FOR_GOOD if self.for_good else exit_codes.FAILED_PERHAPS


class ConfigError(TrainingError):
    """A key, flag or value of the configuration is wrong."""


class MissingPackageError(TrainingError):
    """A Python package that a command needs is not installed here."""


class DataError(TrainingError):
    """The data set is missing, empty, of the wrong kind, or has too many corrupt samples."""


class SilentSourceError(DataError):
    """The bucket of the data has not answered in time; another try may hear it again."""

    for_good = False


class ModelError(TrainingError):
    """The model cannot be built from its options or its weights."""


class OwnCodeError(TrainingError):
    """A user's own model, data, loss, metric or optimizer has failed; the message names file and line."""


class PassingCodeError(OwnCodeError):
    """A user's own code has met with a disk, a server or a network that failed; another try may go well."""

    for_good = False


class ParallelError(TrainingError):
    """The parallel sizes do not fit the processes or the model."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, read or trusted."""

    for_good = False  # the bucket may answer again, another instance has another disk


class StoreError(CheckpointError):
    """An object store does not answer, or refuses: nothing is known of what it holds."""

    def __init__(self, message: str, *, passing: bool = False, answered: bool = False) -> None:
        """`passing` says that the same question may well have another answer in a minute.

        `answered` says that there is a store, which a mistaken endpoint has not.
        """
        super().__init__(message)
        self.passing, self.answered = passing, answered
        self.for_good = not passing


class SilentStoreError(CheckpointError):
    """An object store has not answered for so long that nobody waits for it; the request may still run."""


class IdentityError(CheckpointError):
    """A checkpoint is of another run: another configuration, or other data."""

    for_good = True


class RunLeaseError(CheckpointError):
    """Another process trains this run, on this instance or on another; it may end, or be about to."""

    at_once = False  # it was waited for


class StoppedError(TrainingError):
    """A notice came before the first step, while another process had the run: there is nothing to save."""

    for_good = False
    at_once = False  # the instance is about to go

    @property
    def exit_status(self) -> int:
        """Of a process without torchrun, under which it is 0: see outcome.status_of."""
        return exit_codes.STOPPED


class StandstillError(TrainingError):
    """A run fails again and again before its next checkpoint."""


class DivergenceError(TrainingError):
    """The loss is no longer a finite number."""


class OutOfMemoryError(TrainingError):
    """The device has no room for the step; the message names the knobs that help."""


class FailedBeforeError(TrainingError):
    """An earlier try of the same torchrun failed so that none of its others can help; the message is its."""

    shared = True

    def __init__(self, message: str, *, for_good: bool = True) -> None:
        """`for_good` as of that try's error."""
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


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(choices)}"
