"""Costs of the stack this month, counted by the hour of each instance. Pure.

The meter has a time and advances to that of the next sweep, however late. Each instance counts from when it
was last seen running, or from a later launch. It counts until now, or until the cloud's time of its stop, or
at most until now if the cloud no longer lists it. So a missed sweep loses no money, and a repeated one counts
nothing twice. Only an instance that starts and ends within one gap of more than an hour, after which EC2
forgets it, is missed.

Hours count at the policy's prices: list prices; for spot the market's price of the sweep if the cloud gives
one, else the maximum price; without a listed price the stack owner's assumption. Time is split at midnight
UTC, so that days and months add up to the same money.

A reservation costs its price every hour until it ends: with an instance in it the instance has that cost,
without one the pool. So terminating an instance of a reservation saves nothing. Of a pool with several, the
scaling group of an instance says in which one it runs. An instance whose pool was renamed stays in its own.
"""

import calendar
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

from gpu_fleet_image.controllers.meter.meter_state import (
    SECONDS_PER_HOUR,
    Day,
    DayShare,
    MeteredInstance,
    MeterReading,
    Unused,
)
from gpu_fleet_image.core.budget_policy import BudgetPolicy, PoolPrices
from gpu_fleet_image.core.model import Instance, Inventory
from gpu_fleet_image.core.reaper_errors import CloudError

SHARED = "_shared"  # no pool's name begins like this
BILLED = frozenset({"running", "stopping"})
STOPPED = "stopped"
ONLY = "_only"  # the reservation of a pool that has one, whose id the policy does not say
SMALLEST = Decimal("1e-9")  # of a currency's unit: spans are rounded alike, so that parts add up to the whole
DAY = timedelta(days=1)


@dataclass(frozen=True)
class MeteredSpan:
    """Time span of an instance, of its disks alone, or of what all pools share.

    Attributes:
        instance_id, instance: the instance; None for disks and for what is shared.
        unused: number of reserved instances that did not run, if the span is their cost.
        reservation: theirs; empty for a pool's only one.
        saved: the instance had been stopped or terminated: the time costs nothing, but would have.
    """

    begin: datetime
    end: datetime
    per_hour: Decimal
    pool: str
    instance_id: str | None = None
    instance: MeteredInstance | None = None
    unused: int = 0
    reservation: str = ""
    saved: bool = False


@dataclass(frozen=True)
class ReservedUse:
    """Use of a reservation: instances that run in it, of those that are paid for.

    Attributes:
        reservation: its id; empty for a pool's only one.
    """

    pool: str
    reservation: str
    used: int
    paid: int


def _metered_instance(
    instance: Instance, fleet: Inventory, budget: BudgetPolicy, known: MeteredInstance | None = None
) -> MeteredInstance | None:
    """Return an instance's data for the meter; what is known if the budget does not have its pool any more.

    Args:
        known: data of the sweep before; None if it did not run then.
    """
    pool = budget.pools.get(instance.pool)
    if pool is None:
        return known
    price = _price(instance, budget)
    gpus = pool.gpus.get(instance.type, 0)
    per_hour = (price or Decimal(0)) + pool.disk_per_hour
    priced, spot = price is not None, instance.spot
    return MeteredInstance(
        instance.pool,
        instance.owner,
        instance.type,
        gpus,
        per_hour,
        priced=priced,
        spot=spot,
        reservation=_reservation(instance, fleet, pool) or (known.reservation if known else ""),
    )


def _reservation(instance: Instance, fleet: Inventory, pool: PoolPrices) -> str:
    """Return the reservation whose group has the instance; empty where nobody knows or there is none."""
    if pool.reserved and not pool.reservations:
        return ONLY
    group = fleet.group_of(instance.id) if pool.reservations else None
    title = group.title or group.name if group else ""
    return next((held.id for held in pool.reservations if held.starts(title)), "")


def _price(instance: Instance, budget: BudgetPolicy) -> Decimal | None:
    return budget.price_of(instance.pool, instance.type, spot=instance.spot)


def with_spot_prices(budget: BudgetPolicy, market: Mapping[str, Decimal]) -> BudgetPolicy:
    """Return the budget at the market's spot prices, limited by its own: spot never exceeds on demand.

    Args:
        market: instance type -> present price of an hour.
    """
    pools = {}
    for name, pool in budget.pools.items():
        known = {kind: price for kind, price in pool.spot.items() if kind in market}
        lower = {kind: market[kind] if old is None else min(old, market[kind]) for kind, old in known.items()}
        pools[name] = replace(pool, spot={**pool.spot, **lower})
    return replace(budget, pools=pools)


def unpriced(
    instances: Iterable[Instance], budget: BudgetPolicy, running: Mapping[str, MeteredInstance] | None = None
) -> int:
    """Return the number of running instances without a price.

    Args:
        running: as the meter knows them; without it an instance of a pool that left the stack has no price.
    """
    metered = (
        _metered_instance(each, Inventory(()), budget, (running or {}).get(each.id))
        for each in instances
        if each.state in BILLED
    )
    return sum(each is None or not each.priced for each in metered)


def reserved_in_use(
    running: Iterable[MeteredInstance], budget: BudgetPolicy, at: datetime
) -> list[ReservedUse]:
    """Return the use of each reservation that is paid for at a time.

    An instance of which nobody knows the reservation is in the first one with room.
    """
    inside = Counter((_payer(each, budget, at), each.reservation) for each in running)
    uses = []
    for name, pool in budget.pools.items():
        unknown = inside[name, ""] + inside[name, ONLY]
        for held in pool.paid(at):
            used = min(held.count, inside[name, held.id]) if held.id else 0
            beside = min(unknown, held.count - used)
            unknown -= beside
            uses.append(ReservedUse(name, held.id, used + beside, held.count))
    return uses


def _payer(instance: MeteredInstance, budget: BudgetPolicy, at: datetime) -> str:
    """Return the pool that pays for an instance's reservation: after a rename the one that has it now."""
    if instance.pool in budget.pools or not instance.reservation:
        return instance.pool
    now = (
        name
        for name, pool in budget.pools.items()
        if instance.type in pool.gpus
        and any(instance.reservation == (held.id or ONLY) for held in pool.paid(at))
    )
    return next(now, instance.pool)


def per_hour(
    instances: Sequence[Instance],
    budget: BudgetPolicy,
    reserved: Iterable[ReservedUse] = (),
    running: Mapping[str, MeteredInstance] | None = None,
) -> dict[str, Decimal]:
    """Return pool, and ``_shared``, -> present cost of an hour; every pool of the budget is there."""
    rates = {SHARED: budget.shared_per_hour, **dict.fromkeys(budget.pools, Decimal(0))}
    for use in reserved:
        rates[use.pool] += (use.paid - use.used) * (budget.reserved_price(use.pool) or Decimal(0))
    for listed in instances:
        instance = _metered_instance(listed, Inventory(()), budget, (running or {}).get(listed.id))
        if instance is not None and listed.state in BILLED:
            rates[instance.pool] = rates.get(instance.pool, Decimal(0)) + instance.per_hour
        elif listed.state == STOPPED and listed.pool in budget.pools:
            rates[listed.pool] += budget.pools[listed.pool].disk_per_hour
    return rates


def advance(
    before: MeterReading | None, fleet: Inventory, budget: BudgetPolicy, currency: str, now: datetime
) -> tuple[MeterReading, list[Day]]:
    """Advance the meter to the present.

    Args:
        before: the last reading; None at first: then instances count from their launch this month.
        fleet: as the cloud reports it at ``now``.
        now: aware; a time before the meter's own changes nothing.

    Returns:
        The new reading, and the days that ended since, oldest first.

    Raises CloudError if the meter has counted in another currency.
    """
    now = now.astimezone(UTC).replace(microsecond=0)
    if before is None:
        return _first(fleet, budget, currency, now), []
    if before.currency != currency:
        raise CloudError(f"the meter counts in {before.currency}, and the policy's prices are in {currency}")
    if now <= before.until:
        return before, []
    running = _running(fleet, budget, before.running)
    saved = {key: instance for key, instance in before.saved.items() if key not in running}
    ran = list(_spans(fleet, before.running, before.until, budget, now))
    spans = [
        *ran,
        *_unused_spans(ran, before.until, budget, now),
        MeteredSpan(before.until, now, budget.shared_per_hour, SHARED),
        *_saved_spans(saved, fleet, budget, now),
    ]
    counted, days = _add_up(before, spans, now)
    at_least = _without_price(fleet, before.running, budget, before.until)
    if (now.year, now.month) != (before.until.year, before.until.month):
        saved = {}  # an instance's cost beyond its last month is not claimed as saved
    else:
        at_least = at_least or before.at_least
    return replace(counted, running=running, saved=saved, at_least=at_least), days


def _without_price(
    fleet: Inventory, running: Mapping[str, MeteredInstance], budget: BudgetPolicy, since: datetime
) -> bool:
    """Return whether hours since the last sweep have no known price and count as nothing."""
    reserved = [name for name, pool in budget.pools.items() if pool.paid(since)]
    return (
        unpriced(fleet.instances, budget) > 0
        or any(not instance.priced for instance in running.values())
        or any(each.state == STOPPED and each.pool not in budget.pools for each in fleet.instances)
        or any(budget.reserved_price(name) is None for name in reserved)
    )


def note_ends(reading: MeterReading, ids: Iterable[str], at: datetime) -> MeterReading:
    """Return the reading with the instances that a sweep terminated.

    The cloud may not list them again; they save until the month ends, or they run again.
    """
    ended = {key: replace(reading.running[key], ends_at=at) for key in ids if key in reading.running}
    return replace(reading, running={**reading.running, **ended}, saved={**reading.saved, **ended})


def forecast(reading: MeterReading, rate: Decimal) -> Decimal:
    """Return the month's cost at its end, at the rate of the last 24 hours.

    Args:
        rate: present cost of an hour, used while less than an hour is counted.
    """
    until = reading.until
    known = min(DAY, until - reading.since)
    if known >= timedelta(hours=1):
        of_yesterday = Decimal(1)
        if until - reading.since >= DAY:
            of_yesterday = 1 - _hours(until - reading.day.date) / 24
        rate = (reading.day.cost + reading.yesterday * of_yesterday) / _hours(known)
    days = calendar.monthrange(until.year, until.month)[1]
    left = _midnight(until).replace(day=1) + days * DAY - until
    return reading.month_cost + rate * _hours(left)


def _first(fleet: Inventory, budget: BudgetPolicy, currency: str, now: datetime) -> MeterReading:
    """Return the first reading, as far as present instances show the month.

    Shared costs count from now on.
    """
    start = _midnight(now).replace(day=1)
    zero = dict.fromkeys((SHARED, *budget.pools), Decimal(0))
    begin = MeterReading(currency, now, start, zero, Day(start))
    counted, _ = _add_up(begin, list(_spans(fleet, None, start, budget, now)), now)
    # Instances that ran before the meter did say nothing about the rate.
    today = Day(counted.day.date)
    at_least = _without_price(fleet, {}, budget, now)
    running = _running(fleet, budget, {})
    return replace(counted, day=today, yesterday=Decimal(0), running=running, at_least=at_least)


def _running(
    fleet: Inventory, budget: BudgetPolicy, before: Mapping[str, MeteredInstance]
) -> dict[str, MeteredInstance]:
    metered = {
        instance.id: _metered_instance(instance, fleet, budget, before.get(instance.id))
        for instance in fleet.instances
        if instance.state in BILLED
    }
    return {key: instance for key, instance in metered.items() if instance is not None}


def _spans(
    fleet: Inventory,
    running: Mapping[str, MeteredInstance] | None,
    start: datetime,
    budget: BudgetPolicy,
    now: datetime,
) -> Iterator[MeteredSpan]:
    """Yield the cost of each instance since ``start``; ``running`` held then, None if unknown."""
    seen = (*fleet.instances, *fleet.gone)
    for listed in seen:
        known = running.get(listed.id) if running is not None else None
        instance = _metered_instance(listed, fleet, budget, known)
        if instance is None or listed.state == "pending":
            continue
        began = start if known else max(start, listed.launched_at)
        stop = _stop(listed, known, now)
        is_known = (
            listed.stopped_at is not None and running is None
        )  # at first the running instances are unknown
        if (
            listed.state in BILLED
            or known
            or is_known
            or (running is not None and listed.launched_at >= start)
        ):
            yield MeteredSpan(began, stop, instance.per_hour, instance.pool, listed.id, instance)
        if listed.state == STOPPED and instance.pool in budget.pools:
            since = max(start, stop) if listed.stopped_at else start
            yield MeteredSpan(since, now, budget.pools[instance.pool].disk_per_hour, instance.pool)
    ids = {instance.id for instance in seen}
    for key, instance in (running or {}).items():
        if key not in ids:
            yield MeteredSpan(
                start, min(now, instance.ends_at or now), instance.per_hour, instance.pool, key, instance
            )


def _unused_spans(
    ran: Sequence[MeteredSpan], start: datetime, budget: BudgetPolicy, now: datetime
) -> Iterator[MeteredSpan]:
    """Yield the cost of each reservation's instances that did not run, for each period by their number."""
    own = [(span, span.instance) for span in ran if span.instance is not None]
    ends = [held.until for pool in budget.pools.values() for held in pool.reservations if held.until]
    moments = [*ends, *(moment for span, _ in own for moment in (span.begin, span.end))]
    turns = {min(now, max(start, moment)) for moment in moments}
    for begin, end in pairwise(sorted({start, now, *turns})):
        inside = [instance for span, instance in own if span.begin <= begin and end <= span.end]
        for use in reserved_in_use(inside, budget, begin):
            if unused := use.paid - use.used:
                rate = unused * (budget.reserved_price(use.pool) or Decimal(0))
                yield MeteredSpan(begin, end, rate, use.pool, unused=unused, reservation=use.reservation)


def _saved_spans(
    saved: Mapping[str, MeteredInstance], fleet: Inventory, budget: BudgetPolicy, now: datetime
) -> Iterator[MeteredSpan]:
    """Yield the cost that terminated instances would have had, until the end of that month.

    A stopped instance still pays for its disks. An instance of a reservation saves nothing.
    """
    stopped = {instance.id for instance in fleet.instances if instance.state == STOPPED}
    for key, instance in saved.items():
        pool = budget.pools.get(instance.pool)
        if instance.ends_at is None:
            continue
        if not (pool.paid(instance.ends_at) if pool else instance.reservation):
            first = _midnight(instance.ends_at).replace(day=1)
            end = min(now, (first + 31 * DAY).replace(day=1))
            disks = pool.disk_per_hour if pool and key in stopped else Decimal(0)
            rate = max(Decimal(0), instance.per_hour - disks)
            yield MeteredSpan(instance.ends_at, end, rate, instance.pool, key, instance, saved=True)


def _stop(instance: Instance, known: MeteredInstance | None, now: datetime) -> datetime:
    """Return until when an instance ran: now, if it runs or nothing better is known."""
    if instance.state in BILLED:
        return now
    return min(now, instance.stopped_at or (known.ends_at if known else None) or now)


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _hours(span: timedelta) -> Decimal:
    return Decimal(int(span.total_seconds())) / SECONDS_PER_HOUR


def _add_up(
    reading: MeterReading, spans: Sequence[MeteredSpan], now: datetime
) -> tuple[MeterReading, list[Day]]:
    """Advance a reading to ``now`` and add the cost of the spans since it was taken.

    Returns:
        The reading, and the days that ended meanwhile, oldest first.
    """
    days = []
    while reading.until < now:
        midnight = reading.day.date + DAY
        reading = _add(reading, spans, min(midnight, now))
        if reading.until == midnight:
            days.append(reading.day)
            month = reading.month if midnight.day > 1 else dict.fromkeys(reading.month, Decimal(0))
            reading = replace(reading, month=month, day=Day(midnight), yesterday=reading.day.cost)
    return reading, days


def _add(reading: MeterReading, spans: Sequence[MeteredSpan], stop: datetime) -> MeterReading:
    """Add the cost of the spans from the reading's time to another time of the same day."""
    costs: dict[str, Decimal] = defaultdict(Decimal)
    unused = {pool: dict(held) for pool, held in reading.day.unused.items()}
    instances, saved = dict(reading.day.instances), dict(reading.day.saved)
    for span in spans:
        begin, end = (
            int((moment - reading.day.date).total_seconds())
            for moment in (max(span.begin, reading.until), min(span.end, stop))
        )
        seconds = end - begin
        if seconds <= 0:
            continue
        cost = (span.per_hour * seconds / SECONDS_PER_HOUR).quantize(SMALLEST)
        if not span.saved:
            costs[span.pool] += cost
        if span.unused:
            held = unused.setdefault(span.pool, {})
            had_not = held.get(span.reservation, Unused(0, Decimal(0)))
            held[span.reservation] = Unused(had_not.seconds + span.unused * seconds, had_not.cost + cost)
        if span.instance_id is not None and span.instance is not None:
            shares = saved if span.saved else instances
            had = shares.get(span.instance_id, DayShare(span.instance, 0, Decimal(0)))
            ran, spans_of = had.seconds + seconds, had.and_then(begin, end)
            shares[span.instance_id] = DayShare(span.instance, ran, had.cost + cost, spans_of)
    counted, metered = _sum(reading.day.costs, costs), int((stop - reading.until).total_seconds())
    day = Day(reading.day.date, counted, instances, saved, unused, reading.day.seconds + metered)
    return replace(reading, until=stop, month=_sum(reading.month, costs), day=day)


def _sum(left: Mapping[str, Decimal], right: Mapping[str, Decimal]) -> dict[str, Decimal]:
    names = sorted({*left, *right})
    return {name: left.get(name, Decimal(0)) + right.get(name, Decimal(0)) for name in names}
