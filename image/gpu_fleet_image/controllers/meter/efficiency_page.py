"""A day's efficiency as a mail, and as one HTML file that needs no plotting library."""

import html
from collections.abc import Iterator, Sequence
from decimal import Decimal
from string import Template

from gpu_fleet_image.controllers.meter.efficiency import Efficiency, PoolUse, Use

_COLORS = ("#1b4332", "#adb5bd", "#e9c46a", "#2a6f97")
WIDTH, HEIGHT, _GAP, LABEL = 720, 22, 10, 130
HOURS = ("rented", "computing", "idle", "unknown", "saved")

PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem }
  body { margin: 2rem auto; padding: 0 1rem }
  h1 { font-size: 1.6rem; margin-bottom: 0 }
  .total { font-size: 2rem; font-weight: 600; margin: .5rem 0 }
  .note { color: #555 }
  .scroll { overflow-x: auto }
  svg { max-width: 100%; height: auto }
  table { border-collapse: collapse; font-size: .9rem }
  th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #ddd }
  .number { text-align: right }
</style>
<h1>$title</h1>
<p class="total">$total</p>
<p class="note">$note</p>
$bars
<h2>By pool</h2>
<div class="scroll">$pools</div>
<h2>Most money left idle</h2>
<div class="scroll">$idle</div>
</html>
""")


def page(day: Efficiency) -> str:
    """Return the HTML file."""
    return PAGE.substitute(
        title=html.escape(f"GPU fleet {day.stack}: {day.name}"),
        total=html.escape(headline(day)),
        note=html.escape(" ".join(_notes(day))),
        bars=_bars([pool for pool in day.pools if pool.rented or pool.saved]),
        pools=_table(
            ("pool", *(f"GPU hours {name}" for name in HOURS), f"cost, {day.currency}"),
            [
                (pool.pool, *(_number(getattr(pool, name)) for name in HOURS), _number(pool.cost))
                for pool in day.pools
            ],
        ),
        idle=_table(
            ("instance", "pool", "owner", "type", "computing", f"left idle, {day.currency}"),
            [_idle_cells(use) for use in day.idle],
        ),
    )


def headline(day: Efficiency) -> str:
    """Return the day in one line."""
    at_least = "at least " if day.unpriced else ""
    rented, computing, idle = (_number(day.total(name)) for name in HOURS[:3])
    return (
        f"{rented} GPU hours rented, {computing} computing, {idle} idle; {at_least}"
        f"{_number(day.total('cost'))} {day.currency}"
    )


def mail(day: Efficiency, where: str) -> str:
    """Return the day as text.

    Args:
        where: the page's URI in the bucket.
    """
    lines = [headline(day), *_notes(day), "", "Most money left idle:"]
    lines += [
        f"- {_number(use.idle_cost)} {day.currency}: {use.instance_id} ({use.instance.type}, pool "
        f"{use.instance.pool}, {use.instance.owner or 'nobody'}), computing {_percent(use.computing)}"
        for use in day.idle
    ]
    if not day.idle:
        lines.append("- none")
    return "\n".join([*lines, "", f"With a picture: {where}"])


def _notes(day: Efficiency) -> Iterator[str]:
    if day.unpriced:
        yield (
            f"{day.unpriced} instances have no price and count nothing, so true costs may be higher "
            "than shown; add their types to budget.assume."
        )
    unknown = day.total("unknown")
    if unknown:
        yield f"For {_number(unknown)} GPU hours there is no report whether GPUs computed."
    if unused := day.total("unused"):
        yield f"{_number(unused)} reserved GPU hours were paid for but had no instance: they count as idle."
    yield (
        f"The reaper saved {_number(day.total('saved'))} GPU hours, {_number(day.saved_cost)} {day.currency}."
    )


def _idle_cells(use: Use) -> tuple[str, ...]:
    instance = use.instance
    owner = instance.owner or "nobody"
    shown = _percent(use.computing), _number(use.idle_cost)
    return use.instance_id, instance.pool, owner, instance.type, *shown


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(_cell(text) for text in row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _cell(text: str) -> str:
    align = ' class="number"' if text[:1].isdigit() else ""
    return f"<td{align}>{html.escape(text)}</td>"


def _bars(pools: Sequence[PoolUse]) -> str:
    """Return the GPU hours of each pool as a bar: computing, unknown, idle, saved."""
    if not pools:
        return ""
    longest = max(pool.rented + pool.saved for pool in pools)
    drawn = "".join(_bar(index, pool, longest) for index, pool in enumerate(pools))
    legend = ", ".join(
        f'<span style="color:{color}">&#9632;</span> {name}'
        for name, color in zip(("computing", "unknown", "idle", "saved"), _COLORS, strict=True)
    )
    height = len(pools) * (HEIGHT + _GAP)
    box = f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" aria-label="GPU hours by pool">'
    return f"{box}{drawn}</svg><p>{legend}</p>"


def _bar(index: int, pool: PoolUse, longest: Decimal) -> str:
    top = index * (HEIGHT + _GAP)
    text = f'<text x="0" y="{top + HEIGHT - 6}" font-size="14">{html.escape(pool.pool)}</text>'
    left = Decimal(LABEL)
    amounts = (pool.computing, pool.unknown, pool.idle, pool.saved)
    for amount, color in zip(amounts, _COLORS, strict=True):
        width = amount * (WIDTH - LABEL) / longest
        text += f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" fill="{color}"/>'
        left += width
    return text


def _number(amount: Decimal) -> str:
    return f"{amount:,.2f}"


def _percent(share: Decimal | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"
