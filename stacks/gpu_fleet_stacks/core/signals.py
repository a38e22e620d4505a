"""Signals that end a command."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ended_like_by_keyboard() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C while a block runs, so that every ``finally`` runs.

    SIGINT is set too: a shell ignores it for a command in the background, and Python keeps that.
    """

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    with _handled_by(interrupt):
        yield


@contextmanager
def interruption_after() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until a block is over, and have their usual effect then.

    A signal between the start of a process and the name that it gets would leave nobody to end it.
    """
    arrived: list[int] = []
    try:
        with _handled_by(lambda number, _: arrived.append(number)):
            yield
    finally:
        for caught in arrived[:1]:
            signal.raise_signal(caught)


@contextmanager
def _handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM while a block runs.

    Only the main thread may set signal handlers; in another thread (tests) this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
