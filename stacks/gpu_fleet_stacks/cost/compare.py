"""Ways to pay for a pool's instances, and from how many hours a month each is cheaper than on demand. Pure.

A price is unknown if nobody published it for the stack's region and the buyer's file lacks it; no other
region's price and no other type's discount stands in for it.

Spot pays for its interruptions: a run saves every sqrt(2 C M) (C: time of a save, M: mean time between
interruptions), and loses C of each interval, and of each interruption half an interval and the restart
[Young, "A first order approximation to the optimum checkpoint interval", CACM 1974; Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", FGCS 2006, first order]. All instances of a
pool are one run: any one's interruption is the run's.
"""

import datetime
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.catalog.instance_types import Price
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, Money
from gpu_fleet_stacks.catalog.prices import Interruptions, SpotPrice
from gpu_fleet_stacks.cost.estimate import instance_quote
from gpu_fleet_stacks.cost.offers_file import OfferedHours, OffersFile, OwnHardware, SpotRuns
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.quantities import Level, instances

SECONDS_PER_HOUR = 3600
MONTHS = 12
ON_DEMAND = "on demand"
# Key of the buyer's file, and of the catalog where it has such prices -> name of the way to pay.
COMMITMENTS = {
    "one_year": "1 year",
    "three_years": "3 years",
    "savings_plan_one_year": "savings plan, 1 year",
    "savings_plan_three_years": "savings plan, 3 years",
    "capacity_block": "capacity block",
}


@dataclass(frozen=True)
class PurchaseOption:
    """A way to pay for all instances of a pool.

    Attributes:
        hour: cost of an hour in which they run; None where it is unknown.
        month: cost of a month whether they run or not.
        source: of the price, or the reason why there is none.
        at_least: the cost is a lower bound.
    """

    name: str
    hour: Money | None
    month: Money | None
    source: str
    at_least: bool = False

    def cost(self, hours: Decimal | int) -> Money | None:
        """Return the cost of a month with this many hours of use; None where it is unknown."""
        if self.hour is None or self.month is None:
            return None
        return self.month + self.hour * hours

    def break_even(self, on_demand: Money | None) -> Decimal | None:
        """Return the hours a month from which it costs less than on demand; None if it never does."""
        if self.hour is None or self.month is None or on_demand is None:
            return None
        saved = (on_demand - self.hour).amount
        return self.month.amount / saved if saved > 0 else None


@dataclass(frozen=True)
class PoolComparison:
    """A pool with every way to pay for its instances, on demand first."""

    pool: str
    type: str
    count: int
    options: tuple[PurchaseOption, ...]

    @property
    def on_demand(self) -> Money | None:
        """Cost of an hour on demand."""
        return self.options[0].hour


def compare(stack: Stack, file: OffersFile | None) -> list[PoolComparison]:
    """Return every pool at its maximum size, by the price of its first type."""
    listed = []
    for pool in stack.pools:
        count = instances(stack, pool)[Level.MAX]
        if count:
            options = tuple(_options(stack, pool.types[0], count, file))
            listed.append(PoolComparison(pool.name, pool.types[0], count, options))
    return listed


def currency_of(stack: Stack) -> str:
    """Return the currency of the stack's prices: that of its cloud's list, or what the file assumes in."""
    assumed = any(pool.types[0] in stack.budget.assume for pool in stack.pools)
    first = next(iter(prices.load(stack.cloud).quotes.values()))
    return stack.budget.currency if assumed else first.currency


def _options(stack: Stack, name: str, count: int, file: OffersFile | None) -> Iterator[PurchaseOption]:
    currency = currency_of(stack)
    quote = instance_quote(stack, catalog.load().get(name))
    there = quote.amount is not None and (quote.region, quote.currency) == (stack.region, currency)
    source = _dated(quote.source, quote.date) if quote.date else quote.source
    if quote.amount is not None and not there:
        source = f"published for {quote.region} in {quote.currency} alone"
    yield _hourly(ON_DEMAND, quote.amount if there else None, count, currency, source)
    yield from _spot(stack, name, count, file.spot if file else SpotRuns())
    offered = file.quotes.get(name, OfferedHours()) if file else OfferedHours()
    commitments = prices.load(stack.cloud).commitments
    for term, title in COMMITMENTS.items():
        known = commitments.get((stack.region, term, name))
        yield _committed(title, getattr(offered, term), known, count, currency)
    if file and (own := file.own.get(name)):
        yield _own(own, count, currency)


def _hourly(name: str, amount: Decimal | None, count: int, currency: str, source: str) -> PurchaseOption:
    if amount is None:
        return PurchaseOption(name, None, None, source)
    return PurchaseOption(name, Money(amount * count, currency), Money(Decimal(0), currency), source)


def _spot(stack: Stack, name: str, count: int, runs: SpotRuns) -> Iterator[PurchaseOption]:
    """Yield spot at its expected price and at its 90th percentile, both with interruptions."""
    listed = prices.load(stack.cloud)
    spot, taken = listed.spot.get(name), listed.interruptions.get(name)
    for title, amount in (
        ("spot, expected", spot and spot.expected),
        ("spot, 90th percentile", spot and spot.p90),
    ):
        if not amount or spot is None or spot.region != stack.region:
            yield PurchaseOption(title, None, None, f"no public price of {stack.region} was found")
        else:
            yield _interrupted(title, amount, spot, taken, count, runs)


def _interrupted(  # noqa: PLR0917 - the price, what it is of, and what interrupts it
    title: str, amount: Decimal, spot: SpotPrice, taken: Interruptions | None, count: int, runs: SpotRuns
) -> PurchaseOption:
    if taken is None:
        option = _hourly(
            title,
            amount * count,
            1,
            spot.currency,
            f"without interruptions; {_dated(spot.source, spot.date)}",
        )
        return PurchaseOption(option.name, option.hour, option.month, option.source, at_least=True)
    slower = slowdown(taken.percent, count, runs)
    if slower is None:
        return PurchaseOption(title, None, None, "interruptions leave no time to work")
    sign = ">" if taken.at_least else "up to "
    source = (
        f"{slower - 1:.1%} longer by interruptions ({sign}{taken.percent} % of instances a month, save "
        f"{runs.save_s} s, restart {runs.restart_s} s); {_dated(spot.source, spot.date)}"
    )
    hour = Money(amount * count * slower, spot.currency)
    return PurchaseOption(title, hour, Money(Decimal(0), spot.currency), source, at_least=taken.at_least)


def slowdown(percent: int, count: int, runs: SpotRuns) -> Decimal | None:
    """Return how many times longer a run takes by interruptions; None if it never ends.

    Args:
        percent: share of instances that are interrupted within a month, below 100.
        count: instances of the run.
    """
    if not percent:
        return Decimal(1)
    mean_s = HOURS_PER_MONTH * SECONDS_PER_HOUR / (-math.log(1 - percent / 100) * count)
    save_s, restart_s = float(runs.save_s), float(runs.restart_s)
    interval_s = math.sqrt(2 * save_s * mean_s)
    lost = save_s / interval_s + (interval_s / 2 + restart_s) / mean_s
    return Decimal(repr(1 / (1 - lost))) if lost < 1 else None


def _committed(
    title: str, offered: Decimal | None, known: Price | None, count: int, currency: str
) -> PurchaseOption:
    """Return a commitment at the price of the buyer's file, else of the catalog."""
    if offered is not None:
        amount, source = offered, "your file"
    elif known is not None and known.until is not None and known.until <= prices.today():
        ended = f"{known.amount_per_hour} {known.currency} an hour until {known.until}, unknown since"
        return PurchaseOption(title, None, None, f"{ended}; --offers FILE takes yours")
    elif known is not None and known.currency == currency:
        amount, source = known.amount_per_hour, _dated(known.source, known.date)
    else:
        return PurchaseOption(title, None, None, "no public price was found; --offers FILE takes yours")
    month = Money(amount * count * HOURS_PER_MONTH, currency)
    return PurchaseOption(title, Money(Decimal(0), currency), month, f"{source}; paid used or not")


def _dated(source: str, date: datetime.date) -> str:
    return f"{source}, {prices.read_on(date, prices.today())}"


def _own(own: OwnHardware, count: int, currency: str) -> PurchaseOption:
    month = own.price / (own.years * MONTHS) + own.staff_per_year / MONTHS
    hour = own.power_kw * own.energy_per_kwh
    source = f"your file: {own.price:,} over {own.years} years, {own.power_kw} kW"
    return PurchaseOption(own.title, Money(hour * count, currency), Money(month * count, currency), source)
