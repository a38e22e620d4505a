"""Agreement of the ranks to stop, or to save, at the same step."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from gpu_fleet.core.world import World
from gpu_fleet.preemption.interrupt import Interruption, Reason

# Calls from one exchange to the next, at most. If steps suddenly take longer than measured, a notice takes up
# to this many steps and one more to stop the run. An exchange takes 0.3 ms: 0.4 % of eight steps of 9 ms.
MOST_CALLS = 8
US_PER_S = 1_000_000
UNKNOWN_US = 2**62  # the pace is not measured yet: exchange at the next call


class Stop:
    """Decision to stop or save. Every rank asks it once per step and once per evaluated batch."""

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
        """Exchange about every `every_s` seconds in `agreed_soon`; each call calls `moved`."""
        self._where, self._interruption, self._save_due, self._moved = where, interruption, save_due, moved
        self._every_us = int(every_s * US_PER_S)
        self._clock = clock
        self._values = torch.zeros(2, dtype=torch.int64)  # a reason, and microseconds of a call: the largest
        self._numbers = self._values.numpy()  # of the same memory: a tensor takes 15 us to set a number
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._exchange: dist.Work | None = None  # with the other ranks, reduced during the step
        self._handed_in = False
        self._interval = 1  # calls from one exchange to the next; the same on all ranks
        self._calls = 0  # since the last exchange
        self._exchanged_at: float | None = None  # None: more than steps has run since then
        self._save_requested = False
        self._asked_to_save = False
        self.reason = Reason.NONE

    def agreed(self) -> bool:
        """Hand in what this rank has seen. Return whether the exchange before this one agreed to stop."""
        self._moved()
        stopping = self._settle()
        self._hand_in(UNKNOWN_US)
        self._exchanged_at = None
        return stopping

    def agreed_soon(self) -> bool:
        """Return whether the ranks agreed to stop, for steps in a row: most calls skip the exchange."""
        self._moved()
        stopping = self._settle()
        if self._where.size == 1:  # nobody to wait for
            self._take_over(self._mine())
            return self.reason is not Reason.NONE
        self._calls += 1
        if self._calls >= self._interval:
            now, begun = self._clock(), self._exchanged_at
            self._hand_in(UNKNOWN_US if begun is None else int((now - begun) * US_PER_S / self._calls))
            self._exchanged_at = now
        return stopping

    def agreed_now(self) -> bool:
        self.agreed()
        return self._settle()

    def take_save_request(self) -> bool:
        """Return whether the ranks agreed on a checkpoint that is due by time; True once per request."""
        requested, self._save_requested = self._save_requested, False
        self._asked_to_save = self._asked_to_save and not requested
        return requested

    def detail(self) -> str:
        """Return what each rank that saw a reason knows about it, for users; waits for all ranks."""
        seen = self._where.gather(self._interruption.detail)
        return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(seen) if text)

    def _hand_in(self, microseconds_per_call: int) -> None:
        self._numbers[:] = self._mine(), microseconds_per_call
        if self._where.size > 1:  # not by dist.all_reduce, whose checks take longer than the call itself
            self._exchange = self._where.control.allreduce([self._values], self._options)
        self._handed_in, self._calls = True, 0

    def _mine(self) -> Reason:
        if self._interruption.reason is not Reason.NONE:
            return self._interruption.reason
        if not self._asked_to_save and self._save_due():
            self._asked_to_save = True
            return Reason.SAVE
        return Reason.NONE

    def _settle(self) -> bool:
        """Take over what the ranks agreed on last. Return whether the run stops."""
        if self._handed_in:
            if self._exchange is not None:
                self._exchange.wait()
            self._handed_in, self._exchange = False, None
            agreed, slowest_us = self._numbers.tolist()
            self._interval = min(MOST_CALLS, max(1, self._every_us // max(1, slowest_us)))
            self._take_over(agreed)
        return self.reason is not Reason.NONE

    def _take_over(self, agreed: int) -> None:
        if agreed == Reason.SAVE:
            self._save_requested = True
        elif agreed > self.reason:
            self.reason = Reason(agreed)
