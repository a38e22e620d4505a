"""Send the buffer batch by batch, and store the position in the journal."""

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

from gpu_fleet_image.core.files import read_text, replace_text
from gpu_fleet_image.instance.logs.buffer import LineBatch, LineBuffer
from gpu_fleet_image.instance.logs.service import LinesNotTakenError, LinesRefusedError, LogService

FLUSH_S = 5.0  # lines of this time become one call
KEEP_S = 30.0  # between two writes of a cursor where no line was sent
_FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
_DOUBLINGS = 6  # until the longest wait is reached
_CURSOR_FILE = "cursor"
OWNER_ALONE = 0o600

LOG = logging.getLogger(__name__)


class CursorFile:
    """Position in the journal, kept over restarts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _CURSOR_FILE

    def read(self) -> str:
        """Return journald's cursor; empty where it is missing or unreadable."""
        try:
            return read_text(self._path).strip()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            LOG.warning("event=cursor-not-read reason=%r", str(error))
            return ""

    def write(self, cursor: str) -> None:
        """Store the cursor; raises OSError."""
        replace_text(self._path, f"{cursor}\n", OWNER_ALONE)


class Shipper:
    """Sender of batches, until it is stopped.

    Args:
        wait: waits for this many seconds, or until the process should end.
        now: seconds of a monotonic clock.
    """

    def __init__(
        self,
        service: LogService,
        buffer: LineBuffer,
        cursor: CursorFile,
        stopped: Callable[[], bool],
        wait: Callable[[float], object] = time.sleep,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service, self._buffer, self._cursor = service, buffer, cursor
        self._stopped, self._wait, self._now = stopped, wait, now
        self._kept, self._kept_s = "", now()

    def run(self) -> bool:
        """Send lines as they come; at the end, try each remaining batch once. Return as ``send_waiting``."""
        while not self._stopped():
            self._buffer.wait(self._service.limits, FLUSH_S)
            if not self.send_waiting():
                return False
        return self.send_waiting()

    def send_waiting(self) -> bool:
        """Send everything that waits; False where the process ends and the service does not take a batch.

        Nothing may be sent after False: the cursor would pass over lines that were not taken.
        """
        while batch := self._buffer.take(self._service.limits):
            if not self._deliver(batch):
                return False
        self._keep_passed()
        return True

    def _keep_passed(self) -> None:
        """Store the cursor after unwanted entries, so that a restart does not read them again."""
        cursor = self._buffer.passed()
        if cursor and cursor != self._kept and (self._stopped() or self._now() - self._kept_s >= KEEP_S):
            self._remember(cursor)

    def _deliver(self, batch: LineBatch) -> bool:
        """Send one batch, again until it is taken; return whether it was taken or refused for good."""
        attempt = 0
        while True:
            try:
                left_out = self._service.send(batch.lines)
            except LinesRefusedError as error:
                LOG.error("event=lines-refused count=%d reason=%r", len(batch.lines), str(error))
                break
            except LinesNotTakenError as error:
                if attempt == 0:
                    LOG.warning("event=lines-not-taken reason=%r", str(error))
                attempt += 1
                if self._stopped():
                    return False
                # full jitter: instances that were refused together must not retry together
                longest = min(LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(attempt, _DOUBLINGS))
                self._wait(random.uniform(0, longest))
            else:
                if left_out:
                    LOG.warning("event=lines-left-out count=%d reason=age", left_out)
                if attempt:
                    LOG.warning("event=lines-taken-again attempts=%d", attempt + 1)
                break
        if batch.cursor:
            self._remember(batch.cursor)
        return True

    def _remember(self, cursor: str) -> None:
        self._kept, self._kept_s = cursor, self._now()
        try:
            self._cursor.write(cursor)
        except OSError as error:
            LOG.warning("event=cursor-not-written reason=%r", str(error))
