"""The meter's reading, and its JSON in the bucket between two sweeps. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated, ClassVar

from gpu_fleet_image.core.document import DATE, FLAT, LEFT_OUT, MAY_LACK, Record, named

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class MeteredInstance(Record):
    """Data of an instance that the meter must remember.

    Attributes:
        per_hour: cost of an hour, with disks.
        ends_at: when a sweep terminated it; None if no sweep did.
        priced: ``per_hour`` has its own price; without one it has only its disks.
        reservation: that it runs in; empty for none, or where nobody knows.
    """

    pool: str
    owner: str
    type: str
    gpus: int
    per_hour: Decimal
    ends_at: datetime | None = field(default=None, metadata=LEFT_OUT)
    priced: bool = field(default=True, metadata=LEFT_OUT)
    spot: bool = field(default=False, metadata=LEFT_OUT)
    reservation: str = field(default="", metadata=LEFT_OUT)


@dataclass(frozen=True)
class Unused(Record):
    """Time of a reservation's instances that were paid for and did not run: their seconds added up."""

    seconds: int
    cost: Decimal


@dataclass(frozen=True)
class DayShare(Record):
    """One instance's share of a day.

    Attributes:
        spans: seconds of the day between which it ran; two that touch are one.
    """

    instance: MeteredInstance = field(metadata=FLAT)
    seconds: int
    cost: Decimal
    spans: tuple[tuple[int, int], ...] = ()

    def and_then(self, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """Return the spans with a later one."""
        if self.spans and self.spans[-1][1] >= begin:
            return (*self.spans[:-1], (self.spans[-1][0], end))
        return (*self.spans, (begin, end))

    def seconds_within(self, begin: int, end: int) -> int:
        """Return how long it ran between two seconds of the day."""
        return sum(max(0, min(until, end) - max(since, begin)) for since, until in self.spans)

    @property
    def gpu_hours(self) -> Decimal:
        """Its GPUs times the hours that it ran."""
        return Decimal(self.seconds * self.instance.gpus) / SECONDS_PER_HOUR


@dataclass(frozen=True)
class Day(Record):
    """A calendar day in UTC, or its metered part.

    Attributes:
        costs: pool, or ``_shared``, -> cost.
        instances: instance id -> its share of the day.
        saved: instance id -> the share that it would have had, had no sweep terminated it.
        seconds: that the meter has counted of it.
        unused: pool -> reservation, empty for a pool's only one -> its instances that did not run.
    """

    date: Annotated[datetime, DATE]
    costs: Mapping[str, Decimal] = field(default_factory=dict)
    instances: Mapping[str, DayShare] = field(default_factory=dict, metadata=named("machines"))
    saved: Mapping[str, DayShare] = field(default_factory=dict)
    unused: Mapping[str, Mapping[str, Unused]] = field(default_factory=dict)
    seconds: int = 0

    @property
    def cost(self) -> Decimal:
        """Cost of all pools."""
        return sum(self.costs.values(), Decimal(0))

    @property
    def pools(self) -> set[str]:
        """Pools of its instances."""
        return {share.instance.pool for share in self.instances.values()}

    @property
    def unpriced(self) -> int:
        """Number of its instances without a price; if there are any, the costs are lower bounds."""
        return sum(not share.instance.priced for share in self.instances.values())

    def unused_gpu_hours(self, pool: str, gpus: Mapping[str, int]) -> Decimal:
        """Return the GPU hours of a pool's reservations that were paid for and had no instance."""
        seconds = sum(unused.seconds for unused in self.unused.get(pool, {}).values())
        return Decimal(seconds * gpus.get(pool, 0)) / SECONDS_PER_HOUR

    @property
    def name(self) -> str:
        """Name of the day, ``2026-11-21``."""
        return f"{self.date:%Y-%m-%d}"


@dataclass(frozen=True)
class MeterReading(Record):
    """Reading of the meter.

    Attributes:
        since: when it started to count.
        until: the time up to which everything is counted.
        month: pool, or ``_shared``, -> cost of the month of ``until``.
        day: the day of ``until``.
        running: instance id -> instance, of those that ran at ``until``.
        saved: instance id -> instance, of those that sweeps terminated this month and that do not run again.
        unreported: days that ended and are not reported yet, oldest first.
        at_least: the month's costs lack hours without a known price.
    """

    # Nothing is counted after a damaged reading: a meter that started again would forget money.
    IF_DAMAGED: ClassVar[str] = (
        "; restore a version that the bucket kept, or delete it to count this month again from the running "
        "instances"
    )
    currency: str
    since: datetime
    until: datetime
    month: Mapping[str, Decimal]
    day: Day
    yesterday: Decimal = Decimal(0)
    running: Mapping[str, MeteredInstance] = field(default_factory=dict)
    saved: Mapping[str, MeteredInstance] = field(default_factory=dict)
    unreported: tuple[str, ...] = ()
    at_least: bool = False
    schema_version: int = field(default=1, metadata=MAY_LACK)

    @property
    def month_cost(self) -> Decimal:
        """Cost of all pools."""
        return sum(self.month.values(), Decimal(0))
