"""The page on a stack's cost: a table by pool, bars against the budget, each price with its source."""

from collections.abc import Iterator
from decimal import Decimal

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, CostRange, Money
from gpu_fleet_stacks.cost.lines import NOT_COUNTED, Cost
from gpu_fleet_stacks.cost.view import by_pool, summary
from gpu_fleet_stacks.settings.quantities import Level

BAR_WIDTH = 44
AMOUNTS = tuple(f"{level}_{which}" for level in Level for which in ("low", "high"))
# Of `-o csv`: a month of each item.
COLUMNS = ("pool", "kind", "what", *AMOUNTS, "currency")


def page(cost: Cost, monthly: Decimal | int) -> RenderableType:
    """Return the page on a stack's cost: table, bars against the budget, prices, and items not counted."""
    return Group(
        _table(cost),
        Text(),
        _bars(cost, Money(Decimal(monthly), cost.currency)),
        Text(),
        _prices(cost),
        Text(),
        Text(summary(cost, monthly), style="bold"),
        Text(f"not counted: {', '.join((*cost.uncounted, NOT_COUNTED))}", style="dim"),
    )


def rows(cost: Cost) -> Iterator[dict[str, object]]:
    """Yield the rows of the table for programs, without its sums; an unknown amount is None."""
    for name, lines in by_pool(cost):
        for line in lines:
            spans = [line.months[level] for level in Level] if line.months else []
            amounts: list[str | None] = [
                f"{amount.amount:.2f}" for span in spans for amount in (span.expected, span.worst)
            ]
            values = (name, str(line.kind), line.what, *(amounts or [None] * len(AMOUNTS)), cost.currency)
            yield dict(zip(COLUMNS, values, strict=True))


def _table(cost: Cost) -> Listing:
    """Return the table of costs: rows by pool and kind, columns by level, expected beside worst case."""
    title = f"{cost.stack}: {cost.currency} a month ({HOURS_PER_MONTH} hours)"
    levels = [
        Column(f"{level}\n{heading}", "right", wraps=True, leaves=at if level is Level.MIN else 0)
        for level in Level
        for at, heading in enumerate(("expected", "at worst"), 1)
    ]
    table = Listing((Column("pool"), Column("kind", leaves=3), Column("what", wraps=True), *levels), title)
    for name, lines in by_pool(cost):
        for line in lines:
            spans = [line.months[level] for level in Level] if line.months else []
            amounts = [amount for span in spans for amount in _amounts(span)] or ["unknown"] * len(levels)
            what = line.what.replace("_", " ")
            table.add_row(name, str(line.kind), what, *amounts, end_section=line is lines[-1])
    at_least = "at least, " if cost.unknown else ""
    for title, per in (("a month", cost.month), ("an hour", cost.hour)):
        sums = [amount for level in Level for amount in _amounts(per(level))]
        table.add_row("all", "", f"{at_least}{title}", *sums, style="bold")
    return table


def _amounts(span: CostRange) -> tuple[str, str]:
    return f"{span.expected.amount:,.2f}", f"{span.worst.amount:,.2f}"


def _bars(cost: Cost, budget: Money) -> Table:
    """Return the worst month by pool and in total, each as a bar on the scale of the budget."""
    amounts = [(name, cost.month(Level.MAX, lines).worst) for name, lines in by_pool(cost)]
    amounts += [("worst month", cost.worst_month), ("budget", budget)]
    scale = float(max(amount.amount for _, amount in amounts))
    table = Table(box=None, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(max_width=BAR_WIDTH)
    table.add_column(justify="right", overflow="fold")
    for name, amount in amounts:
        over = name == "worst month" and budget < amount
        bar = Bar(scale, 0, float(amount.amount), color="red" if over else "cyan")
        table.add_row(name, bar, str(amount))
    return table


def _prices(cost: Cost) -> Listing:
    """Return every price with its unit, region, date and source."""
    columns = (
        Column("price of"),
        Column("amount", "right"),
        *(Column(heading, wraps=True) for heading in ("unit", "region")),
        Column("read"),
        Column("source", wraps=True),
    )
    table = Listing(columns, box=None)
    for quote in cost.quotes:
        amount = "unknown" if quote.amount is None else f"{quote.amount} {quote.currency}"
        read = "assumed" if quote.assumed else "" if quote.date is None else quote.date.isoformat()
        foreign = quote.amount is not None and quote.region != cost.region
        region = f"{quote.region}, not {cost.region}" if foreign else quote.region
        table.add_row(quote.what.replace("_", " "), amount, quote.unit, region, read, quote.source)
    return table
