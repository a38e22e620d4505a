"""Cost of a stack per hour and per month: at its start, at its minimum and at its maximum. Pure.

Amounts are list prices before tax and discount, and are exact until they are shown. A price that no cloud
publishes stays unknown and is named, never guessed.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from gpu_fleet_image.core.counting import counted
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, CostRange, Money, total
from gpu_fleet_stacks.catalog.prices import STALE_AFTER_DAYS, Quote
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.settings.quantities import CostKind, Level

NOT_COUNTED = (
    "traffic to the internet and snapshots beyond --egress-gb and --snapshot-gb, traffic between zones, "
    "requests, backups, logs, metrics, alarms and dashboards beyond the log volume, keys, secrets, "
    "functions, messages, image builds on Alibaba Cloud, tax"
)


class OvercommitError(StacksError):
    """The worst month of a stack exceeds its budget."""


@dataclass(frozen=True)
class CostLine:
    """One item of the cost.

    Attributes:
        pool: the pool that pays; None for what all pools share.
        what: the item, for users.
        months: level -> a month, expected and at worst; None where no price is known.
    """

    pool: str | None
    kind: CostKind
    what: str
    months: Mapping[Level, CostRange] | None
    quotes: tuple[Quote, ...]

    @property
    def unknown(self) -> tuple[Quote, ...]:
        """The prices that no cloud publishes; the amounts in ``months`` do not contain them."""
        return tuple(quote for quote in self.quotes if quote.unknown)


@dataclass(frozen=True)
class Cost:
    """Cost of a stack.

    Attributes:
        lines: the items; the whole is their sum.
        uncounted: what the stack declares and no line counts, beside ``NOT_COUNTED``.
    """

    stack: str
    region: str
    currency: str
    lines: tuple[CostLine, ...]
    uncounted: tuple[str, ...] = ()

    def month(self, level: Level, lines: Iterable[CostLine] | None = None) -> CostRange:
        """Return a month's sum of all lines, or of some."""
        chosen = self.lines if lines is None else lines
        return total((line.months[level] for line in chosen if line.months is not None), self.currency)

    def hour(self, level: Level, lines: Iterable[CostLine] | None = None) -> CostRange:
        """Return an hour's sum of all lines, or of some."""
        return self.month(level, lines) / HOURS_PER_MONTH

    def of_pool(self, pool: str | None) -> tuple[CostLine, ...]:
        """Return the lines of a pool, or with None those that all pools share."""
        return tuple(line for line in self.lines if line.pool == pool)

    def of_kind(self, kind: CostKind) -> tuple[CostLine, ...]:
        """Return the lines of a kind."""
        return tuple(line for line in self.lines if line.kind is kind)

    @property
    def pools(self) -> tuple[str | None, ...]:
        """Every pool once, in order, with None last for what they share."""
        return tuple(dict.fromkeys(line.pool for line in self.lines))

    @property
    def worst_month(self) -> Money:
        """Cost of every instance that the stack may start, at its highest price, for the whole month."""
        return self.month(Level.MAX).worst

    @property
    def quotes(self) -> tuple[Quote, ...]:
        """Every price behind the lines, once."""
        return tuple(dict.fromkeys(quote for line in self.lines for quote in line.quotes))

    @property
    def unknown(self) -> tuple[Quote, ...]:
        """The prices that are neither published nor assumed; with any of these, each sum is a minimum."""
        return tuple(quote for quote in self.quotes if quote.unknown)

    @property
    def bounded(self) -> tuple[Quote, ...]:
        """The spot prices that are not published: the sums count the on-demand price instead."""
        return tuple(quote for quote in self.quotes if quote.amount is None and quote.bounded)

    @property
    def assumed(self) -> tuple[Quote, ...]:
        """The prices that the stack file assumes."""
        return tuple(quote for quote in self.quotes if quote.assumed)

    @property
    def elsewhere(self) -> tuple[Quote, ...]:
        """The prices of another region, used in place of the stack's own region."""
        return tuple(quote for quote in self.quotes if quote.amount and quote.region != self.region)


def warnings(cost: Cost, today: datetime.date) -> list[str]:
    """Return what to know before trusting the sums: unknown, stale and foreign prices. One sentence each."""
    sentences = []
    if cost.unknown:
        names = ", ".join(quote.what for quote in cost.unknown)
        sentences.append(f"without these, which have no public price: {names}; the sums are minimums")
    if cost.bounded:
        names = ", ".join(quote.what for quote in cost.bounded)
        sentences.append(f"no spot price is known, so these count at the on-demand price: {names}")
    if cost.assumed:
        names = ", ".join(f"{quote.what} {quote.amount}" for quote in cost.assumed)
        sentences.append(f"prices that the stack assumes, in {cost.currency}: {names}")
    stale = [quote for quote in cost.quotes if quote.stale(today)]
    if stale:
        oldest = min(stale, key=lambda quote: quote.date or today)
        names = ", ".join(quote.what for quote in stale)
        age = f"older than {STALE_AFTER_DAYS} days, the oldest ({oldest.what}) of {oldest.date}"
        sentences.append(f"{counted(len(stale), 'price')} {age}: {names}")
    for region in sorted({quote.region for quote in cost.elsewhere}):
        names = ", ".join(quote.what for quote in cost.elsewhere if quote.region == region)
        borrowed = f"prices of {region} replace those of {cost.region}: {names}"
        sentences.append(f"{borrowed}; it is unknown whether the budget holds")
    return sentences


def hold_to_budget(cost: Cost, monthly: Decimal | int, *, allow_overcommit: bool) -> None:
    """Refuse a stack whose worst month exceeds its budget.

    Args:
        monthly: ``budget.monthly``, in the currency of ``cost``.
        allow_overcommit: ``budget.allow_overcommit``: the budget may be smaller than the worst month.

    Raises OvercommitError, which names both amounts, the dearest pool, and the ways out.
    """
    budget = Money(Decimal(monthly), cost.currency)
    if allow_overcommit or cost.worst_month <= budget:
        return
    dearest = max(cost.pools, key=lambda pool: cost.month(Level.MAX, cost.of_pool(pool)).worst.amount)
    share = cost.month(Level.MAX, cost.of_pool(dearest)).worst
    at_least = "at least " if cost.unknown else ""
    raise OvercommitError(
        f"stack {cost.stack!r}: budget.monthly = {budget}: the worst case of a month is {at_least}"
        f"{cost.worst_month}, of which {dearest or 'shared'} {share}; raise budget.monthly, lower a pool's "
        "size.max, or set budget.allow_overcommit: true"
    )
