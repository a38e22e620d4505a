"""A month's summary as one HTML file with embedded plots, to open, mail or print."""

import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal

import matplotlib
from jinja2 import Environment, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpu_fleet_image.console.operators.monthly_savings import Saving, Summary
from gpu_fleet_image.console.users.ledger_records import FreezeChange
from gpu_fleet_image.core.times import format_span

_BAR = "#2a6f97"
LINE = "#1b4332"
_THOUSANDS = "{x:,.0f}"
_MOST_BARS = 12  # more cannot be read; the others are summed up

PAGE = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
).from_string(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; color: #222 }
  body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
  h1 { font-size: 1.6rem; margin-bottom: 0 }
  .total { font-size: 2.4rem; font-weight: 600; margin: .5rem 0 }
  .note { color: #555; max-width: 45rem }
  /* columns of one width: the last plot of a row is as large as the others */
  .plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(28rem, 100%), 1fr)); gap: 1rem }
  figure { margin: 0 }
  svg { width: 100%; height: auto }
  .scroll { overflow-x: auto }
  table { border-collapse: collapse; width: 100%; font-size: .9rem }
  th, td { text-align: left; padding: .3rem .7rem .3rem 0; white-space: nowrap }
  tr { border-bottom: 1px solid #ddd }
  td.reason { white-space: normal; min-width: 16rem }
  .number { text-align: right }
</style>
<h1>{{ title }}</h1>
<p class="total">{{ total }} saved</p>
<p class="note">{{ note }}</p>
<div class="plots">
{% for plot in plots %}
<figure>{{ plot | safe }}{# matplotlib escapes its texts #}</figure>
{% endfor %}
</div>
<h2>Every termination and stop</h2>
<div class="scroll"><table>
<thead><tr><th>when</th><th>instance</th><th>type</th><th>pool</th><th>owner</th><th>action</th>
<th>was idle</th>
<th class="number">saved</th><th>why</th></tr></thead>
<tbody>
{% for texts, amount, reason in rows %}
<tr>{% for text in texts %}<td>{{ text }}</td>{% endfor %}
<td class="number">{{ amount }}</td><td class="reason">{{ reason }}</td></tr>
{% endfor %}
</tbody></table></div>
{% if changes %}
<h2>Budget</h2>
<table><thead><tr><th>when</th><th>what</th><th>pools</th><th>spent</th><th>by</th><th>why</th></tr></thead>
<tbody>
{% for one in changes %}
<tr><td>{{ one.at.strftime("%Y-%m-%d %H:%M") }}</td><td>{{ one.action }}</td><td>{{ one.stage }}</td>
<td>{{ "{:,.2f}".format(one.spent) }}</td><td>{{ one.by }}</td><td>{{ one.reason }}</td></tr>
{% endfor %}
</tbody></table>
{% endif %}
</html>
"""
)


def page(summary: Summary, stack: str, changes: Sequence[FreezeChange] = ()) -> str:
    """Return the HTML file.

    Args:
        changes: freezes and unfreezes of its pools.
    """
    plots = [_daily_plot(summary)] if summary.savings else []
    if summary.savings:
        plots += [_bar_plot("by pool", summary.by_pool, summary.currency)]
        plots += [_bar_plot("by owner", summary.by_owner, summary.currency)]
    return PAGE.render(
        title=f"GPU fleet {stack}: what {summary.month.name} saved",
        total=_total(summary) if summary.savings else "Nothing",
        note=_note(summary),
        plots=plots,
        rows=list(_rows(summary)),
        changes=changes,
    )


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


def _rows(summary: Summary) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield for each stop or termination its first cells, the amount, and the reason."""
    for saving in summary.savings:
        end = saving.end
        idle = "" if end.idle_s is None else format_span(timedelta(seconds=end.idle_s))
        when = f"{end.at:%Y-%m-%d %H:%M}"
        cells = (when, end.instance_id, end.instance_type, end.pool, end.owner, end.action, idle)
        yield cells, _amount(saving), end.reason


def _amount(saving: Saving) -> str:
    return "unknown" if saving.amount is None else f"{saving.amount:,.2f}"


def _daily_plot(summary: Summary) -> str:
    """Return a plot of the savings so far, by day, as SVG."""
    figure, axes = _axes("saved so far", summary.currency)
    days = range(1, summary.month.days + 1)
    values = [float(amount) for amount in summary.by_day]
    axes.plot(days, values, color=LINE, drawstyle="steps-post")
    axes.fill_between(days, values, step="post", color=LINE, alpha=0.15)
    axes.set_xlabel(f"day of {summary.month.name}")
    axes.yaxis.set_major_formatter(_THOUSANDS)
    axes.set_ylim(bottom=0)
    return _svg(figure)


def _bar_plot(title: str, amounts: Mapping[str, Decimal], currency: str) -> str:
    """Return a plot of amounts as bars, largest on top, as SVG."""
    figure, axes = _axes(title, currency)
    shown = _shortened(amounts)
    names = list(shown)[::-1]
    plain = [name.replace("$", r"\$") for name in names]  # text between two would be a formula
    bars = axes.barh(plain, [float(shown[name]) for name in names], color=_BAR)
    axes.bar_label(bars, [f"{shown[name]:,.0f}" for name in names], padding=3)
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.locator_params(axis="x", nbins=5)
    return _svg(figure)


def _shortened(amounts: Mapping[str, Decimal]) -> dict[str, Decimal]:
    items = list(amounts.items())
    rest = items[_MOST_BARS:]
    shown = dict(items[:_MOST_BARS])
    if rest:
        shown[f"{len(rest)} others"] = sum((amount for _, amount in rest), Decimal(0))
    return shown


def _axes(title: str, currency: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(f"{title}, {currency}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    """Return the figure without XML head; text stays text, so that it can be searched and read aloud."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gpu-fleet"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    _, tag, rest = text.getvalue().partition("<svg")
    return tag + rest
