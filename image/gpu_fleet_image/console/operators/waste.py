"""The idle share of some weeks' GPU hours, by pool and owner: rows, a line for users, a page. Pure."""

import html
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal

from gpu_fleet_image.controllers.meter.efficiency import UNREPORTED, Reported
from gpu_fleet_image.controllers.meter.meter_state import Day
from gpu_fleet_image.core import report_page
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.shared_options import JSON

WEEK = 7
NO_INSTANCE = "(no instance)"  # reserved hours in which nothing ran
NOBODY = "nobody"
HOURS = ("rented", "computing", "idle", "unknown")
SHARES = ("idle_percent", "idle_percent_first_week", "idle_percent_last_week")
COLUMNS = ("pool", "owner", *HOURS, *SHARES, "idle_cost", "currency")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 220, 54, 30, 10


@dataclass
class Hours:
    """GPU hours of a pool's owner, or of all, on one day or several."""

    rented: Decimal = Decimal(0)
    computing: Decimal = Decimal(0)
    unknown: Decimal = Decimal(0)
    idle_cost: Decimal = Decimal(0)

    @property
    def idle(self) -> Decimal:
        """Hours in which no GPU computed, as far as that is reported."""
        return self.rented - self.computing - self.unknown

    @property
    def idle_percent(self) -> Decimal | None:
        """Idle part of the hours that are reported; None if none is."""
        known = self.rented - self.unknown
        return 100 * self.idle / known if known else None

    def add(self, other: "Hours") -> None:
        """Add others' hours."""
        self.rented += other.rented
        self.computing += other.computing
        self.unknown += other.unknown
        self.idle_cost += other.idle_cost


Key = tuple[str, str]  # pool, owner


@dataclass(frozen=True)
class Waste:
    """Some days' GPU hours.

    Attributes:
        days: name of each day that is on record -> its hours by pool and owner, the oldest first.
    """

    stack: str
    currency: str
    days: Mapping[str, Mapping[Key, Hours]] = field(default_factory=dict)

    @property
    def keys(self) -> list[Key]:
        """Every pool and owner once, those with the highest idle cost first."""
        keys = {key for day in self.days.values() for key in day}
        return sorted(keys, key=lambda key: (-self.of([key]).idle_cost, -self.of([key]).idle, key))

    def of(self, keys: Iterable[Key] | None = None, days: Sequence[str] | None = None) -> Hours:
        """Return the sum of some keys, or of all, on some days, or on all."""
        wanted, total = None if keys is None else set(keys), Hours()
        for name in self.days if days is None else days:
            for key, hours in self.days[name].items():
                if wanted is None or key in wanted:
                    total.add(hours)
        return total

    def shares(self, keys: Iterable[Key] | None = None) -> tuple[Decimal | None, ...]:
        """Return the idle percentage of all days, of the first seven and of the last; the order of SHARES."""
        names, chosen = list(self.days), None if keys is None else list(keys)
        return tuple(self.of(chosen, part).idle_percent for part in (names, names[:WEEK], names[-WEEK:]))


def sum_up(
    days: Iterable[Day],
    computing: Mapping[str, Mapping[str, Reported]],
    gpus: Mapping[str, int],
    *,
    stack: str,
    currency: str,
) -> Waste:
    """Return the days' hours.

    Args:
        computing: day -> instance id -> the time in which its GPUs computed.
        gpus: pool -> GPUs of one of its instances, for reserved ones that did not run.
    """
    named = {day.name: dict(_of_day(day, computing.get(day.name, {}), gpus)) for day in days}
    return Waste(stack, currency, named)


def _of_day(
    day: Day, computing: Mapping[str, Reported], gpus: Mapping[str, int]
) -> Iterable[tuple[Key, Hours]]:
    hours: dict[Key, Hours] = defaultdict(Hours)
    for instance, share in day.instances.items():
        gpu_time = computing.get(instance, UNREPORTED)
        worked, _, unknown = gpu_time.split(share.gpu_hours)
        own = Hours(share.gpu_hours, worked, unknown, gpu_time.split(share.cost)[1])
        hours[share.instance.pool, share.instance.owner or NOBODY].add(own)
    for pool, held in day.unused.items():
        if unused := day.unused_gpu_hours(pool, gpus):
            cost = sum((each.cost for each in held.values()), Decimal(0))
            hours[pool, NO_INSTANCE].add(Hours(unused, idle_cost=cost))
    return hours.items()


def line(waste: Waste) -> str:
    """Return the fleet's waste in one line."""
    whole, first, last = waste.shares()
    said = f"{waste.stack}: {waste.of().rented:,.0f} GPU hours in {counted(len(waste.days), 'day')}"
    unknown = waste.of().unknown
    if whole is None:
        return f"{said}, and no report whether GPUs computed"
    trend = f", {_percent(first)} in the first week and {_percent(last)} in the last"
    idle_cost = f"{waste.of().idle_cost:,.2f} {waste.currency}"
    of = f"{unknown:,.0f} of them unknown, {_percent(whole)} of the others" if unknown else _percent(whole)
    return f"{said}, {of} idle ({idle_cost}){trend if len(waste.days) > WEEK else ''}"


def rows(waste: Waste) -> Iterator[dict[str, str | None]]:
    """Yield a row for each pool and owner, with the keys of ``COLUMNS``."""
    for pool, owner in waste.keys:
        hours = waste.of([(pool, owner)])
        texts = {name: f"{getattr(hours, name):.2f}" for name in HOURS}
        shares = (None if each is None else f"{each:.1f}" for each in waste.shares([(pool, owner)]))
        costs = {"idle_cost": f"{hours.idle_cost:.2f}", "currency": waste.currency}
        yield {"pool": pool, "owner": owner, **texts, **dict(zip(SHARES, shares, strict=True)), **costs}


def as_text(waste: Waste, form: str) -> str:
    """Return the rows as ``csv`` or ``json``."""
    listed = list(rows(waste))
    if form != JSON:
        return csv_text(COLUMNS, listed)
    document = {"stack": waste.stack, "days": list(waste.days), "rows": listed}
    return json.dumps(document, indent=1) + "\n"


def page(waste: Waste, missing: Sequence[str]) -> str:
    """Return the HTML file: the fleet's idle share by day as a picture, and the rows as a table."""
    heads = [name.replace("_percent", ", %").replace("_", " ") for name in COLUMNS[:-2]]
    heads.append(f"idle cost, {waste.currency}")
    cells = [[_shown(name, row[name]) for name in COLUMNS[:-1]] for row in rows(waste)]
    note = "In idle hours no kernel ran. Hours without a report are left out of the percentages."
    if missing:
        note += f" No record of {', '.join(missing)}."
    title = f"GPU fleet {waste.stack}: idle GPU hours"
    table = report_page.table(heads, cells, numbers=heads[2:], ids=heads[:1])
    return report_page.page(
        title, line(waste), note, f"{_picture(waste)}\n<h2>By pool and owner</h2>\n{table}"
    )


def _shown(name: str, text: str | None) -> str:
    if text is None:
        return "unknown"
    return text if name in COLUMNS[:2] else f"{Decimal(text):,}"


def _picture(waste: Waste) -> str:
    """Return the idle share of each day as a line, 0 to 100 %; a day without record or report is a gap."""
    first, last = (date.fromisoformat(name) for name in (min(waste.days), max(waste.days)))
    names = [str(first + timedelta(days=after)) for after in range((last - first).days + 1)]
    step = (WIDTH - LEFT - 10) / max(1, len(names) - 1)
    path, dots, drawing = "", "", False
    for index, name in enumerate(names):
        share = waste.of(days=[name]).idle_percent if name in waste.days else None
        if share is None:
            drawing = False
            continue
        x, y = LEFT + index * step, _height(share)
        path += f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}"
        drawing = True
        title = f"<title>{html.escape(name)}: {_percent(share)} idle</title>"
        dots += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#2a6f97">{title}</circle>'
    drawn = f'<path d="{path}" fill="none" stroke="#2a6f97" stroke-width="2"/>' if path else ""
    box = f'viewBox="0 0 {WIDTH + 10} {HEIGHT}" font-size="13" role="img" aria-label="idle share by day"'
    caption = "<figcaption>idle, % of the reported GPU hours of a day</figcaption>"
    return f"<figure><svg {box}>{_axes(names[0], names[-1])}{drawn}{dots}</svg>{caption}</figure>"


def _axes(first: str, last: str) -> str:
    """Return lines at 0, 50 and 100 %, and the first and the last day."""
    marks = ""
    for share in (0, 50, 100):
        y = _height(Decimal(share))
        marks += f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="#222" stroke-opacity=".2"/>'
        marks += f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share} %</text>'
    for anchor, x, name in (("start", LEFT, first), ("end", WIDTH, last)):
        marks += f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="{anchor}">{html.escape(name)}</text>'
    return marks


def _height(share: Decimal) -> float:
    low = HEIGHT - BOTTOM
    return low - float(share) / 100 * (low - TOP)


def _percent(share: Decimal | None) -> str:
    return "unknown" if share is None else f"{share:.0f} %"
