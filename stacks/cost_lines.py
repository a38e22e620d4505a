"""The parts of a stack that cost money: which there are, how many of each, and their prices. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from stacks import catalog, prices
from stacks.catalog import Cloud, InstanceType
from stacks.cost import HOURS_PER_MONTH, Cost, Kind, Level, Line
from stacks.money import CurrencyError, Money, Span, exactly
from stacks.prices import PriceList, Quote
from stacks.settings import Grouping, Market, Nat, Network, Pool, Redundancy, Stack

# gp3 gives 125 MB/s with every volume; the launch templates ask for more (stacks/aws/launch.py).
EXTRA_THROUGHPUT_MB_PER_S = 125
# Interface endpoints of a stack: as many as the clouds' endpoints.py names; a test holds them together.
ENDPOINTS = {Cloud.AWS: 12, Cloud.ALICLOUD: 1}
ONE = Decimal(1)


@dataclass(frozen=True)
class Volumes:
    """What people will store and send, which no stack file says: by default 100 GB of each.

    Attributes:
        bucket_gb: in all buckets, on average over the month.
        home_gb: in homes, where they grow by themselves.
        log_gb: flow log taken in within a month.
        nat_gb: through NAT within a month.
    """

    bucket_gb: int = 100
    home_gb: int = 100
    log_gb: int = 100
    nat_gb: int = 100


DEFAULT_VOLUMES = Volumes()


def estimate(stack: Stack, volumes: Volumes = DEFAULT_VOLUMES) -> Cost:
    """What a stack costs.

    Raises:
        CurrencyError: a price is in a currency that the budget gives no rate for.
    """
    parts = _Parts(stack, prices.load(stack.cloud))
    lines = [line for pool in stack.pools for line in parts.of_pool(pool)]
    lines += parts.shared(volumes)
    return Cost(stack.name, stack.region, stack.budget.currency, tuple(lines))


def machines(stack: Stack, pool: Pool) -> Mapping[Level, int]:
    """How many machines a pool has at each level.

    A pool with a group for each zone starts in the first and may move to any other, so at its worst every
    group is full.
    """
    most = pool.size.max * _groups(stack, pool)
    return {Level.NOW: pool.size.desired, Level.MIN: pool.size.min, Level.MAX: most}


def on_demand_machines(stack: Stack, pool: Pool) -> Mapping[Level, int]:
    """How many machines of a spot pool are bought on demand: each of its groups buys its own base first."""
    base, groups = pool.on_demand_base, {Level.MAX: _groups(stack, pool)}
    return {level: min(base * groups.get(level, 1), many) for level, many in machines(stack, pool).items()}


def _groups(stack: Stack, pool: Pool) -> int:
    return len(stack.zones_of(pool)) if pool.grouping is Grouping.PER_ZONE else 1


def gateways(network: Network) -> int:
    """How many NAT gateways a network has, each with a public address."""
    return {Nat.NONE: 0, Nat.ONE: 1, Nat.PER_ZONE: len(network.zones)}[network.nat]


@dataclass(frozen=True)
class _Parts:
    """Writes the lines of one stack."""

    stack: Stack
    prices: PriceList

    def of_pool(self, pool: Pool) -> Iterator[Line]:
        """Machines by market, and the disks of all of them."""
        count = machines(self.stack, pool)
        if pool.market is Market.SPOT:
            base = on_demand_machines(self.stack, pool)
            if pool.on_demand_base:
                yield self._compute(pool, base, Market.ON_DEMAND)
            revocable = {level: many - base[level] for level, many in count.items()}
            yield self._compute(pool, revocable, Market.SPOT)
        else:
            yield self._compute(pool, count, pool.market)
        per_machine = {"disk": Decimal(pool.volume_gib + pool.scratch_gib)}
        if self.stack.cloud is Cloud.AWS:
            per_machine["disk_throughput"] = Decimal(EXTRA_THROUGHPUT_MB_PER_S)
        for what, units in per_machine.items():
            amounts = {level: units * many for level, many in count.items()}
            yield self._line(what, Kind.DISKS, amounts, pool=pool.name)

    def shared(self, volumes: Volumes) -> Iterator[Line]:
        """What all pools use."""
        for what, kind, units in shared_units(self.stack, volumes):
            yield self._line(what, kind, dict.fromkeys(Level, Decimal(units)))

    def _line(self, what: str, kind: Kind, units: Mapping[Level, Decimal], pool: str | None = None) -> Line:
        """So many units a month of one price."""
        quote = item_quote(self.stack, self.prices, what)
        months = None
        if quote.amount is not None:
            each = exactly(self._own_currency(quote, quote.amount))
            months = {level: each * many for level, many in units.items()}
        return Line(pool, kind, what, months, (quote,))

    def _compute(self, pool: Pool, count: Mapping[Level, int], market: Market) -> Line:
        """Machines of one market: from the cheapest of the pool's types to the dearest."""
        quotes = tuple(machine_quote(self.stack, catalog.load().get(name), market) for name in pool.types)
        each = self._machine_hour(quotes, pool, market)
        months = None
        if each is not None:
            months = {level: each * (many * HOURS_PER_MONTH) for level, many in count.items()}
        return Line(pool.name, Kind.COMPUTE, f"{market} {', '.join(pool.types)}", months, quotes)

    def _machine_hour(self, quotes: tuple[Quote, ...], pool: Pool, market: Market) -> Span | None:
        listed = [quote for quote in quotes if quote.amount is not None]
        if not listed:
            return None
        known = [self._own_currency(quote, quote.amount) for quote in listed if quote.amount is not None]
        low, high = min(known), max(known)
        if market is not Market.SPOT:
            return Span(low, high)
        discount = self.prices.spot_discount
        high *= ONE - discount.least
        if pool.spot_price_limit is not None:
            high = min(high, self._own_currency(listed[0], pool.spot_price_limit))
        return Span(min(low * (ONE - discount.most), high), high)

    def _own_currency(self, quote: Quote, amount: Decimal) -> Money:
        """A price in the stack's currency.

        Raises:
            CurrencyError: when there is no rate between the two.
        """
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


def shared_units(stack: Stack, volumes: Volumes = DEFAULT_VOLUMES) -> Iterator[tuple[str, Kind, int]]:
    """What all pools of a stack use: the name of its price, its kind, and how many units a month."""
    network, storage = stack.network, stack.storage
    if many := gateways(network):
        yield "nat_gateway", Kind.NAT, many * HOURS_PER_MONTH
        yield "public_address", Kind.NAT, many * HOURS_PER_MONTH
        yield "nat_traffic", Kind.NAT, volumes.nat_gb
    if network.interface_endpoints:
        hours = ENDPOINTS[stack.cloud] * len(network.zones) * HOURS_PER_MONTH
        yield "endpoint", Kind.ENDPOINTS, hours
    yield bucket_price(stack), Kind.STORAGE, volumes.bucket_gb
    if storage.home:
        grows = stack.cloud is Cloud.AWS
        yield "home", Kind.STORAGE, volumes.home_gb if grows else storage.home_gib
    if storage.scratch_gib:
        yield "scratch", Kind.STORAGE, storage.scratch_gib
    yield "log", Kind.LOGS, volumes.log_gb


def bucket_price(stack: Stack) -> str:
    """S3 always keeps copies in several zones; OSS where the stack asks for them."""
    return "bucket_zone_redundant" if stack.storage.redundancy is Redundancy.ZRS else "bucket"


def disk_gib(stack: Stack, pool: Pool) -> int:
    """GiB of the disks of a pool with every group full."""
    return machines(stack, pool)[Level.MAX] * (pool.volume_gib + pool.scratch_gib)


def item_quote(stack: Stack, listed: PriceList, what: str) -> Quote:
    """What a unit of something other than machines costs, or what the stack assumes where no list says."""
    quote = listed.quotes[what]
    price = stack.budget.assume.get(what)
    return quote if price is None else _assumed(stack, what, price, quote.unit)


def _assumed(stack: Stack, what: str, price: Decimal, unit: str) -> Quote:
    currency = stack.budget.currency
    return Quote(what, price, unit, currency, stack.region, None, "budget.assume", assumed=True)


def machine_quote(stack: Stack, kind: InstanceType, market: Market = Market.ON_DEMAND) -> Quote:
    """A machine's price for an hour: from the catalog, or what the stack assumes where that has none.

    A capacity block has no price, it is paid beforehand.
    """
    unit = "machine and hour"
    if market is Market.CAPACITY_BLOCK:
        source = "paid in full when the capacity block was bought"
        return Quote(kind.name, None, unit, "", "", None, source)
    if (assumed := stack.budget.assume.get(kind.name)) is not None:
        return _assumed(stack, kind.name, assumed, unit)
    if (price := kind.price) is None:
        return Quote(kind.name, None, unit, "", "", None, "no public list price was found")
    return Quote(
        kind.name, price.amount_per_hour, unit, price.currency, price.region, price.date, price.source
    )
