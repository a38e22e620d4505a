"""A day's efficiency as a mail, and as one HTML file that needs no plotting library."""

import html
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal

from gpu_fleet_image.controllers.meter.efficiency import Efficiency, PoolUse, Use
from gpu_fleet_image.controllers.meter.meter import SHARED
from gpu_fleet_image.core import report_page
from gpu_fleet_image.core.counting import counted, left_uncounted

_COLORS = {"computing": "#1b4332", "unknown": "#8a949e", "idle": "#e9c46a", "saved": "#2a6f97"}
# A bar below the name of its pool, in a drawing that a narrow screen shrinks to two thirds.
WIDTH, LABEL, HEIGHT = 500, 20, 18
_ROW, _AXIS = LABEL + HEIGHT + 8, 22
HOURS = ("rented", "computing", "idle", "unknown", "saved")
_SMS = "SM activity"


def page(day: Efficiency) -> str:
    """Return the HTML file."""
    cost = f"cost, {day.currency}"
    pools = report_page.table(
        ("pool", *(f"GPU hours {name}" for name in HOURS), _SMS, cost),
        [
            (
                "(shared)" if pool.pool == SHARED else pool.pool,
                *(_number(getattr(pool, name)) for name in HOURS),
                _percent(pool.sm_active),
                _number(pool.cost),
            )
            for pool in day.pools
        ],
        numbers=[*(f"GPU hours {name}" for name in HOURS), _SMS, cost],
    )
    left_idle = f"left idle, {day.currency}"
    idle = report_page.table(
        ("instance", "pool", "owner", "type", "computing", left_idle),
        [_idle_cells(use) for use in day.idle],
        numbers=("computing", left_idle),
        ids=("instance", "type"),
    )
    bars = _bars([pool for pool in day.pools if pool.rented or pool.saved])
    return report_page.page(
        f"GPU fleet {day.stack}: {day.name}",
        headline(day),
        " ".join(_notes(day)),
        f"{bars}\n<h2>By pool</h2>\n{pools}\n<h2>Most money left idle</h2>\n{idle}",
    )


def headline(day: Efficiency) -> str:
    """Return the day in one line."""
    at_least = "at least " if day.unpriced or day.lacks else ""
    rented, computing, idle = (_number(day.total(name)) for name in HOURS[:3])
    return (
        f"{rented} GPU hours rented, {computing} computing, {idle} idle; {at_least}"
        f"{_number(day.total('cost'))} {day.currency}"
    )


def mail(day: Efficiency, where: str) -> str:
    """Return the day as text."""
    lines = [headline(day), *_notes(day), "", "Most money left idle:"]
    lines += [
        f"- {_number(use.idle_cost)} {day.currency}: {use.instance_id} ({use.instance.type}, pool "
        f"{use.instance.pool}, {use.instance.owner or 'nobody'}), computing {_percent(use.computing.share)}"
        for use in day.idle
    ]
    if not day.idle:
        lines.append("- none")
    return "\n".join([*lines, "", f"With a picture: {where}"])


def _notes(day: Efficiency) -> Iterator[str]:
    if day.unpriced:
        yield (
            f"{counted(day.unpriced, 'instance')} without a price: not counted, so true costs may be higher "
            "than shown; add the type to budget.assume."
        )
    if day.lacks:
        yield f"Costs are {left_uncounted(day.lacks)}."
    unknown = day.total("unknown")
    if unknown:
        yield f"For {_number(unknown)} GPU hours there is no report whether GPUs computed."
    if unused := day.total("unused"):
        yield f"{_number(unused)} reserved GPU hours were paid for but had no instance: they count as idle."
    if day.sm_active is not None:
        yield f"The GPUs that report it used {_percent(day.sm_active)} of their multiprocessors."
    yield (
        f"The reaper saved {_number(day.total('saved'))} GPU hours, {_number(day.saved_cost)} {day.currency}."
    )


def _idle_cells(use: Use) -> tuple[str, ...]:
    instance = use.instance
    owner = instance.owner or "nobody"
    shown = _percent(use.computing.share), _number(use.idle_cost)
    return use.instance_id, instance.pool, owner, instance.type, *shown


def _bars(pools: Sequence[PoolUse]) -> str:
    """Return the GPU hours of each pool as a bar on one axis: computing, unknown, idle, saved."""
    if not pools:
        return ""
    step = _tick(max(pool.rented + pool.saved for pool in pools))
    longest = step * math.ceil(max(pool.rented + pool.saved for pool in pools) / step)
    drawn = "".join(_bar(index * _ROW, pool, longest) for index, pool in enumerate(pools))
    axis = "".join(
        _axis_tick(value, value * WIDTH / longest, len(pools) * _ROW)
        for value in (step * index for index in range(int(longest / step) + 1))
    )
    legend = " ".join(
        f'<span class="id"><span style="color:{color}">&#9632;</span> {name}</span>'
        for name, color in _COLORS.items()
    )
    height = len(pools) * _ROW + _AXIS
    view = f'viewBox="-12 0 {WIDTH + 36} {height}" font-size="13"'
    box = f'<svg {view} role="img" aria-label="GPU hours by pool">{axis}{drawn}</svg>'
    return f"<figure>{box}<figcaption>GPU hours: {legend}</figcaption></figure>"


def _tick(longest: Decimal) -> Decimal:
    """Return the distance of an axis's ticks: 1, 2 or 5 times a power of ten, with four to nine of them."""
    power = Decimal(10) ** (longest / 4).adjusted()
    return max(factor * power for factor in (1, 2, 5) if factor * power <= longest / 4)


def _axis_tick(value: Decimal, x: Decimal, top: int) -> str:
    line = f'<path d="M{x:.1f} 0V{top + 4}" stroke="#222" stroke-opacity=".25"/>'
    return f'{line}<text x="{x:.1f}" y="{top + 18}" text-anchor="middle">{value.normalize():,f}</text>'


def _bar(top: int, pool: PoolUse, longest: Decimal) -> str:
    name = html.escape(pool.pool)
    drawn, left = f'<text x="0" y="{top + LABEL - 5}">{name}</text>', Decimal(0)
    for word, color in _COLORS.items():
        amount = getattr(pool, word)
        width = amount * WIDTH / longest
        title = f"<title>{name}: {_number(amount)} GPU hours {word}</title>"
        place = f'x="{left:.1f}" y="{top + LABEL}" width="{width:.1f}" height="{HEIGHT}"'
        drawn += f'<rect {place} fill="{color}">{title}</rect>'
        left += width
    return drawn


def _number(amount: Decimal) -> str:
    return f"{amount:,.2f}"


def _percent(share: Decimal | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"
