"""Error of a call that a cloud did not answer."""

from gpu_fleet_stacks.core.errors import StacksError


class CannotCheckError(StacksError):
    """A call that a cloud did not answer; the message gives the reason and the missing permission.

    Attributes:
        code: the cloud's error code; empty where it gave none.
    """

    def __init__(self, said: str, code: str = "") -> None:
        self.code = code
        super().__init__(said)
