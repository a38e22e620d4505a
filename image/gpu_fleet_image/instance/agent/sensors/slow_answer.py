"""Slow questions, asked in a thread beside the looks, so that no look is delayed.

While log-ins are refused the agent looks every second and replies with what it saw. If a look waited eight
seconds for ``idle.command`` or a notebook's server, its process table would be eight seconds old.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

# A look waits for this long: most answers come within it.
PATIENCE_S = 0.5
# An older answer no longer counts. While log-ins are refused, the question is repeated: an answer that takes
# T seconds is at most 2 T and a look old.
_LASTS_S = 25.0
LOOK_S = 2.0


class SlowAnswer(Generic[Value]):
    """The newest answer to a question that is asked repeatedly in a thread."""

    def __init__(self, real_s: Callable[[], float]) -> None:
        self._real_s = real_s
        self._asking: _Asking[Value] | None = None
        self._newest: _Asking[Value] | None = None

    def get(self, ask: Callable[[], Value], key: Hashable = None) -> Value:
        """Return the answer to a question asked now; if that takes long, the answer to the one asked before.

        An answer no longer counts if it was asked for longer ago than twice the time it took, and a look.
        Then this waits for the next one.

        Args:
            ask: returns the answer, in another thread.
            key: identifies the question: an answer to another one does not count.

        Raises:
            Exception: the exception of ``ask``.
        """
        self._take()
        if self._asking is None or self._asking.key != key:
            self._asking = _Asking(ask, key, self._real_s)
            self._asking.start()
        newest = self._newest
        young = newest is not None and newest.key == key and newest.is_young(self._real_s())
        self._asking.join(PATIENCE_S if young else None)
        newest = self._take() or newest
        if newest is None:
            raise AssertionError("it was waited for")
        return newest.answer()

    def _take(self) -> "_Asking[Value] | None":
        """Return the question that was asked, once it is answered."""
        if self._asking is None or self._asking.is_alive():
            return None
        self._newest, self._asking = self._asking, None
        return self._newest


class _Asking(threading.Thread, Generic[Value]):
    """One question, in a thread that ends with the process."""

    def __init__(self, ask: Callable[[], Value], key: Hashable, real_s: Callable[[], float]) -> None:
        super().__init__(name="slow-answer", daemon=True)
        self.key = key
        self._asked_s = self._answered_s = real_s()
        self._ask = ask
        self._real_s = real_s
        self._answers: list[Value] = []
        self._error: Exception | None = None

    def run(self) -> None:
        """Ask the question."""
        try:
            self._answers.append(self._ask())
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer gets it
            self._error = error
        finally:
            self._answered_s = self._real_s()

    def is_young(self, now_s: float) -> bool:
        """Return whether its answer still counts."""
        took_s = self._answered_s - self._asked_s
        return now_s - self._asked_s <= min(2 * took_s + LOOK_S, _LASTS_S)

    def answer(self) -> Value:
        """Return the answer; raise the exception of the question."""
        if self._error is not None:
            raise self._error
        return self._answers[0]
