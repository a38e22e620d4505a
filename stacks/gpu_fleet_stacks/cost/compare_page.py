"""``cost --compare`` for users: a table, keys for programs, an HTML page with pictures. Pure."""

from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, Decimal
from html import escape
from typing import Any

from rich.console import Group, RenderableType

from gpu_fleet_image.core import report_page
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_stacks.catalog.money import CENT, HOURS_PER_MONTH, Money
from gpu_fleet_stacks.cost.compare import ON_DEMAND, PoolComparison, PurchaseOption

UNKNOWN = "unknown"
HEADINGS = ("way to pay", "an hour of use", "a month, used or not", f"{HOURS_PER_MONTH} hours", "pays from")
# Of `-o csv`.
COLUMNS = (
    *("pool", "type", "instances", "name", "hour", "month", "currency", "at_least", "break_even_hours"),
    "source",
)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 480, 260, 62, 44, 14
# Okabe and Ito's palette, which colour-blind readers can tell apart; dashes for those who print.
COLOURS = ("#000000", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
DASHES = ("", "8 3", "2 3", "12 3 2 3", "6 6", "14 3 2 3 2 3", "10 5")
NOTE = (
    "List prices before tax and discount, of the stack's region alone. A price without a first-hand source "
    "is unknown. A way pays from the hours of use a month at which it costs as much as on demand."
)


def pays_from(option: PurchaseOption, on_demand: Money | None) -> str:
    """Format the hours of use a month from which an option is cheaper than on demand."""
    if option.name == ON_DEMAND:
        return ""
    if option.hour is None or on_demand is None:
        return UNKNOWN
    hours = option.break_even(on_demand)
    if hours is None or hours > HOURS_PER_MONTH:
        return "never"
    return "the first hour" if not hours else f"{hours.to_integral_value(ROUND_CEILING)} hours"


def _cells(option: PurchaseOption, on_demand: Money | None) -> tuple[str, ...]:
    least = "at least " if option.at_least else ""
    costs = (option.hour, option.month, option.cost(HOURS_PER_MONTH))
    amounts = [UNKNOWN if each is None else f"{least if each.amount else ''}{each}" for each in costs]
    return option.name, *amounts, pays_from(option, on_demand)


def table(listed: Sequence[PoolComparison]) -> RenderableType:
    """Return a table for each pool."""
    return Group(*map(_table, listed))


def _table(compared: PoolComparison) -> Listing:
    columns = (Column(HEADINGS[0], wraps=True), *(Column(text, "right", wraps=True) for text in HEADINGS[1:]))
    rows = Listing((*columns, Column("source", wraps=True)), _title(compared))
    for option in compared.options:
        rows.add_row(*_cells(option, compared.on_demand), option.source)
    return rows


def _title(compared: PoolComparison) -> str:
    return f"{compared.pool}: {compared.count} x {compared.type}"


def document(listed: Sequence[PoolComparison]) -> list[dict[str, Any]]:
    """Return the same for programs: amounts in cents as text, null where unknown."""
    return [
        {
            "pool": each.pool,
            "type": each.type,
            "instances": each.count,
            "options": [_option(option, each.on_demand) for option in each.options],
        }
        for each in listed
    ]


def rows(listed: Sequence[PoolComparison]) -> Iterator[dict[str, Any]]:
    """Yield the same as rows, one for each option of each pool."""
    for pool in document(listed):
        options = pool.pop("options")
        yield from (pool | option for option in options)


def _option(option: PurchaseOption, on_demand: Money | None) -> dict[str, Any]:
    hours = option.break_even(on_demand)
    return {
        "name": option.name,
        "hour": None if option.hour is None else str(option.hour.amount.quantize(CENT)),
        "month": None if option.month is None else str(option.month.amount.quantize(CENT)),
        "currency": None if option.hour is None else option.hour.currency,
        "at_least": option.at_least,
        "break_even_hours": None if hours is None else str(hours.quantize(CENT)),
        "source": option.source,
    }


def html(stack: str, listed: Sequence[PoolComparison]) -> str:
    """Return the page, with a picture for each pool: the cost of a month by hours of use."""
    body = "\n".join(part for each in listed for part in _section(each))
    return report_page.page(f"{stack}: ways to pay for its GPUs", "", NOTE, body)


def _section(compared: PoolComparison) -> Iterator[str]:
    yield f"<h2>{escape(_title(compared))}</h2>"
    known = [option for option in compared.options if option.hour is not None]
    if known:
        yield f"<figure>{_picture(known)}</figure>"
        yield f"<p>{''.join(_key(index, option) for index, option in enumerate(known))}</p>"
    rows = [(*_cells(option, compared.on_demand), option.source) for option in compared.options]
    yield report_page.table((*HEADINGS, "source"), rows, numbers=HEADINGS[1:], ids=HEADINGS[:1])


def _stroke(index: int) -> str:
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[(index + index // len(COLOURS)) % len(DASHES)]
    return f'stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"'


def _key(index: int, option: PurchaseOption) -> str:
    line = f'<svg viewBox="0 0 44 12"><line x1="0" x2="44" y1="6" y2="6" {_stroke(index)}/></svg>'
    return f"<span class=key>{line} {escape(option.name)}</span>"


def _picture(options: Sequence[PurchaseOption]) -> str:
    """Return the cost of a month over the hours of use, a line for each option, as SVG."""
    months = [option.cost(HOURS_PER_MONTH) for option in options]
    most = max((month for month in months if month), key=lambda month: month.amount)
    scale = most.amount or Decimal(1)
    right, low = WIDTH - 18, HEIGHT - BOTTOM

    def y_of(cost: Money | None) -> float:
        return low - float((cost.amount if cost else Decimal(0)) / scale) * (low - TOP)

    parts = [f'<line x1="{LEFT}" x2="{right}" y1="{low}" y2="{low}" stroke="#222"/>']
    for share in (0, 25, 50, 75, 100):
        hours, cost = HOURS_PER_MONTH * share // 100, Money(scale * share / 100, most.currency)
        at, level = LEFT + (right - LEFT) * share / 100, y_of(cost)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{cost.amount:,.0f}</text>')
        parts.append(f'<text x="{at:.0f}" y="{low + 16}" text-anchor="middle">{hours}</text>')
    for index, option in enumerate(options):
        begin, end = y_of(option.cost(0)), y_of(option.cost(HOURS_PER_MONTH))
        ends = f'x1="{LEFT}" y1="{begin:.1f}" x2="{right}" y2="{end:.1f}"'
        parts.append(f"<line {ends} {_stroke(index)}/>")
    label = f"cost of a month in {most.currency}, by hours of use a month"
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" font-size="13" '
        f'font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )
