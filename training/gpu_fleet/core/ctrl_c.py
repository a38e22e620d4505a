"""Ctrl-C while modules are loaded ends the process: libraries swallow or wrap a KeyboardInterrupt there."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 128 + signal.SIGINT  # exit code after Ctrl-C, as a shell reports it


@contextmanager
def ends_the_process() -> Iterator[None]:
    """Let Ctrl-C end the process at once within a block; another handler than Python's own stays."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)
