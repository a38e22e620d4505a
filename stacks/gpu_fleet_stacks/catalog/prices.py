"""List prices of everything but instances, with their sources, read from prices.toml."""

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpu_fleet_stacks.catalog import toml_file
from gpu_fleet_stacks.catalog.instance_types import Cloud
from gpu_fleet_stacks.catalog.numbers import AMOUNT, Currency
from gpu_fleet_stacks.core.errors import StacksError

FILE = Path(__file__).with_name("prices.toml")
STALE_AFTER_DAYS = 180


class PriceListError(StacksError):
    """A price list that is not valid; the message names file, place and what is allowed."""


def today() -> datetime.date:
    """Return the day that decides whether prices are old."""
    return datetime.datetime.now(datetime.UTC).date()


def read_on(date: datetime.date, today: datetime.date) -> str:
    """Format the day a price was read, with its age where that is more than ``STALE_AFTER_DAYS``."""
    age = (today - date).days
    return f"{date}, {age} days old" if age > STALE_AFTER_DAYS else str(date)


@dataclass(frozen=True)
class Quote:
    """A list price of a cloud, or the statement that none was found.

    Attributes:
        amount: in ``currency`` for one unit; None where unknown.
        currency: ISO 4217 code.
        date: the day the cloud's list was read; None where there is no amount.
        source: where to check it, or why there is no price.
        assumed: no cloud publishes it; the stack file gives the amount.
        bounded: the sums count another price that this one never passes.
    """

    what: str
    amount: Decimal | None
    unit: str
    currency: str
    region: str
    date: datetime.date | None
    source: str
    assumed: bool = False
    bounded: bool = False

    @property
    def unknown(self) -> bool:
        """Return whether the sums lack this price, and so are minimums."""
        return self.amount is None and not self.bounded

    def stale(self, today: datetime.date) -> bool:
        """Return whether the price was read more than ``STALE_AFTER_DAYS`` ago."""
        return self.date is not None and (today - self.date).days > STALE_AFTER_DAYS


@dataclass(frozen=True)
class SpotPrice:
    """Price of an hour on the spot market of one region.

    Attributes:
        expected: the median of a span, or its mean where ``source`` says so.
        p90: the 90th percentile; None where no price is published.
        date: the last day of the span.
    """

    expected: Decimal
    p90: Decimal | None
    currency: str
    region: str
    date: datetime.date
    source: str


@dataclass(frozen=True)
class Interruptions:
    """Share of a type's spot instances that the cloud interrupted within a month, in one region.

    Attributes:
        percent: the upper end of the cloud's range; of the last range, which has none, its lower end.
        at_least: it is that of the last range.
    """

    percent: int
    at_least: bool
    region: str
    date: datetime.date
    source: str


@dataclass(frozen=True)
class PriceList:
    """Prices of one cloud.

    Attributes:
        quotes: item -> its price.
        spot: instance type -> its spot price; a type without one is left out.
        interruptions: instance type -> how often it is interrupted; likewise.
    """

    quotes: dict[str, Quote]
    spot: dict[str, SpotPrice]
    interruptions: dict[str, Interruptions] = field(default_factory=dict)


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Amount = Annotated[Decimal, Field(gt=0), AMOUNT]


class _SpotRow(_Exact):
    expected: Amount
    p90: Amount | None = None


class _SpotTable(_Exact):
    date: datetime.date
    source: str
    prices: dict[str, _SpotRow]


Range = Literal["<5%", "5-10%", "10-15%", "15-20%", ">20%"]


class _InterruptionTable(_Exact):
    date: datetime.date
    source: str
    ranges: dict[str, Range]


class _Row(_Exact):
    amount: Amount | None = None
    unit: str
    date: datetime.date | None = None
    source: str


class _CloudTable(_Exact):
    currency: Currency
    region: str
    spot: _SpotTable | None = None
    interruptions: _InterruptionTable | None = None
    prices: dict[str, _Row]


class _File(_Exact):
    clouds: dict[Cloud, _CloudTable]


@cache
def load(cloud: Cloud, path: Path = FILE) -> PriceList:
    """Return a cloud's price list, read once for each file.

    Raises:
        PriceListError: the file cannot be read, is not valid, or lacks the cloud.
    """
    try:
        content = toml_file.read(path, _File)
    except ValueError as error:
        raise PriceListError(str(error)) from error
    if cloud not in content.clouds:
        raise PriceListError(f"{path}: no clouds.{cloud}; there are {', '.join(sorted(content.clouds))}")
    table = content.clouds[cloud]
    quotes = {what: _quote(what, row, table) for what, row in table.prices.items()}
    undated = [what for what, quote in quotes.items() if quote.amount is not None and quote.date is None]
    if undated:
        raise PriceListError(f"{path}: clouds.{cloud}.prices.{undated[0]} has an amount and no date")
    return PriceList(quotes, _spot(table), _interruptions(table))


def _spot(table: _CloudTable) -> dict[str, SpotPrice]:
    if table.spot is None:
        return {}
    date, source = table.spot.date, table.spot.source
    return {
        name: SpotPrice(row.expected, row.p90, table.currency, table.region, date, source)
        for name, row in table.spot.prices.items()
    }


def _interruptions(table: _CloudTable) -> dict[str, Interruptions]:
    if table.interruptions is None:
        return {}
    date, source = table.interruptions.date, table.interruptions.source
    return {
        name: Interruptions(
            int(span.strip("<>%").rpartition("-")[2]), span.startswith(">"), table.region, date, source
        )
        for name, span in table.interruptions.ranges.items()
    }


def _quote(what: str, row: _Row, table: _CloudTable) -> Quote:
    return Quote(what, row.amount, row.unit, table.currency, table.region, row.date, row.source)
