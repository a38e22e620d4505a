"""What a call to a cloud ends with that was not answered."""

from stacks.errors import StacksError


class CannotCheckError(StacksError):
    """A question that a cloud did not answer; its text says why, and which permission was missing.

    Attributes:
        code: the cloud's error code; empty where it named none.
    """

    def __init__(self, said: str, code: str = "") -> None:
        self.code = code
        super().__init__(said)
