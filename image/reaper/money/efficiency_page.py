"""A day's efficiency as a mail, and as one HTML file that needs no plotting library to make."""

import html
from collections.abc import Iterator, Sequence
from decimal import Decimal
from string import Template

from image.reaper.money.efficiency import Efficiency, PoolUse, Use

BUSY, UNKNOWN, IDLE, SAVED = "#1b4332", "#adb5bd", "#e9c46a", "#2a6f97"
WIDTH, HEIGHT, GAP, LABEL = 720, 22, 10, 130
NO_SAMPLES = "Samples per {currency}: left out, no trainer publishes TrainingSamples."

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


def page(found: Efficiency) -> str:
    """The whole file."""
    return PAGE.substitute(
        title=html.escape(f"GPU fleet {found.stack}: {found.name}"),
        total=html.escape(headline(found)),
        note=html.escape(" ".join(_notes(found))),
        bars=_bars([one for one in found.pools if one.gpu_hours or one.saved]),
        pools=_table(
            ("pool", "GPU hours", "busy", "unknown", "saved", f"cost, {found.currency}"),
            [
                (one.pool, *map(_number, (one.gpu_hours, one.busy, one.unknown, one.saved, one.cost)))
                for one in found.pools
            ],
        ),
        idle=_table(
            ("instance", "pool", "owner", "type", "busy", f"left idle, {found.currency}"),
            [_idle_cells(one) for one in found.idle],
        ),
    )


def headline(found: Efficiency) -> str:
    """The day in one line."""
    at_least = "at least " if found.unpriced else ""
    return (
        f"{_number(found.total('busy'))} of {_number(found.total('gpu_hours'))} GPU hours busy, {at_least}"
        f"{_number(found.total('cost'))} {found.currency}"
    )


def mail(found: Efficiency, where: str) -> str:
    """The day as text.

    Args:
        where: the page's place in the bucket.
    """
    lines = [headline(found), *_notes(found), "", "Most money left idle:"]
    lines += [
        f"- {_number(one.idle_cost)} {found.currency}: {one.instance_id} ({one.instance.type}, pool "
        f"{one.instance.pool}, {one.instance.owner or 'nobody'}), busy {_percent(one.busy)}"
        for one in found.idle
    ]
    if not found.idle:
        lines.append("- none")
    return "\n".join([*lines, "", f"With a picture: {where}"])


def _notes(found: Efficiency) -> Iterator[str]:
    if found.unpriced:
        yield (
            f"{found.unpriced} instances have no price and count nothing, so costs are at least what they "
            "say; name their types in budget.assume."
        )
    unknown = found.total("unknown")
    if unknown:
        yield f"Of {_number(unknown)} GPU hours no agent said whether they were busy."
    yield (
        f"The reaper saved {_number(found.total('saved'))} GPU hours, {_number(found.saved_cost)} "
        f"{found.currency}."
    )
    rate = found.samples_per_money
    if rate is None:
        yield NO_SAMPLES.format(currency=found.currency)
    else:
        yield f"{_number(rate)} samples per {found.currency}."


def _idle_cells(one: Use) -> tuple[str, ...]:
    instance = one.instance
    owner = instance.owner or "nobody"
    return one.instance_id, instance.pool, owner, instance.type, _percent(one.busy), _number(one.idle_cost)


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
    """GPU hours of each pool as a bar: busy, unknown, idle, saved."""
    if not pools:
        return ""
    longest = max(one.gpu_hours + one.saved for one in pools)
    drawn = "".join(_bar(index, one, longest) for index, one in enumerate(pools))
    legend = ", ".join(
        f'<span style="color:{color}">&#9632;</span> {name}'
        for name, color in (("busy", BUSY), ("unknown", UNKNOWN), ("idle", IDLE), ("saved", SAVED))
    )
    height = len(pools) * (HEIGHT + GAP)
    box = f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" aria-label="GPU hours by pool">'
    return f"{box}{drawn}</svg><p>{legend}</p>"


def _bar(index: int, one: PoolUse, longest: Decimal) -> str:
    top = index * (HEIGHT + GAP)
    idle = one.gpu_hours - one.busy - one.unknown
    text = f'<text x="0" y="{top + HEIGHT - 6}" font-size="14">{html.escape(one.pool)}</text>'
    left = Decimal(LABEL)
    for amount, color in ((one.busy, BUSY), (one.unknown, UNKNOWN), (idle, IDLE), (one.saved, SAVED)):
        width = amount * (WIDTH - LABEL) / longest
        text += f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" fill="{color}"/>'
        left += width
    return text


def _number(amount: Decimal) -> str:
    return f"{amount:,.2f}"


def _percent(share: Decimal | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"
