"""Errors of the acceptance run, a branch of the package's tree; each message is for users."""

from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core.errors import StacksError


class AcceptanceError(StacksError):
    """The run cannot begin; nothing was started."""


class EngineError(AcceptanceError):
    """The Pulumi CLI failed; the message holds the end of its output."""


class StepError(AcceptanceError):
    """A step observed something unexpected; the message says what."""


class StopError(AcceptanceError):
    """The whole run ends now and is torn down: its cost cap or its time limit is reached."""


class NotReachableError(CannotCheckError):
    """The instance accepts no commands yet: its agent has not registered."""
