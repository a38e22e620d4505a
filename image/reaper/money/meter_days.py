"""Adding up spans of time at a price, day by day and month by month. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from image.reaper.money.meter_reading import Day, DayShare, MeteredInstance, MeterReading

SMALLEST = Decimal("1e-9")  # of a currency's unit: spans round alike, so that parts add up to the whole
SECONDS_PER_HOUR = 3600
DAY = timedelta(days=1)


@dataclass(frozen=True)
class MeteredSpan:
    """A machine, its disks alone, or what all pools share, from one moment to another.

    Attributes:
        begin, end: the moments.
        per_hour: what an hour costs.
        pool: whose.
        instance_id, machine: the machine; None for disks and for what is shared.
        saved: the machine was ended before: the time costs nothing, and would have.
    """

    begin: datetime
    end: datetime
    per_hour: Decimal
    pool: str
    instance_id: str | None = None
    machine: MeteredInstance | None = None
    saved: bool = False


def add_up(
    reading: MeterReading, spans: Sequence[MeteredSpan], now: datetime
) -> tuple[MeterReading, list[Day]]:
    """Move a reading on to ``now`` and add what the spans cost since it was taken.

    Returns:
        The reading, and the days that ended on the way, oldest first.
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
    """Add what the spans cost from where the reading stands to another moment of the same day."""
    costs: dict[str, Decimal] = defaultdict(Decimal)
    machines, saved = dict(reading.day.machines), dict(reading.day.saved)
    for span in spans:
        seconds = int((min(span.end, stop) - max(span.begin, reading.until)).total_seconds())
        if seconds <= 0:
            continue
        cost = (span.per_hour * seconds / SECONDS_PER_HOUR).quantize(SMALLEST)
        if not span.saved:
            costs[span.pool] += cost
        if span.instance_id is not None and span.machine is not None:
            shares = saved if span.saved else machines
            had = shares.get(span.instance_id, DayShare(span.machine, 0, Decimal(0)))
            shares[span.instance_id] = DayShare(span.machine, had.seconds + seconds, had.cost + cost)
    day = replace(reading.day, costs=_sum(reading.day.costs, costs), machines=machines, saved=saved)
    return replace(reading, until=stop, month=_sum(reading.month, costs), day=day)


def _sum(left: Mapping[str, Decimal], right: Mapping[str, Decimal]) -> dict[str, Decimal]:
    names = sorted({*left, *right})
    return {name: left.get(name, Decimal(0)) + right.get(name, Decimal(0)) for name in names}
