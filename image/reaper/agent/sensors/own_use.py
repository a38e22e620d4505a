"""What the agent itself uses, which is no sign of anybody's work.

It needs next to nothing, except while it copies what people keep before a marked machine goes. Were that copy
taken for use, the mark would be taken away again, day after day.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil


class OwnUse:
    """Counts the agent's CPU time and disk bytes; of the network it knows only when it copies."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._copies = 0
        self._copied = False

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Around a copy; another thread may ask meanwhile."""
        self._copies += 1
        self._copied = True
        try:
            yield
        finally:
            self._copies -= 1

    def copied_since_asked(self) -> bool:
        """Whether a copy ran at any time since this was last asked."""
        copied, self._copied = self._copied, self._copies > 0
        return copied

    def cpu_s(self) -> float:
        """CPU time since the agent's start."""
        used = self._process.cpu_times()
        return used.user + used.system

    def disk_bytes(self) -> float:
        """Bytes that the agent made disks read and write."""
        moved = self._process.io_counters()
        return moved.read_bytes + moved.write_bytes
