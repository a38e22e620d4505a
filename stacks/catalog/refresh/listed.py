"""A price as a cloud's own API lists it. Pure."""

import datetime
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal

CENT = Decimal("0.01")


@dataclass(frozen=True)
class ListPrice:
    """An on-demand list price.

    Attributes:
        amount: in ``currency`` for one unit, before tax and discount.
        currency: ISO 4217 code.
    """

    amount: Decimal
    currency: str
    source: str


@dataclass(frozen=True)
class ListedPrices:
    """What a cloud listed on one day.

    Attributes:
        instances: (type, region) -> its price for an hour.
        others: thing of prices.toml -> its price.
        spot_most: the largest share off that any spot instance has right now; None where nobody asked.
        unlisted: what was asked for and is not in the list, for users.
    """

    date: datetime.date
    instances: dict[tuple[str, str], ListPrice]
    others: dict[str, ListPrice]
    spot_most: ListPrice | None
    unlisted: tuple[str, ...]


def plain(amount: Decimal) -> str:
    """``1.0060000000`` -> ``1.006``; never an exponent."""
    return format(amount.normalize(), "f")


def largest_discount(pairs: list[tuple[Decimal, Decimal]]) -> Decimal | None:
    """The largest share off, to a full percent upwards; None without any pair of (spot, on demand)."""
    shares = [1 - spot / price for spot, price in pairs if spot <= price]
    return max(shares).quantize(CENT, ROUND_UP) if shares else None
