"""The paid parts of a stack: their kinds, quantities and prices. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, InstanceType, prices
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, CostRange, CurrencyError, Money, exactly
from gpu_fleet_stacks.catalog.prices import PriceList, Quote
from gpu_fleet_stacks.cost.lines import Cost, CostLine
from gpu_fleet_stacks.settings import Market, Pool, Stack
from gpu_fleet_stacks.settings.quantities import (
    DEFAULT_VOLUMES,
    CostKind,
    Level,
    Volumes,
    canary_types,
    image_builds,
    instances,
    on_demand_instances,
    reserved_instances,
    shared_units,
    uncounted,
)

# Every gp3 volume includes 125 MB/s; the launch templates ask for more
# (stacks/gpu_fleet_stacks/aws/launch.py).
EXTRA_THROUGHPUT_MB_PER_S = 125


def estimate(stack: Stack, volumes: Volumes = DEFAULT_VOLUMES) -> Cost:
    """Return the cost of a stack. Raises CurrencyError if a price has no rate to the budget's currency."""
    parts = _Parts(stack, prices.load(stack.cloud))
    lines = [line for pool in stack.pools for line in parts.of_pool(pool)]
    lines += parts.shared(volumes)
    return Cost(stack.name, stack.region, stack.budget.currency, tuple(lines), tuple(uncounted(stack)))


@dataclass(frozen=True)
class _Parts:
    """The cost lines of one stack."""

    stack: Stack
    prices: PriceList

    def of_pool(self, pool: Pool) -> Iterator[CostLine]:
        """Yield the lines of a pool: instances by market, and the disks of all of them."""
        count = instances(self.stack, pool)
        if pool.market is Market.SPOT:
            base = on_demand_instances(self.stack, pool)
            if pool.on_demand_base:
                yield self._compute(pool, base, Market.ON_DEMAND)
            revocable = {level: many - base[level] for level, many in count.items()}
            yield self._compute(pool, revocable, Market.SPOT)
        elif pool.reservations:
            for held in pool.reservations:
                until = f" until {held.until}" if held.until else ""
                line = self._compute(pool, dict.fromkeys(Level, held.count), pool.market)
                yield replace(line, what=f"{line.what}: {held.count} in {held.zone}, {held.id}{until}")
        elif reserved := reserved_instances(pool):
            yield self._compute(pool, dict.fromkeys(Level, reserved), pool.market)
        else:
            yield self._compute(pool, count, pool.market)
        per_instance = {"disk": Decimal(pool.volume_gib + pool.scratch_gib)}
        if self.stack.cloud is Cloud.AWS:
            per_instance["disk_throughput"] = Decimal(EXTRA_THROUGHPUT_MB_PER_S)
        for what, units in per_instance.items():
            amounts = {level: units * many for level, many in count.items()}
            yield self._line(what, CostKind.DISKS, amounts, pool=pool.name)

    def shared(self, volumes: Volumes) -> Iterator[CostLine]:
        """Yield the lines that all pools share."""
        for what, kind, units in shared_units(self.stack, volumes):
            yield self._line(what, kind, dict.fromkeys(Level, Decimal(units)))
        if self.stack.image.built and self.stack.cloud is Cloud.AWS:
            yield from self._images()

    def _images(self) -> Iterator[CostLine]:
        """Yield the lines of the weekly image builds: builder, test instance, and stored snapshots."""
        builds = image_builds(self.stack)
        hours = {level: Decimal(each.builder_hours) for level, each in builds.items()}
        yield self._line("image_builder", CostKind.IMAGES, hours)
        if types := canary_types(self.stack):
            quotes = tuple(instance_quote(self.stack, catalog.load().get(name)) for name in types)
            prices = [self._own_currency(quote, quote.amount) for quote in quotes if quote.amount is not None]
            # Image Builder asks for the cheapest type first
            dearest = {Level.MAX: max(prices)}
            months = {
                level: CostRange(min(prices), dearest.get(level, min(prices))) * each.canary_hours
                for level, each in builds.items()
            }
            yield CostLine(None, CostKind.IMAGES, f"canary {', '.join(types)}", months, quotes)
        stored = {level: Decimal(each.snapshot_gb) for level, each in builds.items()}
        yield self._line("image_snapshot", CostKind.IMAGES, stored)

    def _line(
        self, what: str, kind: CostKind, units: Mapping[Level, Decimal], pool: str | None = None
    ) -> CostLine:
        """Return the line of some units a month at one price."""
        quote = item_quote(self.stack, self.prices, what)
        months = None
        if quote.amount is not None:
            costs = {level: quote.cost(many) for level, many in units.items()}
            months = {
                level: exactly(self._own_currency(quote, cost))
                for level, cost in costs.items()
                if cost is not None
            }
        return CostLine(pool, kind, what, months, (quote,))

    def _compute(self, pool: Pool, count: Mapping[Level, int], market: Market) -> CostLine:
        """Return the line of one market's instances; the first type is expected, the dearest is the worst."""
        hours, quotes = [], list[Quote]()
        for name in pool.types:
            listed = instance_quote(self.stack, catalog.load().get(name), market)
            quotes.append(listed)
            if market is Market.SPOT and not listed.assumed:
                quotes.append(spot_quote(self.stack, self.prices, name))
            if listed.amount is not None:
                hours.append(self._instance_hour(pool, listed, quotes[-1], market))
        months = None
        if hours:
            each = CostRange(hours[0].expected, max(hour.worst for hour in hours))
            months = {level: each * (many * HOURS_PER_MONTH) for level, many in count.items()}
        bought = f"{market} or on-demand" if falls_back(pool, market) else market
        used_or_not = ", used or not" if market is Market.RESERVATION else ""
        what = f"{bought} {', '.join(pool.types)}{used_or_not}"
        return CostLine(pool.name, CostKind.COMPUTE, what, months, tuple(quotes))

    def _instance_hour(self, pool: Pool, listed: Quote, spot: Quote, market: Market) -> CostRange:
        """Return the price of an hour of a type with a list price, which is the maximum on spot."""
        assert listed.amount is not None, "asked of known prices alone"
        worst = self._own_currency(listed, listed.amount)
        if market is not Market.SPOT:
            return exactly(worst)
        # beside an assumed price nobody knows the currency of the account, which is the limit's
        if pool.spot_price_limit is not None and not (listed.assumed or falls_back(pool, market)):
            worst = min(worst, self._own_currency(listed, pool.spot_price_limit))
        expected = worst if spot.amount is None else min(worst, self._own_currency(spot, spot.amount))
        return CostRange(expected, worst)

    def _own_currency(self, quote: Quote, amount: Decimal) -> Money:
        """Convert a price into the stack's currency. Raises CurrencyError."""
        budget = self.stack.budget
        if quote.currency == budget.currency:
            return Money(amount, quote.currency)
        rate = budget.cny_per_usd
        if rate is not None and (quote.currency, budget.currency) == ("CNY", "USD"):
            return Money(amount / rate, budget.currency)
        if rate is not None and (quote.currency, budget.currency) == ("USD", "CNY"):
            return Money(amount * rate, budget.currency)
        raise CurrencyError(
            f"stack {self.stack.name!r}: budget.currency = {budget.currency!r}: the price of {quote.what} is "
            f"in {quote.currency}; needs budget.cny_per_usd, which relates CNY and USD only"
        )


def falls_back(pool: Pool, market: Market) -> bool:
    """Return whether the pool buys on-demand instances where this market has none."""
    return pool.on_demand_fallback and market is Market.SPOT


def item_quote(stack: Stack, listed: PriceList, what: str) -> Quote:
    """Return the price of a unit other than an instance; the stack file's assumption comes first."""
    quote = listed.quote(what, stack.region)
    price = stack.budget.assume.get(what)
    return quote if price is None else _assumed(stack, what, price, quote.unit)


def spot_quote(stack: Stack, listed: PriceList, name: str) -> Quote:
    """Return the expected spot price of an hour of a type; unknown outside of the list's region."""
    what, unit = f"{name} on spot", "instance and hour, expected"
    spot = listed.spot.get(name)
    if spot is None or spot.region != stack.region:
        source = f"no public spot price of {stack.region} was found: counted at the on-demand price"
        return Quote(what, None, unit, "", "", None, source, bounded=True)
    p90 = "90th percentile unknown" if spot.p90 is None else f"90th percentile {spot.p90}"
    source = f"{p90}; {spot.source}"
    return Quote(what, spot.expected, unit, spot.currency, spot.region, spot.date, source)


def _assumed(stack: Stack, what: str, price: Decimal, unit: str) -> Quote:
    currency = stack.budget.currency
    return Quote(what, price, unit, currency, stack.region, None, "budget.assume", assumed=True)


def instance_quote(stack: Stack, kind: InstanceType, market: Market = Market.ON_DEMAND) -> Quote:
    """Return an instance's price for an hour; the stack file's assumption comes first, then the catalog.

    A capacity block has no price here, because it is paid in advance.
    """
    unit = "instance and hour"
    if market is Market.CAPACITY_BLOCK:
        source = "paid in full when the capacity block was bought"
        return Quote(f"{kind.name} in a capacity block", None, unit, "", "", None, source)
    if (assumed := stack.budget.assume.get(kind.name)) is not None:
        return _assumed(stack, kind.name, assumed, unit)
    if (price := kind.price) is None:
        return Quote(kind.name, None, unit, "", "", None, "no public list price was found")
    return Quote(
        kind.name, price.amount_per_hour, unit, price.currency, price.region, price.date, price.source
    )
