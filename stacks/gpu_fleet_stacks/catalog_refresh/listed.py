"""A list price from a cloud's own API. Pure."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal


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
class SpotSpan:
    """Spot price of an hour over a span, for all zones of a region together.

    Attributes:
        median, p90: what half and nine tenths of the time cost at most.
    """

    median: Decimal
    p90: Decimal


@dataclass(frozen=True)
class ListedPrices:
    """List prices of a cloud on one day.

    Attributes:
        instances: (type, region) -> its price for an hour.
        others: item of prices.toml -> its price.
        spot: what an hour of a type costs on spot; a type without a history is left out.
        unlisted: items that were asked for and are not in the list, for users.
        source, region: of ``egress`` and ``reserved``.
        egress: GB a month from which on a price of a GB to the internet holds -> that price.
        reserved: (key of prices.toml, type) -> price of an hour, paid whether it is used or not.
    """

    date: datetime.date
    instances: dict[tuple[str, str], ListPrice]
    others: dict[str, ListPrice]
    spot: dict[str, SpotSpan]
    unlisted: tuple[str, ...]
    spot_source: str = ""
    source: str = ""
    region: str = ""
    egress: dict[int, Decimal] = field(default_factory=dict)
    reserved: dict[tuple[str, str], Decimal] = field(default_factory=dict)


def plain(amount: Decimal) -> str:
    """Format an amount without an exponent: ``1.0060000000`` -> ``1.006``."""
    return format(amount.normalize(), "f")


def share_of_time(held: Iterable[tuple[Decimal, float]], share: float) -> Decimal:
    """Return the price that this share of the time cost at most.

    Args:
        held: pairs of a price and the seconds that it held; one at least.
    """
    rising = sorted(held)
    left = share * sum(seconds for _, seconds in rising)
    for price, seconds in rising:
        left -= seconds
        if left <= 0:
            return price
    return rising[-1][0]
