"""Error of a call that a cloud did not answer."""

from gpu_fleet_stacks.core.errors import StacksError

# Codes for a missing permission of known credentials: AWS, then Alibaba Cloud, whose products each have
# their own code. A test compares them with those of image/gpu_fleet_image/core/calls.py, which this room may
# not import.
DENIED = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedException"),
        *("UnauthorizedOperation", "403"),
        *("Forbidden", "Forbidden.RAM", "Forbidden.Unauthorized", "NoPermission", "NotAuthorized"),
    }
)


class CannotCheckError(StacksError):
    """A call that a cloud did not answer; the message gives the reason and the missing permission.

    Attributes:
        code: the cloud's error code; empty where it gave none.
    """

    def __init__(self, said: str, code: str = "") -> None:
        self.code = code
        super().__init__(said)
