"""A stack's cost for users: a line for the log, plain values for outputs and programs."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from gpu_fleet_stacks.catalog.money import CostRange, Money
from gpu_fleet_stacks.cost.lines import Cost, CostLine
from gpu_fleet_stacks.settings.quantities import CostKind, Level


def summary(cost: Cost, monthly: Decimal | int) -> str:
    """Return the cost in one line: expected now, worst case, and what is left of the budget."""
    at_least = "at least " if cost.unknown else ""
    hour, month = cost.hour(Level.NOW).expected, cost.month(Level.NOW).expected
    left = verdict(cost, Money(Decimal(monthly), cost.currency))
    return (
        f"cost of {cost.stack}: now {at_least}{hour} an hour, {at_least}{month} a month expected; "
        f"at worst {at_least}{cost.worst_month} a month, {left}"
    )


def verdict(cost: Cost, budget: Money) -> str:
    """Say whether the worst month fits the budget; prices of another region prove nothing."""
    left = budget - cost.worst_month
    if left.amount < 0:
        return f"{Money(-left.amount, left.currency)} over the budget"
    if cost.elsewhere:
        regions = ", ".join(sorted({quote.region for quote in cost.elsewhere}))
        return f"by prices of {regions}: it is unknown whether the budget of {budget} holds"
    return f"{left} under the budget{', as far as prices are known' if cost.unknown else ''}"


def output(cost: Cost, monthly: Decimal | int) -> dict[str, Any]:
    """Return the output ``cost``: amounts in cents as text, so that a preview shows their difference.

    ``low`` is the expected cost, ``high`` the worst case.
    """
    return {
        "currency": cost.currency,
        "budget": str(monthly),
        "worst_month": _cents(cost.worst_month),
        "hour": {str(level): _plain(cost.hour(level)) for level in Level},
        "month": {str(level): _plain(cost.month(level)) for level in Level},
        "month_by_pool": {name: _plain(cost.month(Level.NOW, lines)) for name, lines in by_pool(cost)},
        "month_by_kind": {
            str(kind): _plain(cost.month(Level.NOW, cost.of_kind(kind)))
            for kind in CostKind
            if cost.of_kind(kind)
        },
        "unknown": [quote.what for quote in cost.unknown],
        "assumed": [quote.what for quote in cost.assumed],
    }


def _plain(span: CostRange) -> dict[str, str]:
    return {"low": _cents(span.expected), "high": _cents(span.worst)}


def _cents(money: Money) -> str:
    return f"{money.amount:.2f}"


def by_pool(cost: Cost) -> Iterator[tuple[str, tuple[CostLine, ...]]]:
    """Yield each pool's name with its lines, and ``shared`` with the lines that pools share."""
    for pool in cost.pools:
        yield pool or "shared", cost.of_pool(pool)
