"""A stack's cost for people: a line for the log, plain values for the stack's outputs, a table with bars."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stacks.cost import HOURS_PER_MONTH, NOT_COUNTED, Cost, Kind, Level, Line
from stacks.money import Money, Span

BAR_WIDTH = 44


def summary(cost: Cost, monthly: Decimal | int) -> str:
    """One line: now, at most, and what the budget leaves of that."""
    left = Money(Decimal(monthly), cost.currency) - cost.worst_month
    verdict = f"{left} under" if left.amount >= 0 else f"{Money(-left.amount, left.currency)} over"
    at_least = " and unknown prices" if cost.unknown else ""
    return (
        f"cost of {cost.stack}: now {cost.hour(Level.NOW)} an hour, {cost.month(Level.NOW)} a month; "
        f"at worst {cost.worst_month} a month{at_least}, {verdict} the budget"
    )


def output(cost: Cost, monthly: Decimal | int) -> dict[str, Any]:
    """The stack output ``cost``: amounts to the cent as text, so that a preview shows their difference."""
    return {
        "currency": cost.currency,
        "budget": str(monthly),
        "worst_month": _cents(cost.worst_month),
        "hour": {str(level): _plain(cost.hour(level)) for level in Level},
        "month": {str(level): _plain(cost.month(level)) for level in Level},
        "month_by_pool": {name: _plain(cost.month(Level.NOW, lines)) for name, lines in _by_pool(cost)},
        "month_by_kind": {
            str(kind): _plain(cost.month(Level.NOW, cost.of_kind(kind)))
            for kind in Kind
            if cost.of_kind(kind)
        },
        "unknown": [quote.what for quote in cost.unknown],
    }


def _plain(span: Span) -> dict[str, str]:
    return {"low": _cents(span.low), "high": _cents(span.high)}


def _cents(money: Money) -> str:
    return f"{money.amount:.2f}"


def _by_pool(cost: Cost) -> Iterator[tuple[str, tuple[Line, ...]]]:
    for pool in cost.pools:
        yield pool or "shared", cost.of_pool(pool)


def page(cost: Cost, monthly: Decimal | int) -> RenderableType:
    """Everything about a stack's cost: table, bars against the budget, prices, and what is not counted."""
    return Group(
        _table(cost),
        Text(),
        _bars(cost, Money(Decimal(monthly), cost.currency)),
        Text(),
        _prices(cost),
        Text(),
        Text(summary(cost, monthly), style="bold"),
        Text(f"not counted: {NOT_COUNTED}", style="dim"),
    )


def _table(cost: Cost) -> Table:
    """Rows by pool and kind, columns by level; a span where spot or a choice of types leaves one."""
    table = Table(
        title=f"{cost.stack}: {cost.currency} a month ({HOURS_PER_MONTH} hours)", title_justify="left"
    )
    for heading in ("pool", "kind"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what")
    for level in Level:
        table.add_column(str(level), justify="right", no_wrap=True)
    for name, lines in _by_pool(cost):
        for line in lines:
            amounts = [_amount(line.months[level]) for level in Level] if line.months else ["unknown"] * 3
            table.add_row(name, str(line.kind), line.what.replace("_", " "), *amounts)
        table.add_section()
    for title, per in (("a month", cost.month), ("an hour", cost.hour)):
        table.add_row("all", "", title, *(_amount(per(level)) for level in Level), style="bold")
    return table


def _amount(span: Span) -> str:
    low, high = f"{span.low.amount:,.2f}", f"{span.high.amount:,.2f}"
    return high if low == high else f"{low} to {high}"


def _bars(cost: Cost, budget: Money) -> Table:
    """The worst month by pool and in all, each as a bar on the scale of the budget."""
    amounts = [(name, cost.month(Level.MAX, lines).high) for name, lines in _by_pool(cost)]
    amounts += [("worst month", cost.worst_month), ("budget", budget)]
    scale = float(max(amount.amount for _, amount in amounts))
    table = Table(box=None, show_header=False)
    for name, amount in amounts:
        over = name == "worst month" and budget < amount
        bar = Bar(scale, 0, float(amount.amount), width=BAR_WIDTH, color="red" if over else "cyan")
        table.add_row(name, bar, str(amount))
    return table


def _prices(cost: Cost) -> Table:
    """Every price with its unit, date and source."""
    table = Table(box=None, header_style="bold")
    for heading in ("price of", "amount", "unit", "read", "source"):
        table.add_column(heading, justify="right" if heading == "amount" else "left", overflow="fold")
    for quote in cost.quotes:
        amount = "unknown" if quote.amount is None else f"{quote.amount} {quote.currency}"
        read = "" if quote.date is None else quote.date.isoformat()
        table.add_row(quote.what.replace("_", " "), amount, quote.unit, read, quote.source)
    return table
