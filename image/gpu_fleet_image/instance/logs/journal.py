"""The journal from ``journalctl``: entry by entry, from the last position, without end."""

import json
import logging
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from gpu_fleet_image.instance.logs.lines import FIELDS

PROGRAM = ("/usr/bin/journalctl",)
_BEGIN_AGAIN_S = 5.0
LAST_READ_S = 5.0  # after it was stopped
# Any user may write an entry of 768 MiB as JSON. A text that is sent whole has 100,000 bytes, and JSON takes
# at most six for one byte ("\u0000"; "255, " of a text that is not UTF-8).
LARGEST_ENTRY_BYTES = 2**20

LOG = logging.getLogger(__name__)


def arguments(cursor: str, follow: bool = True, whole: bool = True) -> list[str]:
    """Return journalctl's arguments for everything after a cursor; without one, for all of this boot. Pure.

    Args:
        follow: whether journalctl waits for new entries, without end.
        whole: fields of any length; otherwise journalctl writes null for a field of 4,096 bytes or more.

    The arguments name no unit: journalctl compares a pattern of units once, with the units in the journal
    then.
    """
    start = f"--after-cursor={cursor}" if cursor else "--boot"
    fields = f"--output-fields={','.join(FIELDS)}"
    following = ["--follow", "--no-tail"] if follow else []
    length = ["--all"] if whole else []
    return [*following, *length, "--quiet", "--no-pager", "--output=json", fields, start]


def lines_of(stream: IO[bytes], most_bytes: int = LARGEST_ENTRY_BYTES) -> Iterator[bytes]:
    """Yield the lines of a stream; a longer line is left out and is never whole in memory."""
    while text := stream.readline(most_bytes):
        left_out = 0
        while not text.endswith(b"\n") and len(text) == most_bytes:
            left_out += most_bytes
            text = stream.readline(most_bytes)
        if left_out:
            LOG.warning("event=entry-not-read reason='too large' bytes=%d", left_out + len(text))
        else:
            yield text


class Journal:
    """Reader that follows the journal, and starts journalctl again if it ends.

    Args:
        cursor: the position to begin after; empty for the beginning of this boot.
        program: journalctl, or its replacement in tests.
        wait: waits for this many seconds, or until the journal is stopped.
        last_read_s: the most that the last read may take.
    """

    def __init__(
        self,
        cursor: str,
        program: Sequence[str] = PROGRAM,
        wait: Callable[[float], object] | None = None,
        last_read_s: float = LAST_READ_S,
    ) -> None:
        self._cursor, self._program = cursor, program
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._last_read_s = last_read_s
        self._running: subprocess.Popen[bytes] | None = None

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield every entry, in journald's order, until ``stop``; then read the remaining ones once more."""
        while not self._stopped.is_set():
            before = self._cursor
            yield from self._followed()
            if self._stopped.is_set():
                break
            LOG.warning("event=journal-ended begins_again_in_s=%.0f", _BEGIN_AGAIN_S)
            if self._cursor == before:
                yield from self._beyond()
            self._wait(_BEGIN_AGAIN_S)
        yield from self._rest()

    def stop(self) -> None:
        """Stop following the journal; ``entries`` yields what is left and ends."""
        self._stopped.set()
        if self._running is not None:
            self._running.terminate()

    def _followed(self) -> Iterator[dict[str, Any]]:
        with self._started(follow=True) as process:
            self._running = process
            if self._stopped.is_set():
                process.terminate()
            yield from self._entries_of(process)

    def _beyond(self) -> Iterator[dict[str, Any]]:
        """Read past an entry that ends journalctl, say for want of memory; the entry's text is lost."""
        before = self._cursor
        with self._started(whole=False) as process:
            self._running = process
            for entry in self._entries_of(process):
                yield entry
                if entry.get("MESSAGE", "") is None:
                    LOG.warning("event=entry-not-read reason='too large' cursor=%r", self._cursor)
                    process.kill()
                    return
        if process.returncode and before and self._cursor == before:
            # a cursor that journalctl cannot read would stop it at every start
            LOG.warning("event=cursor-forgotten cursor=%r", self._cursor)
            self._cursor = ""

    def _rest(self) -> Iterator[dict[str, Any]]:
        """Yield what journalctl had not printed before it was stopped: the last lines of stopped units."""
        with self._started() as process:
            too_long = threading.Timer(self._last_read_s, process.kill)
            too_long.start()
            try:
                yield from self._entries_of(process)
            finally:
                too_long.cancel()

    def _started(self, follow: bool = False, whole: bool = True) -> "subprocess.Popen[bytes]":
        command = [*self._program, *arguments(self._cursor, follow, whole)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def _entries_of(self, process: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
        for text in lines_of(process.stdout) if process.stdout else ():
            try:
                entry = json.loads(text)
            except ValueError:
                LOG.warning("event=entry-not-read bytes=%d", len(text))
                continue
            self._cursor = str(entry.get("__CURSOR", self._cursor))
            yield entry
