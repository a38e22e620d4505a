"""The budget part of a policy: the meter's prices, and the action once the budget is spent."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from gpu_fleet_image.core.json_fields import Fields

NOTIFY, FREEZE = "notify", "freeze"


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
    """

    freezes: bool
    on_demand: dict[str, Decimal | None]
    spot: dict[str, Decimal | None]
    disk_per_hour: Decimal
    gpus: dict[str, int]
    reserved: int = 0


@dataclass(frozen=True)
class BudgetPolicy:
    """Budget of a month.

    Attributes:
        monthly: the amount, in the policy's currency.
        percents: shares of it that raise an alarm once they are spent, in ascending order.
        on_exceeded: ``notify`` or ``freeze``. With ``freeze`` the last share but one caps the pools that
            freeze at their present size, and the last closes them to new instances.
        shared_per_hour: cost of an hour of what all pools share: gateways, endpoints, storage.
        pools: pool -> its prices.
        assumed: instance type -> the stack owner's price of an hour, for types that no price list has.
    """

    monthly: Decimal
    percents: tuple[int, ...]
    on_exceeded: str
    shared_per_hour: Decimal
    pools: dict[str, PoolPrices]
    assumed: dict[str, Decimal] = field(default_factory=dict)

    def price_of(self, pool: str, kind: str, *, spot: bool) -> Decimal | None:
        """Return the price of an hour of an instance, without its disks; None if it is unknown.

        Args:
            kind: its instance type.
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


def read(fields: Fields) -> BudgetPolicy:
    """Read a policy's ``budget``; add what is wrong with it to the fields' problems."""
    budget = BudgetPolicy(
        monthly=fields.amount("monthly"),
        percents=fields.rising("percents"),
        on_exceeded=fields.choice("on_exceeded", (NOTIFY, FREEZE)),
        shared_per_hour=fields.amount("shared_per_hour"),
        pools=dict(_pools(fields)),
        assumed=dict(_assumed(fields)),
    )
    _refuse_unused(fields, budget)
    fields.refuse_unknown()
    if budget.freezes and len(budget.percents) < 2:  # noqa: PLR2004 -- one to cap at, one to close at
        fields.problem("percents", list(budget.percents), "two at least, because on_exceeded is freeze")
    return budget


def _pools(fields: Fields) -> Iterator[tuple[str, PoolPrices]]:
    for name, table in fields.tables("pools"):
        yield (
            name,
            PoolPrices(
                freezes=table.flag("freezes", default=False),
                on_demand=table.prices("on_demand"),
                spot=table.prices("spot"),
                disk_per_hour=table.amount("disk_per_hour"),
                gpus=dict(_gpus(table.table("gpus"))),
                reserved=table.optional_integer("reserved", 0, 100_000) or 0,
            ),
        )
        table.refuse_unknown()


def _assumed(fields: Fields) -> Iterator[tuple[str, Decimal]]:
    """Read assumed prices, which may be left out. A price of 0 is refused: it would make an instance free."""
    for name, price in fields.prices("assumed").items():
        if price:
            yield name, price
        else:
            fields.problem(f"assumed.{name}", price, "a price above 0")


def _refuse_unused(fields: Fields, budget: BudgetPolicy) -> None:
    """Refuse an assumed price for a type that has a listed price, or that no pool has."""
    unknown = {
        kind
        for pool in budget.pools.values()
        for prices in (pool.on_demand, pool.spot)
        for kind, price in prices.items()
        if price is None
    }
    for name, price in budget.assumed.items():
        if name not in unknown:
            allowed = f"types without a price: {', '.join(sorted(unknown)) or 'there are none'}"
            fields.problem(f"assumed.{name}", price, allowed)


def _gpus(fields: Fields) -> Iterator[tuple[str, int]]:
    for name in fields.names():
        yield name, fields.integer(name, 0, 1024)
