"""Time as an acceptance run sees it; tests bring their own."""

import time
from datetime import UTC, datetime
from typing import Protocol


class RunClock(Protocol):
    """Says the time and lets it pass."""

    def now(self) -> datetime:
        """Aware UTC."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


class SystemClock:
    """The wall's clock."""

    def now(self) -> datetime:
        """Aware UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)
