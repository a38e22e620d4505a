"""A month's summary as one HTML file with embedded plots, to open, mail or print."""

import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from html import escape

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpu_fleet_image.console.operators.monthly_savings import Saving, Summary
from gpu_fleet_image.console.users.ledger_records import FreezeChange
from gpu_fleet_image.core import report_page
from gpu_fleet_image.core.times import format_span

_BAR = "#2a6f97"
LINE = "#1b4332"
_THOUSANDS = "{x:,.0f}"
_INCHES = (5, 3.2)  # letters of a narrow screen stay ten pixels high
_WEEK = 7
_MOST_BARS = 12  # more cannot be read; the others are summed up


def page(summary: Summary, stack: str, changes: Sequence[FreezeChange] = ()) -> str:
    """Return the HTML file."""
    plots = []
    if summary.savings:
        plots = [_daily_plot(summary)]
        plots += [_bar_plot("saved by pool", summary.by_pool, summary.currency)]
        plots += [_bar_plot("saved by owner", summary.by_owner, summary.currency)]
    figures = "\n".join(f"<figure>{plot}</figure>" for plot in plots)
    return report_page.page(
        f"GPU fleet {stack}: what {summary.month.name} saved",
        f"{_total(summary) if summary.savings else 'Nothing'} saved",
        _note(summary),
        f'<div class="plots">\n{figures}\n</div>\n{_ends(summary)}{_budget(summary, changes)}',
    )


def _ends(summary: Summary) -> str:
    saved = f"saved, {summary.currency}"
    heads = ("when", "instance", "type", "pool", "owner", "action", "was idle", saved, "why")
    rows = list(_rows(summary))
    table = report_page.table(heads, rows, numbers=("was idle", saved), ids=("when", "instance"))
    return f"<h2>Every termination and stop</h2>\n{table}"


def _budget(summary: Summary, changes: Sequence[FreezeChange]) -> str:
    if not changes:
        return ""
    spent = f"spent, {summary.currency}"
    rows = [
        (f"{each.at:%Y-%m-%d %H:%M}", each.action, each.stage, f"{each.spent:,.2f}", each.by, each.reason)
        for each in changes
    ]
    table = report_page.table(("when", "what", "pools", spent, "by", "why"), rows, numbers=(spent,))
    return f"\n<h2>Budget</h2>\n{table}"


def _total(summary: Summary) -> str:
    """Return the amount saved; "At least" if a price was unknown."""
    at_least = "At least " if summary.unpriced else ""
    return f"{at_least}{summary.total:,.2f} {summary.currency}"


def _note(summary: Summary) -> str:
    note = (
        f"{len(summary.savings)} terminations and stops of idle instances. Each counts as if it had run on "
        "unused until the end of the month, at its on-demand price, and no longer."
    )
    if summary.unpriced:
        note += f" {summary.unpriced} of them had no known price and count nothing."
    return note


def _rows(summary: Summary) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each stop or termination."""
    for saving in summary.savings:
        end = saving.end
        idle = "" if end.idle_s is None else format_span(timedelta(seconds=end.idle_s))
        when = f"{end.at:%Y-%m-%d %H:%M}"
        named = (when, end.instance_id, end.instance_type, end.pool, end.owner, end.action)
        yield *named, idle, _amount(saving), end.reason


def _amount(saving: Saving) -> str:
    return "unknown" if saving.amount is None else f"{saving.amount:,.2f}"


def _daily_plot(summary: Summary) -> str:
    """Return a plot of the savings so far, by day, as SVG."""
    title = f"saved so far, {summary.currency}"
    figure, axes = _axes(title)
    values = [float(amount) for amount in summary.by_day]
    days = range(1, summary.month.days + 2)  # each day's edges
    axes.stairs(values, days, color=LINE)
    axes.stairs(values, days, color=LINE, alpha=0.15, fill=True)
    axes.set_xticks(range(1, summary.month.days + 1, _WEEK))
    axes.set_xlabel(f"day of {summary.month.name}")
    axes.set_ylabel(summary.currency)
    axes.yaxis.set_major_formatter(_THOUSANDS)
    axes.set_ylim(bottom=0)
    return _svg(figure, title)


def _bar_plot(title: str, amounts: Mapping[str, Decimal], currency: str) -> str:
    """Return a plot of amounts as bars, largest on top, as SVG."""
    figure, axes = _axes(f"{title}, {currency}")
    shown = _shortened(amounts)
    names = list(shown)[::-1]
    plain = [name.replace("$", r"\$") for name in names]  # text between two would be a formula
    bars = axes.barh(plain, [float(shown[name]) for name in names], color=_BAR)
    axes.bar_label(bars, [f"{shown[name]:,.0f}" for name in names], padding=3)
    axes.margins(x=0.15)
    axes.set_xlabel(currency)
    axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.locator_params(axis="x", nbins=4)
    return _svg(figure, f"{title}, {currency}")


def _shortened(amounts: Mapping[str, Decimal]) -> dict[str, Decimal]:
    items = list(amounts.items())
    rest = items[_MOST_BARS:]
    shown = dict(items[:_MOST_BARS])
    if rest:
        shown[f"{len(rest)} others"] = sum((amount for _, amount in rest), Decimal(0))
    return shown


def _axes(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure, title: str) -> str:
    """Return the figure without XML head; text stays text, so that it can be searched and read aloud."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gpu-fleet"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    _, _, rest = text.getvalue().partition("<svg")
    return f'<svg role="img" aria-label="{escape(title)}"{rest}'
