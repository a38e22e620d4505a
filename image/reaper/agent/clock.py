"""The agent's clock: steady whatever the wall's does; in a rehearsal it starts earlier and runs faster."""

import time
from datetime import UTC, datetime, timedelta

REAL_PAUSE_S = 0.1  # shortest real time between two looks: /proc counts CPU in ticks of 0.01 s


class Clock:
    """Tells the agent's time and waits in it.

    It takes the wall's time once and counts on monotonically, so that a corrected wall clock neither makes a
    machine idle nor hides that it is.

    Args:
        start: what it shows now; None for the wall's time.
        speed: seconds of this clock in one real second.

    Attributes:
        start: what it showed first.
        is_real: it shows the wall's time and runs as fast.
    """

    def __init__(self, start: datetime | None = None, speed: float = 1.0) -> None:
        self.speed = speed
        self.is_real = start is None and speed == 1.0
        self.start = start or datetime.now(UTC)
        self._real_start_s = time.monotonic()

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return self.start + timedelta(seconds=(self.real_s() - self._real_start_s) * self.speed)

    def real_s(self) -> float:
        """Real seconds since some moment; never runs backwards and is never fast."""
        return time.monotonic()

    def wait_until(self, moment: datetime) -> None:
        """Sleep until a moment of this clock, but never less than ``REAL_PAUSE_S`` of real time."""
        time.sleep(max(REAL_PAUSE_S, (moment - self.now()).total_seconds() / self.speed))
