"""Clock of an acceptance run; tests pass their own."""

import time
from datetime import UTC, datetime
from typing import Protocol


class RunClock(Protocol):
    """Clock that returns the time and waits."""

    def now(self) -> datetime:
        """Return the time, aware UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The system's clock."""

    def now(self) -> datetime:
        """Return the time, aware UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
