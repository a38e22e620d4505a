"""The budget part of a policy: the meter's prices, and the action once the budget is spent."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated

from gpu_fleet_image.core.document import (
    AMOUNT,
    ASSUMED,
    FLAG,
    LEFT_OUT,
    MOMENT,
    PRICE,
    RISING,
    TEXT,
    Contradictory,
    one_of,
    whole,
)

NOTIFY, FREEZE = "notify", "freeze"


@dataclass(frozen=True)
class PaidReservation:
    """A reservation of a pool: instances that are paid for until it ends, used or not.

    Attributes:
        id: the cloud's own; empty for the only one of a pool.
        count: instances that it holds.
        group: the stack's name of the scaling group that starts instances in it.
        until: its end; None for none.
    """

    id: Annotated[str, TEXT]
    count: Annotated[int, whole(1, 100_000)]
    group: Annotated[str, TEXT]
    until: Annotated[datetime, MOMENT] | None = field(default=None, metadata=LEFT_OUT)

    def lasts(self, at: datetime) -> bool:
        """Return whether it is paid for at a time."""
        return self.until is None or at < self.until

    def starts(self, group: str) -> bool:
        """Return whether a scaling group of this title starts instances in it; AWS adds a suffix to names."""
        return group == self.group or group.startswith(f"{self.group}-")


@dataclass(frozen=True)
class PoolPrices:
    """Prices of one hour of a pool's instances, in the policy's currency.

    Attributes:
        freezes: the pool takes no new instances once the budget is spent.
        on_demand: instance type -> price; None if no price list has one.
        spot: the same for spot instances, at their maximum price.
        disk_per_hour: the disks of one instance, stopped or not.
        gpus: instance type -> GPUs of one instance.
        reserved: instances that are paid for, used or not; 0 for a pool without a reservation.
        reservations: those of a pool with several, which hold ``reserved`` instances together.
        drains: the pool takes no new instances, whatever is spent; those that run end as usual.
    """

    freezes: Annotated[bool, FLAG]
    on_demand: dict[str, Annotated[Decimal, PRICE] | None]
    spot: dict[str, Annotated[Decimal, PRICE] | None]
    disk_per_hour: Annotated[Decimal, AMOUNT]
    gpus: dict[str, Annotated[int, whole(0, 1024)]]
    reserved: Annotated[int, whole(0, 100_000)] = 0
    drains: Annotated[bool, FLAG] = field(default=False, metadata=LEFT_OUT)
    reservations: tuple[PaidReservation, ...] = field(default=(), metadata=LEFT_OUT)

    def paid(self, at: datetime) -> tuple[PaidReservation, ...]:
        """Return the reservations that are paid for at a time."""
        if not self.reservations and self.reserved:
            return (PaidReservation("", self.reserved, ""),)
        return tuple(each for each in self.reservations if each.lasts(at))


@dataclass(frozen=True)
class TeamBudget:
    """Budget of a team's month.

    Attributes:
        on_exceeded: ``notify``, or ``freeze``: past the last share the team starts nothing more.
    """

    monthly: Annotated[Decimal, AMOUNT]
    on_exceeded: Annotated[str, one_of(NOTIFY, FREEZE)]


@dataclass(frozen=True)
class BudgetPolicy(Contradictory):
    """Budget of a month.

    Attributes:
        percents: shares of it that raise an alarm once they are spent, in ascending order.
        on_exceeded: ``notify`` or ``freeze``. With ``freeze`` the last share but one caps the pools that
            freeze at their present size, and the last closes them to new instances.
        shared_per_hour: cost of an hour of what all pools share: gateways, endpoints, storage.
        pools: pool -> its prices.
        assumed: instance type -> the stack owner's price of an hour, for types that no price list has.
        teams: team -> its budget, for teams with one.
        lacks: what ``shared_per_hour`` and the pools' disks do not contain, because it has no public price.
        borrowed: regions whose prices stand in for those that nobody published for the stack's own.
    """

    monthly: Annotated[Decimal, AMOUNT]
    percents: Annotated[tuple[int, ...], RISING]
    on_exceeded: Annotated[str, one_of(NOTIFY, FREEZE)]
    shared_per_hour: Annotated[Decimal, AMOUNT]
    pools: dict[str, PoolPrices]
    assumed: dict[str, Annotated[Decimal, ASSUMED]] = field(default_factory=dict)
    teams: dict[str, TeamBudget] = field(default_factory=dict)
    lacks: tuple[Annotated[str, TEXT], ...] = field(default=(), metadata=LEFT_OUT)
    borrowed: tuple[Annotated[str, TEXT], ...] = field(default=(), metadata=LEFT_OUT)

    def price_of(self, pool: str, kind: str, *, spot: bool) -> Decimal | None:
        """Return the price of an hour of an instance, without its disks; None if it is unknown.

        Args:
            spot: whether it was bought on the spot market.
        """
        prices = self.pools.get(pool)
        if prices is None:
            return None
        listed = (prices.spot if spot else prices.on_demand).get(kind)
        return self.assumed.get(kind) if listed is None else listed

    def gpus_of_pools(self) -> dict[str, int]:
        """Return pool -> GPUs of one of its instances, of the largest type."""
        return {name: max(pool.gpus.values(), default=0) for name, pool in self.pools.items()}

    def reserved_price(self, pool: str) -> Decimal | None:
        """Return the price of an hour of one reserved instance, used or not; None if it is unknown."""
        return self.price_of(pool, next(iter(self.pools[pool].on_demand)), spot=False)

    @property
    def freezes(self) -> bool:
        """True if pools freeze once the budget is spent."""
        return self.on_exceeded == FREEZE

    def contradictions(self) -> Iterator[tuple[str, object, str]]:
        """Assumptions are for types without a price; a freeze needs a share to cap at and one to close at."""
        prices = [prices for pool in self.pools.values() for prices in (pool.on_demand, pool.spot)]
        unknown = {kind for listed in prices for kind, price in listed.items() if price is None}
        for name in self.assumed.keys() - unknown:
            allowed = f"types without a price: {', '.join(sorted(unknown)) or 'there are none'}"
            yield f"assumed.{name}", str(self.assumed[name]), allowed
        if self.freezes and len(self.percents) < 2:  # noqa: PLR2004 -- one to cap at, one to close at
            yield "percents", list(self.percents), "two at least, because on_exceeded is freeze"
