"""List prices of everything but instances, with their sources, read from prices.toml."""

import datetime
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gpu_fleet_stacks.catalog import toml_file
from gpu_fleet_stacks.catalog.instance_types import Cloud, Price
from gpu_fleet_stacks.catalog.numbers import AMOUNT, Currency
from gpu_fleet_stacks.core.errors import StacksError

FILE = Path(__file__).with_name("prices.toml")
STALE_AFTER_DAYS = 180
EGRESS = "egress"
# Ways to pay for an hour of an instance whether it is used or not; reservations of AWS: standard, no upfront.
TERMS = ("one_year", "three_years", "capacity_block")


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
        tiers: units a month from which on another price holds, and that price; ``amount`` is of the first.
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
    tiers: tuple[tuple[int, Decimal], ...] = ()

    def cost(self, units: Decimal) -> Decimal | None:
        """Return the price of this many units a month, each tier at its own; None where it is unknown."""
        if self.amount is None:
            return None
        starts, amounts = zip((0, self.amount), *self.tiers, strict=True)
        sizes = (
            max(Decimal(0), min(units, end) - start)
            for start, end in zip(starts, (*starts[1:], units), strict=True)
        )
        return sum((size * amount for size, amount in zip(sizes, amounts, strict=True)), Decimal(0))

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
        commitments: (region, one of ``TERMS``, instance type) -> price of an hour, used or not; likewise.
        egress: region -> price of a GB to the internet; likewise.
    """

    quotes: dict[str, Quote]
    spot: dict[str, SpotPrice]
    interruptions: dict[str, Interruptions] = field(default_factory=dict)
    commitments: dict[tuple[str, str, str], Price] = field(default_factory=dict)
    egress: dict[str, Quote] = field(default_factory=dict)

    def quote(self, what: str, region: str) -> Quote:
        """Return an item's price for a region; egress has one of the region itself, or none."""
        return self.egress.get(region, self.quotes[what]) if what == EGRESS else self.quotes[what]


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


class _Committed(_Exact):
    date: datetime.date
    until: datetime.date | None = None
    source: str
    prices: dict[str, Amount]


def _each_once(rows: tuple[_Committed, ...]) -> tuple[_Committed, ...]:
    names = Counter(name for row in rows for name in row.prices)
    if twice := {name for name, count in names.items() if count > 1}:
        raise ValueError(f"must have one price of {min(twice)}")
    return rows


_Rows = Annotated[
    tuple[_Committed, ...],
    BeforeValidator(lambda rows: rows if isinstance(rows, list) else [rows]),
    AfterValidator(_each_once),
]


def _from_nothing(tiers: dict[int, Decimal]) -> dict[int, Decimal]:
    if 0 not in tiers or min(tiers) < 0:
        raise ValueError("must begin with 0")
    return tiers


class _Tiers(_Exact):
    date: datetime.date
    source: str
    tiers: Annotated[dict[int, Amount], AfterValidator(_from_nothing)]


class _Region(_Exact):
    egress: _Tiers | None = None
    one_year: _Rows = ()
    three_years: _Rows = ()
    capacity_block: _Rows = ()


class _CloudTable(_Exact):
    currency: Currency
    region: str
    regions: dict[str, _Region] = Field(default_factory=dict)
    spot: _SpotTable | None = None
    interruptions: _InterruptionTable | None = None
    prices: dict[str, _Row]


class _File(_Exact):
    clouds: dict[Cloud, _CloudTable]


@cache
def load(cloud: Cloud, path: Path = FILE) -> PriceList:
    """Return a cloud's price list, read once for each file. Raises PriceListError."""
    try:
        content = toml_file.read(path, _File)
    except ValueError as error:
        raise PriceListError(str(error)) from error
    if cloud not in content.clouds:
        raise PriceListError(f"{path}: no clouds.{cloud}; known: {', '.join(sorted(content.clouds))}")
    table = content.clouds[cloud]
    quotes = {what: _quote(what, row, table) for what, row in table.prices.items()}
    undated = [what for what, quote in quotes.items() if quote.amount is not None and quote.date is None]
    if undated:
        raise PriceListError(f"{path}: clouds.{cloud}.prices.{undated[0]} has an amount and no date")
    return PriceList(quotes, _spot(table), _interruptions(table), _commitments(table), _egress(table))


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


def _commitments(table: _CloudTable) -> dict[tuple[str, str, str], Price]:
    return {
        (region, term, name): Price(amount, table.currency, region, row.date, row.source, row.until)
        for region, terms in table.regions.items()
        for term in TERMS
        for row in getattr(terms, term)
        for name, amount in row.prices.items()
    }


def _egress(table: _CloudTable) -> dict[str, Quote]:
    return {
        region: _tiered(table, region, terms.egress)
        for region, terms in table.regions.items()
        if terms.egress is not None
    }


def _tiered(table: _CloudTable, region: str, row: _Tiers) -> Quote:
    (_, first), *more = sorted(row.tiers.items())
    later = ", ".join(f"{amount} from {start:,} GB a month" for start, amount in more)
    unit = f"GB to the internet; {later}" if later else "GB to the internet"
    return Quote(EGRESS, first, unit, table.currency, region, row.date, row.source, tiers=tuple(more))


def _quote(what: str, row: _Row, table: _CloudTable) -> Quote:
    return Quote(what, row.amount, row.unit, table.currency, table.region, row.date, row.source)
