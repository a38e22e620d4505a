"""Chargeback of a month: the meter's days by owner, team, run, pool or instance, to the cent. Pure.

Costs without an instance (disks of stopped ones, unused reservations, what all pools share) have rows of
their own, so that the rows add up to the meter. Cents are assigned by the largest remainder.

The meter knows owners. ``Attribution`` has what it does not know: teams, when runs had which instance, and
the time that the queue's jobs had on it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal

from gpu_fleet_image.controllers.meter.efficiency import UNREPORTED, Reported
from gpu_fleet_image.controllers.meter.meter import DAY, SHARED, SMALLEST
from gpu_fleet_image.controllers.meter.meter_state import SECONDS_PER_HOUR, Day, DayShare, MeterReading
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.holds import account_named
from gpu_fleet_image.core.job_use import DayUse, Used, account_of
from gpu_fleet_image.core.roster import NO_TEAM

CENT = Decimal("0.01")
_EARLIER = "(before the days on record)"
NOBODY = "nobody"
_MOST_SAMPLES = 1 << 53  # exact in JSON


@dataclass(frozen=True)
class RunSpan:
    """Time in which a run had an instance.

    Attributes:
        samples: that its directory held at the end; None if the run does not say.
        samples_before: those of them that were there at the begin.
        tokens_per_sample: None where samples have no tokens.
    """

    name: str
    begin: datetime
    end: datetime
    samples: int | None = None
    samples_before: int = 0
    tokens_per_sample: float | None = None


@dataclass(frozen=True)
class Attribution:
    """Facts that the meter does not record.

    Attributes:
        teams: owner -> team.
        runs: instance id -> its runs.
        jobs: day -> instance id -> job of the queue -> seconds; a day without a record is missing.
        queued: pools of the queue.
        unseen: day -> seconds in which nobody saw which jobs ran.
    """

    teams: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, Sequence[RunSpan]] = field(default_factory=dict)
    jobs: Mapping[str, Used] = field(default_factory=dict)
    queued: Container[str] = ()
    unseen: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunWork:
    """Samples and tokens that a run trained on; None where that is unknown."""

    samples: int | None = None
    tokens: int | None = None

    def columns(self, cost: Decimal) -> Mapping[str, int | str | None]:
        """Return both, and how many a unit of the currency bought."""
        counts = {"samples": self.samples, "tokens": self.tokens}
        rates = {
            f"{name}_per_unit": f"{count / cost:.1f}" if count is not None and cost > 0 else None
            for name, count in counts.items()
        }
        return counts | rates


def work_of(runs: Mapping[str, Sequence[RunSpan]], since: datetime) -> dict[str, RunWork]:
    """Return run -> its work; unknown for a run that began before, whose cost is of other months too.

    The instances of a run report the same samples, or one goes on where another stopped.
    """
    by_run: dict[str, list[RunSpan]] = defaultdict(list)
    for span in (span for spans in runs.values() for span in spans):
        by_run[span.name].append(span)
    return {
        name: _work(spans) for name, spans in by_run.items() if min(span.begin for span in spans) >= since
    }


def _work(spans: Iterable[RunSpan]) -> RunWork:
    """Return a run's work; users write the numbers, and one that cannot be is none."""
    known = [(span.samples, span) for span in spans if 0 <= (span.samples or -1) < _MOST_SAMPLES]
    if not known:
        return RunWork()
    samples = max(0, max(count or 0 for count, _ in known) - min(span.samples_before for _, span in known))
    each = max(span.tokens_per_sample or 0 for _, span in known)
    return RunWork(samples, round(samples * each) if 0 < each < _MOST_SAMPLES else None)


Parts = Sequence[tuple[str, Decimal]]  # name of a row, its share of an instance's day; the shares add up to 1


def _runs(day: Day, key: str, share: DayShare, attribution: Attribution) -> Parts:
    """Return the runs of an instance's day by their seconds, and last the time without a run.

    Runs that shared the instance share its day. Jobs of the queue count by the queue's own record.
    """
    had, left = of_jobs(day, key, share, attribution.jobs)
    if not had:
        had, left = _of_runs(day, share, attribution.runs.get(key, ()))
    owner = share.instance.owner
    if owner or not left:
        return [*had, (f"({owner}, no run)", left)] if left else had
    return [*had, *_unowned(day, share, left, attribution, "(nobody, no run)")]


def _of_runs(day: Day, share: DayShare, runs: Iterable[RunSpan]) -> tuple[Parts, Decimal]:
    """Return the parts of an instance's day that runs had, and what they left of it."""
    seconds: Counter[str] = Counter()
    for run in runs:
        inside = min(run.end, day.date + DAY) - max(run.begin, day.date)
        seconds[run.name] += max(0, int(inside.total_seconds()))
    whole = max(share.seconds, seconds.total())
    parts = [(name, Decimal(spent) / whole) for name, spent in seconds.items() if spent]
    return parts, Decimal(whole - seconds.total()) / whole if whole else Decimal(1)


def of_jobs(day: Day, key: str, share: DayShare, jobs: Mapping[str, Used]) -> tuple[Parts, Decimal]:
    """Return the parts of an instance's day that jobs of the queue had, and what they left of it."""
    used = jobs.get(day.name, {}).get(key, {})
    seconds = {name: Decimal(str(spent)) for name, spent in used.items() if spent}
    counted = sum(seconds.values(), Decimal(0))
    if not counted:
        return (), Decimal(1)
    whole = max(counted, Decimal(share.seconds))
    return [(name, spent / whole) for name, spent in seconds.items()], (whole - counted) / whole


def owners(day: Day, key: str, share: DayShare, jobs: Mapping[str, Used]) -> Parts:
    """Return the parts of an instance's day by account; its owner, who may be empty, has what jobs left."""
    had, left = of_jobs(day, key, share, jobs)
    parts: dict[str, Decimal] = defaultdict(Decimal)
    for name, part in had:
        parts[account_of(name)] += part
    if left:
        parts[share.instance.owner] += left
    return list(parts.items())


def _unowned(
    day: Day, share: DayShare, part: Decimal, attribution: Attribution, nobody: str = NOBODY
) -> Parts:
    """Return the rows of a part that neither an owner nor a job had; unseen time is unknown, not idle."""
    pool = share.instance.pool
    if pool not in attribution.queued:
        return [(nobody, part)]
    unseen = Decimal(str(attribution.unseen.get(day.name, 0))) / max(share.seconds, 1)
    unknown = min(part, unseen) if day.name in attribution.jobs else part
    rows = [(f"(pool {pool}, no job)", part - unknown), (f"(pool {pool}, jobs unknown)", unknown)]
    return [row for row in rows if row[1]]


def _owners(day: Day, key: str, share: DayShare, attribution: Attribution) -> Parts:
    return _named(day, key, share, attribution, lambda owner: owner)


def _teams(day: Day, key: str, share: DayShare, attribution: Attribution) -> Parts:
    """Return the teams of the accounts that had the instance; their parts may have one name."""
    teams = attribution.teams
    return _named(
        day, key, share, attribution, lambda owner: teams.get(account_named(owner)) or f"({owner}, no team)"
    )


def _named(
    day: Day, key: str, share: DayShare, attribution: Attribution, name: Callable[[str], str]
) -> Parts:
    parts: list[tuple[str, Decimal]] = []
    for owner, part in owners(day, key, share, attribution.jobs):
        parts += [(name(owner), part)] if owner else _unowned(day, share, part, attribution)
    return parts


BY: dict[str, Callable[[Day, str, DayShare, Attribution], Parts]] = {
    "owner": _owners,
    "team": _teams,
    "run": _runs,
    "pool": lambda _, __, share, ___: [(share.instance.pool, Decimal(1))],
    "instance": lambda _, key, __, ___: [(key, Decimal(1))],
}


@dataclass(frozen=True)
class Charge:
    """One row: a name's share of a month.

    Attributes:
        rented, computing, idle, unknown: GPU hours. The rented ones are the sum of those in which GPUs
            computed, those in which they did not, and those without a report.
    """

    name: str
    rented: Decimal = Decimal(0)
    computing: Decimal = Decimal(0)
    idle: Decimal = Decimal(0)
    unknown: Decimal = Decimal(0)
    cost: Decimal = Decimal(0)

    def __add__(self, other: "Charge") -> "Charge":
        sums = (getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[1:])
        return Charge(self.name, *sums)


def team_costs(day: Day, teams: Mapping[str, str], use: DayUse | None = None) -> dict[str, Decimal]:
    """Return team, or ``NO_TEAM``, -> cost of its members' instances and jobs of a day, not rounded.

    Args:
        teams: account -> team.
        use: the time of the queue's jobs; None for no record.
    """
    jobs = {day.name: use.used if use else {}}
    costs: dict[str, Decimal] = defaultdict(Decimal)
    for key, share in day.instances.items():
        for owner, part in owners(day, key, share, jobs):
            costs[teams.get(account_named(owner), NO_TEAM)] += share.cost * part
    return dict(costs)


def charges(
    days: Iterable[Day],
    computing: Mapping[str, Mapping[str, Reported]],
    by: str,
    gpus: Mapping[str, int],
    month_cost: Decimal | None = None,
    *,
    attribution: Attribution = Attribution(),
) -> list[Charge]:
    """Return a row for each name, the most expensive first, in whole cents.

    Args:
        computing: day -> instance id -> the time in which its GPUs computed.
        by: a key of ``BY``.
        gpus: pool -> GPUs of one of its instances, for reserved ones that did not run.
        month_cost: the meter's cost of the whole month; None for the sum of the days.
        attribution: teams for ``team``, runs for ``run``.
    """
    rows: dict[str, Charge] = {}
    for day in days:
        for row in _of_day(day, computing.get(day.name, {}), by, gpus, attribution):
            rows[row.name] = rows.get(row.name, Charge(row.name)) + row
    counted = sum((row.cost for row in rows.values()), Decimal(0))
    if month_cost is not None and month_cost != counted:
        rows[_EARLIER] = Charge(_EARLIER, cost=month_cost - counted)
    return _in_cents(sorted(rows.values(), key=lambda row: (-row.cost, row.name)))


def _of_day(
    day: Day, computing: Mapping[str, Reported], by: str, gpus: Mapping[str, int], attribution: Attribution
) -> Iterable[Charge]:
    rest: dict[str, Decimal] = defaultdict(Decimal, day.costs)
    for key, share in day.instances.items():
        rest[share.instance.pool] -= share.cost
        gpu_time = computing.get(key, UNREPORTED)
        yield from _of_instance(share, gpu_time, BY[by](day, key, share, attribution))
    for pool, held in day.unused.items():
        for reservation, unused in held.items():
            rest[pool] -= unused.cost
            hours = Decimal(unused.seconds * gpus.get(pool, 0)) / SECONDS_PER_HOUR
            which = reservation or "reservation"
            name = pool if by == "pool" else f"(pool {pool}, {which} unused)"
            yield Charge(name, rented=hours, idle=hours, cost=unused.cost)
    for pool, cost in rest.items():
        name = "(shared)" if pool == SHARED else pool if by == "pool" else f"(pool {pool}, no instance)"
        if cost:
            yield Charge(name, cost=cost)


def _of_instance(share: DayShare, computing: Reported, parts: Parts) -> Iterator[Charge]:
    """Yield the rows of an instance's day."""
    for name, part, cost in divided(share.cost, parts):
        hours = share.gpu_hours * part
        if hours or cost:
            yield Charge(name, hours, *computing.split(hours), cost)


def divided(cost: Decimal, parts: Parts) -> Iterator[tuple[str, Decimal, Decimal]]:
    """Yield name, part and its cost; the last one has what rounding leaves."""
    left = cost
    for index, (name, part) in enumerate(parts, 1):
        own = left if index == len(parts) else (cost * part).quantize(SMALLEST)
        left -= own
        yield name, part, own


def _in_cents(rows: Sequence[Charge]) -> list[Charge]:
    """Round costs so that they add up to the rounded sum."""
    floors = [row.cost.quantize(CENT, ROUND_FLOOR) for row in rows]
    total = sum((row.cost for row in rows), Decimal(0)).quantize(CENT)
    left = int((total - sum(floors, Decimal(0))) / CENT)
    by_remainder = sorted(range(len(rows)), key=lambda index: floors[index] - rows[index].cost)
    for index in by_remainder[:left]:
        floors[index] += CENT
    hours = [each.name for each in fields(Charge)[1:-1]]
    return [
        replace(row, cost=floor, **{name: getattr(row, name).quantize(CENT) for name in hours})
        for row, floor in zip(rows, floors, strict=True)
    ]


def as_text(
    rows: Sequence[Charge], by: str, currency: str, form: str, work: Mapping[str, RunWork] | None = None
) -> str:
    """Return the rows as ``csv`` or ``json``; amounts as decimal text.

    Args:
        work: name of a row -> what was trained on for its cost; None for no such columns.
    """
    columns = [each.name for each in fields(Charge)[1:]]
    named: list[dict[str, object]] = [
        {by: row.name, **{name: str(getattr(row, name)) for name in columns}, "currency": currency}
        for row in rows
    ]
    if work is not None:
        named = [
            {**each, **work.get(row.name, RunWork()).columns(row.cost)}
            for each, row in zip(named, rows, strict=True)
        ]
    if form == "json":
        return json.dumps(named, indent=1) + "\n"
    return csv_text(
        [by, *columns, "currency", *(RunWork().columns(Decimal(0)) if work is not None else ())], named
    )


def of_month(reading: MeterReading | None, name: str) -> tuple[list[Day], Decimal | None]:
    """Return the present day and the month's cost, if the meter is in that month."""
    if reading is None or f"{reading.until:%Y-%m}" != name:
        return [], None
    return [reading.day], reading.month_cost
