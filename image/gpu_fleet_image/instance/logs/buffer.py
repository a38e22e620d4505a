"""Lines that were read and not yet sent, limited in bytes: without a service the oldest lines are dropped."""

import threading
from collections import deque
from dataclasses import dataclass

from gpu_fleet_image.instance.logs.lines import INFORMATIONAL, OWN_UNIT, Line

_MOST_BYTES = 16 * 2**20
LINE_BYTES = 300  # of a line in memory, beside its text
_MOST_SAID = 100  # the most lines of one batch that report dropped lines


@dataclass(frozen=True)
class BatchLimits:
    """Limits of one call of a service.

    Attributes:
        span_us: the most time between the first and the last line.
    """

    lines: int
    content_bytes: int
    span_us: int


@dataclass(frozen=True)
class SizedLine:
    """A line, and the bytes that it takes of ``BatchLimits.content_bytes``."""

    line: Line
    content_bytes: int


@dataclass(frozen=True)
class LineBatch:
    """Lines of one call.

    Attributes:
        cursor: the journal's position after the line that was read last of them; empty where it is unknown.
    """

    lines: list[Line]
    cursor: str


class LineBuffer:
    """Lines in the order of their arrival; one thread adds, another takes."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._lines: deque[SizedLine] = deque()
        self._most, self._bytes, self._dropped = most_bytes, 0, 0
        self._changed = threading.Condition()
        self._closed = False
        self._over: dict[str, int] = {}  # lines left out, by unit
        self._over_us = 0
        self._passed = ""  # position of the journal after unwanted entries that follow the last line

    def add(self, line: SizedLine) -> None:
        """Add a line; drop the oldest lines where the buffer is full."""
        with self._changed:
            self._lines.append(line)
            self._passed = ""
            self._bytes += line.content_bytes + LINE_BYTES
            while self._bytes > self._most and len(self._lines) > 1:
                self._forget_first()
                self._dropped += 1
            self._changed.notify_all()

    def pass_over(self, cursor: str) -> None:
        """Record that there are no more lines up to a cursor of journald."""
        with self._changed:
            self._passed = cursor

    def leave_out(self, line: Line) -> None:
        """Count a line of a unit that has sent too much."""
        with self._changed:
            self._over[line.unit] = self._over.get(line.unit, 0) + 1
            self._over_us = line.time_us
            self._passed = line.cursor

    def passed(self) -> str:
        """Return the last cursor that was passed over, once no line waits before it; else an empty text."""
        with self._changed:
            return "" if self._lines else self._passed

    def close(self) -> None:
        """Record that no more lines will come, so that ``wait`` returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, limits: BatchLimits, wait_s: float) -> None:
        """Wait for a whole batch, for this many seconds, or until the buffer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._is_full(limits), wait_s)

    def take(self, limits: BatchLimits) -> LineBatch | None:
        """Return the next batch; None where there is none. It includes a line about lines dropped before it.

        The times are journald's, and a change of the clock can set them back. Within a batch the lines are
        sorted, as CloudWatch Logs requires, and never further apart than ``span_us``.
        """
        with self._changed:
            if not self._lines and not self._over:
                return None
            earliest = latest = self._lines[0].line.time_us if self._lines else self._over_us
            lines = self._dropped_lines(earliest, min(limits.lines, _MOST_SAID))
            taken = sum(LINE_BYTES + len(line.text) for line in lines)
            while self._lines and len(lines) < limits.lines:
                following = self._lines[0]
                earliest = min(earliest, following.line.time_us)
                latest = max(latest, following.line.time_us)
                taken += following.content_bytes
                if taken > limits.content_bytes or latest - earliest > limits.span_us:
                    break
                lines.append(following.line)
                self._forget_first()
            cursor = lines[-1].cursor or ("" if self._lines else self._passed)
        return LineBatch(sorted(lines, key=lambda line: line.time_us), cursor)

    def _is_full(self, limits: BatchLimits) -> bool:
        return len(self._lines) >= limits.lines or self._bytes >= limits.content_bytes

    def _forget_first(self) -> None:
        self._bytes -= self._lines.popleft().content_bytes + LINE_BYTES

    def _dropped_lines(self, time_us: int, most: int) -> list[Line]:
        """Return at most this many lines that report dropped lines; each is reported once."""
        said = []
        if self._dropped:
            said.append(_dropped_line(time_us, self._dropped, "the service took too little for too long"))
            self._dropped = 0
        while self._over and len(said) < most:
            unit, count = self._over.popitem()
            said.append(_dropped_line(time_us, count, f"{unit} wrote more than is sent of one unit"))
        return said


def _dropped_line(time_us: int, count: int, reason: str) -> Line:
    text = f"event=lines-dropped count={count} reason={reason!r}"
    return Line(time_us, OWN_UNIT, INFORMATIONAL, "", text)
