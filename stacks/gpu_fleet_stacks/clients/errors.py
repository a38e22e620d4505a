"""Error of a call that a cloud did not answer."""

from collections.abc import Mapping
from typing import Any

from gpu_fleet_stacks.core.errors import StacksError


class CannotCheckError(StacksError):
    """A call that a cloud did not answer; the message gives the reason and the missing permission.

    Attributes:
        code: the cloud's error code; empty where it gave none.
        request_id: the cloud's own; empty where it gave none.
    """

    def __init__(self, said: str, code: str = "", request_id: str = "") -> None:
        self.code, self.request_id = code, request_id
        super().__init__(said)


def request_id(answer: Mapping[str, Any]) -> str:
    """Return the cloud's id of a call from its answer; empty where it gave none."""
    return str(answer.get("RequestId") or answer.get("ResponseMetadata", {}).get("RequestId", ""))
