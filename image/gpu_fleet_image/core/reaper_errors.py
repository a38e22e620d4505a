"""Everything this room raises on purpose; the first four come from the room that agent and gate share."""

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
    """Base of the reaper's own."""


class PolicyError(ReaperError):
    """The policy file is wrong; the message lists every problem found."""


class AnswerError(ReaperError):
    """A cloud refused a call, or did not answer; ``Calls`` makes a ``CloudError`` of it.

    Attributes:
        code: the cloud's error code.
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


class AgentError(ReaperError):
    """The agent of this instance refuses what a user asks, or does not answer."""


class NotHolderError(ReaperError):
    """A hold is another user's."""


class TooLateError(ReaperError):
    """Somebody else decided first."""


class SensorError(ReaperError):
    """A sensor could not be read; the message names why."""
