"""How the ranks come to stop, or to save, at the same step."""

import time
from collections.abc import Callable

from gpu_fleet.stopping.interrupt import Interruption, Reason
from gpu_fleet.world import Agreement, World

# From one exchange to the next: where steps suddenly take longer than those measured, so many of them and one
# more may pass from a notice to the stop. An exchange of 0.3 ms beside eight steps of 9 ms is 0.4 % of them.
MOST_CALLS = 8
US_PER_S = 1_000_000
UNKNOWN_US = 2**62  # of a pace that nobody has measured: exchange at the next call


class Stop:
    """Asked once per step and once per evaluated batch, by every rank alike."""

    def __init__(
        self,
        where: World,
        interruption: Interruption,
        every_s: float,
        save_due: Callable[[], bool],
        moved: Callable[[], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`agreed_soon` exchanges every `every_s` seconds: it takes 0.3 ms, which short steps would notice.

        `moved` is called whenever this rank comes by, which shows the watchdog that it does not hang.
        """
        self._where, self._interruption, self._save_due, self._moved = where, interruption, save_due, moved
        self._every_us = int(every_s * US_PER_S)
        self._clock = clock
        self._agreement = Agreement(where, count=2)
        self._interval = 1  # calls from one exchange to the next; the same on all ranks
        self._calls = 0  # since the last exchange
        self._exchanged_at: float | None = None  # None: what was done since then was not steps alone
        self._save_requested = False
        self._asked_to_save = False
        self.reason = Reason.NONE

    def agreed(self) -> bool:
        """Hands in what this rank has seen; whether all had agreed to stop one call before."""
        self._moved()
        stopping = self._settle()
        self._hand_in(UNKNOWN_US)
        self._exchanged_at = None
        return stopping

    def agreed_soon(self) -> bool:
        """The same for steps that follow each other, with an exchange only every so many calls.

        How many is worked out from the step time of the slowest rank, which all ranks learn in the exchange.
        A rank that is alone need ask nobody: it stops at the call after it knows.
        """
        self._moved()
        stopping = self._settle()
        if self._where.size == 1:
            self._hand_in(UNKNOWN_US)
            return self._settle()
        self._calls += 1
        if self._calls >= self._interval:
            now, begun = self._clock(), self._exchanged_at
            self._hand_in(UNKNOWN_US if begun is None else int((now - begun) * US_PER_S / self._calls))
            self._exchanged_at = now
        return stopping

    def agreed_now(self) -> bool:
        """The same as `agreed` without the delay of one call; waits for all ranks."""
        self.agreed()
        return self._settle()

    def take_save_request(self) -> bool:
        """Whether the ranks have agreed on a checkpoint that is due by time; says so once per request."""
        requested, self._save_requested = self._save_requested, False
        self._asked_to_save = self._asked_to_save and not requested
        return requested

    def detail(self) -> str:
        """What the ranks that saw a reason know about it."""
        seen = self._where.gather(self._interruption.detail)
        return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(seen) if text)

    def _hand_in(self, microseconds_per_call: int) -> None:
        self._agreement.hand_in(self._mine(), microseconds_per_call)
        self._calls = 0

    def _mine(self) -> Reason:
        if self._interruption.reason is not Reason.NONE:
            return self._interruption.reason
        if not self._asked_to_save and self._save_due():
            self._asked_to_save = True
            return Reason.SAVE
        return Reason.NONE

    def _settle(self) -> bool:
        """Takes over what the ranks agreed on last; whether it was to stop."""
        settled = self._agreement.settle()
        if settled is not None:
            agreed, slowest_us = settled
            self._interval = min(MOST_CALLS, max(1, self._every_us // max(1, slowest_us)))
            if agreed == Reason.SAVE:
                self._save_requested = True
            elif agreed > self.reason:
                self.reason = Reason(agreed)
        return self.reason is not Reason.NONE
