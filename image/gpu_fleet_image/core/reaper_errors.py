"""Errors that the reaper raises on purpose, with the first four of ``core.errors``."""

from gpu_fleet_image.core.errors import (
    CloudError,
    ConfigurationError,
    InstanceError,
    InstanceFileError,
    nearest,
)

__all__ = [
    "AgentError",
    "AnswerError",
    "CloudError",
    "ConfigurationError",
    "DeadlineError",
    "InstanceFileError",
    "LeaseError",
    "PolicyError",
    "ReaperError",
    "SensorError",
    "nearest",
]


class ReaperError(InstanceError):
    """Base of the reaper's errors."""


class PolicyError(ReaperError):
    """The policy file is wrong; the message lists every problem."""


class AnswerError(ReaperError):
    """A cloud refused a call, or did not answer; ``Calls`` turns it into a ``CloudError``."""

    def __init__(self, code: str, message: str, attempts: int = 1) -> None:
        self.code = code
        self.message = message
        self.attempts = attempts
        super().__init__(f"{code}: {message}")


class DeadlineError(ReaperError):
    """The time limit of a sweep has passed."""


class LeaseError(ReaperError):
    """Another sweep holds the lease, or took it over."""


class AgentError(ReaperError):
    """The agent of this instance refuses a user's request, or does not answer."""


class NotHolderError(ReaperError):
    """A hold belongs to another user."""


class TooLateError(ReaperError):
    """Another party decided first."""


class SensorError(ReaperError):
    """A sensor could not be read; the message gives the reason."""
