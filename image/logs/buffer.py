"""What was read and not yet sent, bounded by bytes: where no service answers, the oldest lines go."""

import threading
from collections import deque
from dataclasses import dataclass

from image.logs.lines import INFORMATIONAL, OWN_UNIT, Line

MOST_BYTES = 16 * 2**20
LINE_BYTES = 300  # of a line in memory beside its text
MOST_SAID = 100  # lines of one batch that say what was dropped


@dataclass(frozen=True)
class BatchLimits:
    """What one call of a service takes.

    Attributes:
        span_us: between the first and the last line.
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
    """What one call sends.

    Attributes:
        lines: by time.
        cursor: where the journal goes on after what was read last of them; empty where that is not known.
    """

    lines: list[Line]
    cursor: str


class LineBuffer:
    """Lines in the order in which they came; one thread adds, another takes.

    Args:
        most_bytes: that its texts take in memory.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._lines: deque[SizedLine] = deque()
        self._most, self._bytes, self._dropped = most_bytes, 0, 0
        self._changed = threading.Condition()
        self._closed = False
        self._over: dict[str, int] = {}  # lines left out, by unit
        self._over_us = 0
        self._passed = ""  # where the journal goes on after what came since the last line, and is not wanted

    def add(self, line: SizedLine) -> None:
        """Take a line in; the oldest make room for it."""
        with self._changed:
            self._lines.append(line)
            self._passed = ""
            self._bytes += line.content_bytes + LINE_BYTES
            while self._bytes > self._most and len(self._lines) > 1:
                self._forget_first()
                self._dropped += 1
            self._changed.notify_all()

    def pass_over(self, cursor: str) -> None:
        """Know that what was read up to a cursor of journald holds no more lines."""
        with self._changed:
            self._passed = cursor

    def leave_out(self, line: Line) -> None:
        """Count a line of a unit that has sent too much."""
        with self._changed:
            self._over[line.unit] = self._over.get(line.unit, 0) + 1
            self._over_us = line.time_us
            self._passed = line.cursor

    def passed(self) -> str:
        """The last cursor that was passed over, once no line waits before it; else empty."""
        with self._changed:
            return "" if self._lines else self._passed

    def close(self) -> None:
        """Nothing more will come: ``wait`` waits no longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, limits: BatchLimits, wait_s: float) -> None:
        """Return once a whole batch is there, after so many seconds, or when it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._is_full(limits), wait_s)

    def take(self, limits: BatchLimits) -> LineBatch | None:
        """The next batch; None where there is none. That lines were dropped before it is a line of it.

        Times are those of journald, which a step of the clock can turn back: within a batch they are sorted,
        as CloudWatch Logs wants them, and never further apart than ``span_us``.
        """
        with self._changed:
            if not self._lines and not self._over:
                return None
            earliest = latest = self._lines[0].line.time_us if self._lines else self._over_us
            lines = self._dropped_lines(earliest, min(limits.lines, MOST_SAID))
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
        """So many lines at most that say what was dropped; each is said once."""
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
