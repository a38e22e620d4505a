"""The one exception tree of this room. A user sees the message of these and never a traceback."""

import difflib
from collections.abc import Iterable


class TrainingError(Exception):
    """Something a user can act on; the message says what, where and what is allowed."""

    shared = False  # whether every rank raises the same, so that rank 0 speaks for all


class ConfigError(TrainingError):
    """A key, flag or value of the configuration is wrong."""


class DataError(TrainingError):
    """The data set is missing, empty, of the wrong kind, or has too many corrupt samples."""


class ModelError(TrainingError):
    """The model cannot be built from its options or its weights."""


class ParallelError(TrainingError):
    """The parallel sizes do not fit the processes or the model."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, read or trusted."""


class IdentityError(CheckpointError):
    """A checkpoint is of another run: another configuration, or other data."""


class DivergenceError(TrainingError):
    """The loss is no longer a finite number."""


class OutOfMemoryError(TrainingError):
    """The device has no room for the step; the message names the knobs that help."""


class PeerError(TrainingError):
    """Another rank is gone or no longer answers."""


class LaunchError(TrainingError):
    """The peers of this machine cannot be found, or torchrun cannot be started."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(choices)}"
