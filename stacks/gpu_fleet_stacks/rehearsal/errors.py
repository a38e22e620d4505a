"""Errors of the rehearsal, a branch of the package's tree; each message is for users."""

from gpu_fleet_stacks.core.errors import StacksError


class RehearsalError(StacksError):
    """Every error of the rehearsal. Its message needs no traceback."""


class CreationError(RehearsalError):
    """moto, or boto3 before it, refused a resource."""

    def __init__(self, type_token: str, name: str, said: str) -> None:
        self.type_token = type_token
        self.name = name
        super().__init__(f"{type_token} {name!r} was refused: {said}")


class UnknownInvokeError(RehearsalError):
    """The program called a provider function that the rehearsal cannot answer."""

    def __init__(self, token: str, known: str) -> None:
        super().__init__(f"provider function {token!r} has no answer in the rehearsal; it knows {known}")
