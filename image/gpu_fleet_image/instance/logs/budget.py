"""Limit of each unit's log volume: the log costs by the GB, and it is on unless a stack turns it off."""

from dataclasses import dataclass

BYTES_PER_MINUTE = 2**20
BURST_BYTES = 8 * 2**20
MINUTE_US = 60 * 10**6
MOST_UNITS = 1_000  # the most units that are remembered; a new unit replaces the one that was first


@dataclass
class _Bucket:
    content_bytes: float  # left
    time_us: int


class UnitBudget:
    """A token bucket for each unit, by the journal's own times, so that a delayed read is no burst."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}

    def takes(self, unit: str, time_us: int, content_bytes: int) -> bool:
        """Return whether a unit may send this many bytes more.

        Args:
            time_us: when journald took the line. A clock that is set back adds no tokens.
        """
        bucket = self._buckets.get(unit)
        if bucket is None:
            if len(self._buckets) >= MOST_UNITS:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[unit] = _Bucket(BURST_BYTES, time_us)
        since_us = max(0, time_us - bucket.time_us)
        bucket.time_us = time_us
        bucket.content_bytes = min(
            BURST_BYTES, bucket.content_bytes + BYTES_PER_MINUTE * since_us / MINUTE_US
        )
        if content_bytes > bucket.content_bytes:
            return False
        bucket.content_bytes -= content_bytes
        return True
