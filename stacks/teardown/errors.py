"""What taking a stack down refuses; each message says what to do."""

from stacks.errors import StacksError


class TeardownError(StacksError):
    """Anything this room refuses. Its text needs no traceback beside it."""


class RefusedError(TeardownError):
    """The stack may not be taken down as asked; carries every reason, each with its remedy."""

    def __init__(self, stack: str, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        lines = "\n".join(f"  - {reason}" for reason in reasons)
        super().__init__(f"{stack} is not destroyed, and nothing was touched:\n{lines}")


class StillThereError(TeardownError):
    """Instances outlasted the wait; running the command again goes on."""
