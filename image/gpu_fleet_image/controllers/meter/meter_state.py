"""The meter's reading, and its JSON in the bucket between two sweeps. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import format_time, parse_time

SCHEMA_VERSION = 1
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class MeteredInstance:
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
    ends_at: datetime | None = None
    priced: bool = True
    spot: bool = False
    reservation: str = ""


@dataclass(frozen=True)
class Unused:
    """Time of a reservation's instances that were paid for and did not run: their seconds added up."""

    seconds: int
    cost: Decimal


@dataclass(frozen=True)
class DayShare:
    """One instance's share of a day.

    Attributes:
        spans: seconds of the day between which it ran; two that touch are one.
    """

    instance: MeteredInstance
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
class Day:
    """A calendar day in UTC, or its metered part.

    Attributes:
        costs: pool, or ``_shared``, -> cost.
        instances: instance id -> its share of the day.
        saved: instance id -> the share that it would have had, had no sweep terminated it.
        seconds: that the meter has counted of it.
        unused: pool -> reservation, empty for a pool's only one -> its instances that did not run.
    """

    date: datetime
    costs: Mapping[str, Decimal] = field(default_factory=dict)
    instances: Mapping[str, DayShare] = field(default_factory=dict)
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

    def to_json(self) -> dict[str, Any]:
        """Return the day as the bucket holds it."""
        return {
            "date": self.name,
            "seconds": self.seconds,
            "costs": _texts(self.costs),
            "machines": {key: _share_json(share) for key, share in self.instances.items()},
            "saved": {key: _share_json(share) for key, share in self.saved.items()},
            "unused": {
                pool: {name: {"seconds": each.seconds, "cost": str(each.cost)} for name, each in held.items()}
                for pool, held in self.unused.items()
            },
        }


@dataclass(frozen=True)
class MeterReading:
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

    @property
    def month_cost(self) -> Decimal:
        """Cost of all pools."""
        return sum(self.month.values(), Decimal(0))

    def to_json(self) -> dict[str, Any]:
        """Return the reading as the bucket holds it; money as decimal text."""
        return {
            "schema_version": SCHEMA_VERSION,
            "currency": self.currency,
            "since": format_time(self.since),
            "until": format_time(self.until),
            "month": _texts(self.month),
            "day": self.day.to_json(),
            "yesterday": str(self.yesterday),
            "running": {key: _instance_json(instance) for key, instance in self.running.items()},
            "saved": {key: _instance_json(instance) for key, instance in self.saved.items()},
            "unreported": list(self.unreported),
            "at_least": self.at_least,
        }


def from_json(raw: Mapping[str, Any], where: str) -> MeterReading:
    """Parse what ``to_json`` wrote.

    Raises:
        CloudError: it is damaged. Nothing is counted then: a meter that started again would forget money.
    """
    try:
        return MeterReading(
            currency=str(raw["currency"]),
            since=parse_time(raw["since"]),
            until=parse_time(raw["until"]),
            month=_amounts(raw["month"]),
            day=day_from_json(raw["day"]),
            yesterday=Decimal(raw["yesterday"]),
            running={key: _instance(entry) for key, entry in raw["running"].items()},
            saved={key: _instance(entry) for key, entry in raw["saved"].items()},
            unreported=tuple(map(str, raw["unreported"])),
            at_least=bool(raw["at_least"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError, InvalidOperation) as error:
        raise CloudError(
            f"{where}: {error!r}; restore a version that the bucket kept, or delete it to count this month "
            "again from the running instances",
            "Malformed",
        ) from error


def day_from_json(raw: Mapping[str, Any]) -> Day:
    """Parse what ``Day.to_json`` wrote; raises what damaged JSON raises."""
    date = datetime.strptime(raw["date"], "%Y-%m-%d").replace(tzinfo=UTC)
    unused = {
        str(pool): {
            str(name): Unused(int(each["seconds"]), Decimal(each["cost"])) for name, each in held.items()
        }
        for pool, held in raw["unused"].items()
    }
    ran, saved = _shares(raw["machines"]), _shares(raw["saved"])
    return Day(date, _amounts(raw["costs"]), ran, saved, unused, int(raw["seconds"]))


def _share_json(share: DayShare) -> dict[str, Any]:
    own = {"seconds": share.seconds, "cost": str(share.cost), "spans": share.spans}
    return {**own, **_instance_json(share.instance)}


def _shares(raw: Mapping[str, Any]) -> dict[str, DayShare]:
    return {
        key: DayShare(
            _instance(entry),
            int(entry["seconds"]),
            Decimal(entry["cost"]),
            tuple((int(begin), int(end)) for begin, end in entry["spans"]),
        )
        for key, entry in raw.items()
    }


def _instance_json(instance: MeteredInstance) -> dict[str, Any]:
    ends = {} if instance.ends_at is None else {"ends_at": format_time(instance.ends_at)}
    return {
        "pool": instance.pool,
        "owner": instance.owner,
        "type": instance.type,
        "gpus": instance.gpus,
        "per_hour": str(instance.per_hour),
        **ends,
        **({} if instance.priced else {"priced": False}),
        **({"spot": True} if instance.spot else {}),
        **({"reservation": instance.reservation} if instance.reservation else {}),
    }


def _instance(raw: Mapping[str, Any]) -> MeteredInstance:
    return MeteredInstance(
        pool=str(raw["pool"]),
        owner=str(raw["owner"]),
        type=str(raw["type"]),
        gpus=int(raw["gpus"]),
        per_hour=Decimal(raw["per_hour"]),
        ends_at=parse_time(raw["ends_at"]) if "ends_at" in raw else None,
        priced=bool(raw.get("priced", True)),
        spot=bool(raw.get("spot", False)),
        reservation=str(raw.get("reservation", "")),
    )


def _texts(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _amounts(raw: Mapping[str, Any]) -> dict[str, Decimal]:
    return {str(name): Decimal(amount) for name, amount in raw.items()}
