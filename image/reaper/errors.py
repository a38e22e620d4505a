"""Everything this room raises on purpose."""

import difflib
from collections.abc import Iterable


class ReaperError(Exception):
    """Base: one message for a person, shown without a traceback."""


class PolicyError(ReaperError):
    """The policy file is wrong; the message lists every problem found."""


class InstanceFileError(ReaperError):
    """``instance.toml`` is missing or wrong."""


class ConfigurationError(ReaperError):
    """An environment variable, flag or event is missing or wrong."""


class CloudError(ReaperError):
    """A call to the cloud failed for good.

    Attributes:
        code: the cloud's error code.
    """

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(message)


class AnswerError(ReaperError):
    """A cloud refused a call, or did not answer; ``Calls`` makes a ``CloudError`` of it.

    Attributes:
        code: the cloud's error code.
        message: what it said.
        attempts: how often it was asked.
    """

    def __init__(self, code: str, message: str, attempts: int = 1) -> None:
        self.code = code
        self.message = message
        self.attempts = attempts
        super().__init__(f"{code}: {message}")


class DeadlineError(ReaperError):
    """The time given to a sweep is over."""


class LeaseError(ReaperError):
    """Another sweep holds the lease, or took it from this one."""


class SensorError(ReaperError):
    """A sensor could not be read; the message names why."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a typo: ``(nearest: idle_after_hours)``, or nothing.

    Args:
        word: what was written.
        known: what may be written.
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (nearest: {close[0]})" if close else ""
