"""Reservations of GPUs: user, GPUs and end. Pure.

A reservation decides what CUDA shows its owner. It is no protection: without ``CUDA_VISIBLE_DEVICES`` a
process sees every GPU.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.document import Record
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.instance.gpus.errors import GpuReservationError

LONGEST = timedelta(days=7)  # a longer use needs a new reservation every week


@dataclass(frozen=True)
class Reservation(Record):
    """One user's reservation.

    Attributes:
        gpus: UUIDs of whole GPUs or of MIG instances, as ``CUDA_VISIBLE_DEVICES`` takes them.
    """

    account: str
    gpus: tuple[str, ...]
    until: datetime


@dataclass(frozen=True)
class GpuReservations(Record):
    """All reservations of an instance.

    Attributes:
        gpus: what can be reserved here, in NVML's order.
        reservations: at most one of each account.
    """

    gpus: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    def at(self, now: datetime) -> "GpuReservations":
        """Return a copy without reservations that are over."""
        return replace(self, reservations=tuple(each for each in self.reservations if each.until > now))

    def of(self, account: str) -> Reservation | None:
        """Return an account's own reservation, if any."""
        return next((each for each in self.reservations if each.account == account), None)

    def owner(self, gpu: str) -> Reservation | None:
        """Return the reservation of a GPU; None where it is free."""
        return next((each for each in self.reservations if gpu in each.gpus), None)

    def free(self) -> tuple[str, ...]:
        """Return the GPUs that nobody has reserved."""
        return tuple(gpu for gpu in self.gpus if self.owner(gpu) is None)

    def without(self, account: str) -> "GpuReservations":
        """Return a copy with an account's reservation released."""
        kept = tuple(each for each in self.reservations if each.account != account)
        return replace(self, reservations=kept)

    def reserved(self, account: str, count: int, until: datetime) -> "GpuReservations":
        """Return a copy with the account's reservation replaced; it keeps its GPUs as far as possible.

        Raises:
            GpuReservationError: too few are free; the message names who has the others.
        """
        own = self.of(account)
        others = self.without(account)
        before = own.gpus if own else ()
        offered = sorted(others.free(), key=lambda gpu: gpu not in before)  # stable: NVML's order otherwise
        if count > len(offered):
            taken = ", ".join(map(_said, others.reservations))
            raise GpuReservationError(
                f"{counted(count, 'GPU')} requested; {len(offered)} of {len(self.gpus)} are available"
                + (f": {taken}" if taken else "")
            )
        added = Reservation(account, tuple(offered[:count]), until)
        return replace(others, reservations=(*others.reservations, added))

    def visible(self, account: str) -> tuple[str, ...] | None:
        """Return what CUDA shows an account: its own GPUs, else the free ones; None for all of them."""
        if not self.reservations:
            return None
        own = self.of(account)
        return own.gpus if own else self.free()


def _said(reservation: Reservation) -> str:
    return f"{reservation.account} has {len(reservation.gpus)} until {format_time(reservation.until)}"
