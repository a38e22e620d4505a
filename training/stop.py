"""How the ranks come to stop, or to save, at the same step."""

from collections.abc import Callable

from training.interrupt import Interruption, Reason
from training.parallel import Agreement, World


class Stop:
    """Asked once per step and once per evaluated batch, by every rank alike."""

    def __init__(
        self,
        where: World,
        interruption: Interruption,
        save_due: Callable[[], bool],
        moved: Callable[[], None],
    ) -> None:
        """`moved` is called whenever this rank comes by, which tells the watchdog that it does not hang."""
        self._where, self._interruption, self._save_due, self._moved = where, interruption, save_due, moved
        self._agreement = Agreement(where)
        self._save_requested = False
        self._asked_to_save = False
        self.reason = Reason.NONE

    def agreed(self) -> bool:
        """Hands in what this rank has seen; whether all had agreed to stop one call before."""
        self._moved()
        return self._take(self._agreement.exchange(self._mine()))

    def agreed_now(self) -> bool:
        """The same without the delay of one call; waits for all ranks."""
        self._take(self._agreement.exchange(self._mine()))
        return self._take(self._agreement.settle())

    def take_save_request(self) -> bool:
        """Whether the ranks have agreed on a checkpoint that is due by time; says so once per request."""
        requested, self._save_requested = self._save_requested, False
        self._asked_to_save = self._asked_to_save and not requested
        return requested

    def detail(self) -> str:
        """What the ranks that saw a reason know about it."""
        seen = self._where.gather(self._interruption.detail)
        return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(seen) if text)

    def _mine(self) -> Reason:
        if self._interruption.reason is not Reason.NONE:
            return self._interruption.reason
        if not self._asked_to_save and self._save_due():
            self._asked_to_save = True
            return Reason.SAVE
        return Reason.NONE

    def _take(self, agreed: int) -> bool:
        if agreed == Reason.SAVE:
            self._save_requested = True
        elif agreed > self.reason:
            self.reason = Reason(agreed)
        return self.reason is not Reason.NONE
