"""Errors of a teardown; each message says what to do."""

from gpu_fleet_stacks.core.errors import StacksError


class TeardownError(StacksError):
    """Every error of this package. Its message needs no traceback."""


class RefusedError(TeardownError):
    """The stack may not be destroyed as requested; the error has every reason, each with its remedy."""

    def __init__(self, stack: str, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        lines = "\n".join(f"  - {reason}" for reason in reasons)
        super().__init__(f"{stack} is not destroyed, and nothing was touched:\n{lines}")


class StillThereError(TeardownError):
    """Instances still exist after the wait; running the command again continues."""
