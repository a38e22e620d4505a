"""Who has which GPUs until when. Pure.

A reservation says what CUDA shows its owner. It is no fence: without ``CUDA_VISIBLE_DEVICES`` there are all.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from image.gpus.errors import GpuReservationError
from image.reaper.times import format_time

LONGEST = timedelta(days=7)  # who needs them longer says so once a week


@dataclass(frozen=True)
class Reservation:
    """One user's.

    Attributes:
        gpus: UUIDs of whole GPUs or of MIG instances, as ``CUDA_VISIBLE_DEVICES`` takes them.
    """

    account: str
    gpus: tuple[str, ...]
    until: datetime


@dataclass(frozen=True)
class GpuBook:
    """All of an instance.

    Attributes:
        gpus: what can be reserved here, in NVML's order.
        reservations: one of each account at most.
    """

    gpus: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    def at(self, now: datetime) -> "GpuBook":
        """Without those that are over."""
        return replace(self, reservations=tuple(each for each in self.reservations if each.until > now))

    def of(self, account: str) -> Reservation | None:
        """An account's own."""
        return next((each for each in self.reservations if each.account == account), None)

    def owner(self, gpu: str) -> Reservation | None:
        """Whose a GPU is; nobody's without one."""
        return next((each for each in self.reservations if gpu in each.gpus), None)

    def free(self) -> tuple[str, ...]:
        """What nobody has reserved."""
        return tuple(gpu for gpu in self.gpus if self.owner(gpu) is None)

    def without(self, account: str) -> "GpuBook":
        """With an account's reservation released."""
        kept = tuple(each for each in self.reservations if each.account != account)
        return replace(self, reservations=kept)

    def reserved(self, account: str, count: int, until: datetime) -> "GpuBook":
        """With a reservation in place of the account's own, of the same GPUs as far as it goes.

        Raises:
            GpuReservationError: fewer are free; says who has the others.
        """
        own = self.of(account)
        others = self.without(account)
        before = own.gpus if own else ()
        offered = sorted(others.free(), key=lambda gpu: gpu not in before)  # stable: NVML's order otherwise
        if count > len(offered):
            taken = ", ".join(map(_said, others.reservations))
            raise GpuReservationError(
                f"{count} GPUs asked for; {len(offered)} of {len(self.gpus)} can be had"
                + (f": {taken}" if taken else "")
            )
        added = Reservation(account, tuple(offered[:count]), until)
        return replace(others, reservations=(*others.reservations, added))

    def visible(self, account: str) -> tuple[str, ...] | None:
        """What CUDA is to show an account: its own, else what nobody reserved; None for all of them."""
        if not self.reservations:
            return None
        own = self.of(account)
        return own.gpus if own else self.free()


def _said(reservation: Reservation) -> str:
    return f"{reservation.account} has {len(reservation.gpus)} until {format_time(reservation.until)}"
