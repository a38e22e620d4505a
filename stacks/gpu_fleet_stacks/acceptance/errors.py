"""Errors of the acceptance run, a branch of the package's tree; each message is for users."""

from gpu_fleet_stacks.core.errors import StacksError


class AcceptanceError(StacksError):
    """The run cannot begin; nothing was started."""


class CallRefusedError(AcceptanceError):
    """The cloud refused a call or did not answer it.

    Attributes:
        code: the cloud's error code; empty where it did not answer.
    """

    def __init__(self, said: str, code: str = "") -> None:
        self.code = code
        super().__init__(said)


class EngineError(AcceptanceError):
    """The Pulumi CLI failed; the message holds the end of its output."""


class StepError(AcceptanceError):
    """A step observed something unexpected; the message says what."""


class StopError(AcceptanceError):
    """The whole run ends now and is torn down: its cost cap or its time limit is reached."""


class NotReachableError(CallRefusedError):
    """The instance accepts no commands yet: its agent has not registered."""
