"""A list price from a cloud's own API. Pure."""

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
    """List prices of a cloud on one day.

    Attributes:
        instances: (type, region) -> its price for an hour.
        others: item of prices.toml -> its price.
        spot_most: the largest current discount of a spot instance; None where it was not asked or found.
        unlisted: items that were asked for and are not in the list, for users.
    """

    date: datetime.date
    instances: dict[tuple[str, str], ListPrice]
    others: dict[str, ListPrice]
    spot_most: ListPrice | None
    unlisted: tuple[str, ...]


def plain(amount: Decimal) -> str:
    """Format an amount without an exponent: ``1.0060000000`` -> ``1.006``."""
    return format(amount.normalize(), "f")


def largest_discount(pairs: list[tuple[Decimal, Decimal]]) -> Decimal | None:
    """Return the largest discount, rounded up to a full percent; None without any (spot, on demand) pair."""
    shares = [1 - spot / price for spot, price in pairs if spot <= price]
    return max(shares).quantize(CENT, ROUND_UP) if shares else None
