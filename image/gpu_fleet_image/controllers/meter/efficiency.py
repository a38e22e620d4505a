"""Efficiency of a day's GPU hours: rented, computing, idle, saved, and the instances with the most idle.

Pure.

A GPU computes while a kernel runs on it. An instance with work on its CPUs alone is in use, and is not
terminated; its GPUs are idle all the same. Time without a report is unknown, neither computing nor idle.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from statistics import fmean
from typing import Any, NamedTuple

from gpu_fleet_image.controllers.meter.meter_state import Day, DayShare, MeteredInstance

_MOST_BELIEVED = 100.1  # percent; rounding may leave a little more than 100
PERIOD_S = 900  # of which one report is enough
_MOST_IDLE = 10
CENT = Decimal("0.01")
HOURS = ("rented", "computing", "idle", "unknown", "unused", "saved")  # reported for each pool


class Reported(NamedTuple):
    """An agent's report of its GPUs over the time that their instance ran on a day.

    Attributes:
        share: mean of the reported time, 0 to 1.
        known: part of the time of which there is a report, 0 to 1.
    """

    share: Decimal = Decimal(0)
    known: Decimal = Decimal(0)

    def split(self, amount: Decimal) -> tuple[Decimal, Decimal, Decimal]:
        """Return the computing, idle and unknown part of GPU hours or of their cost."""
        known = amount * self.known
        computing = known * self.share
        return computing, known - computing, amount - known


UNREPORTED = Reported()


def reported(percents: Mapping[int, float], share: DayShare, period_s: int = PERIOD_S) -> Reported:
    """Return what plausible reports say: every user of an instance can publish in its name.

    Args:
        percents: second of the day at which a period with a report begins -> its mean.
        share: when the instance ran.
        period_s: length of a period.
    """
    plausible = {begin: percent for begin, percent in percents.items() if 0 <= percent <= _MOST_BELIEVED}
    seconds = [share.seconds_within(begin, begin + period_s) for begin in plausible]
    if not share.seconds or not any(seconds):
        return UNREPORTED
    computing = min(Decimal(1), Decimal(str(fmean(plausible.values(), seconds))) / 100)
    return Reported(computing, Decimal(sum(seconds)) / share.seconds)


@dataclass(frozen=True)
class Use:
    """One instance's use of a day.

    Attributes:
        gpu_hours: its GPUs times the hours that it ran.
        computing: the time in which a GPU computed.
        sm_active: mean SM activity.
    """

    instance_id: str
    instance: MeteredInstance
    gpu_hours: Decimal
    computing: Reported
    cost: Decimal
    sm_active: Reported = UNREPORTED

    @property
    def idle_cost(self) -> Decimal:
        """Cost of idle hours; 0 if unknown."""
        return self.computing.split(self.cost)[1]


@dataclass(frozen=True)
class PoolUse:
    """A pool's use of a day.

    Attributes:
        rented: GPU hours paid for, with unused reserved ones.
        computing: of these, hours in which GPUs computed.
        unknown: of these, hours without a reported utilisation.
        unused: of these, hours of a reservation without a running instance.
        saved: hours that terminated instances would have run.
        sm_active: mean SM activity of the hours whose instances report it, 0 to 1; None if none does.
    """

    pool: str
    rented: Decimal
    computing: Decimal
    unknown: Decimal
    unused: Decimal
    saved: Decimal
    cost: Decimal
    sm_active: Decimal | None = None

    @property
    def idle(self) -> Decimal:
        """Hours in which nothing computed."""
        return self.rented - self.computing - self.unknown

    def to_json(self) -> dict[str, str | None]:
        """Return GPU hours as decimal text, and the SM activity."""
        hours: dict[str, str | None] = {name: _short(getattr(self, name)) for name in HOURS}
        return hours | {"sm_active": None if self.sm_active is None else _short(self.sm_active)}


@dataclass(frozen=True)
class Efficiency:
    """Efficiency of a day.

    Attributes:
        name: ``2026-11-21``.
        pools: each pool, sorted by name; ``_shared`` stands for what all pools share.
        idle: the ten instances, at most, with the highest idle cost.
        saved_cost: cost that terminated instances would have had.
        computing: instance id -> the time in which its GPUs computed, if any of it is reported.
        unpriced: number of instances without a known price; if there are any, all costs are lower bounds.
        lacks: what all costs lack, because it has no public price.
    """

    name: str
    stack: str
    currency: str
    pools: tuple[PoolUse, ...]
    idle: tuple[Use, ...]
    saved_cost: Decimal
    computing: Mapping[str, Reported]
    unpriced: int = 0
    sm_active: Decimal | None = None
    lacks: tuple[str, ...] = ()

    def total(self, attribute: str) -> Decimal:
        """Return the total of all pools for an attribute of ``PoolUse``."""
        return sum((getattr(pool, attribute) for pool in self.pools), Decimal(0))

    def to_json(self) -> dict[str, Any]:
        """Return the day for the bucket; amounts as decimal text."""
        return {
            "schema_version": 1,
            "day": self.name,
            "stack": self.stack,
            "currency": self.currency,
            "gpu_hours": {name: _short(self.total(name)) for name in HOURS},
            "pools": {pool.pool: pool.to_json() for pool in self.pools},
            "computing": {key: list(map(str, gpu_time)) for key, gpu_time in self.computing.items()},
            "cost": _short(self.total("cost")),
            "unpriced_machines": self.unpriced,
            "saved_cost": _short(self.saved_cost),
            "most_idle": [
                {"instance_id": use.instance_id, "idle_cost": _short(use.idle_cost)} for use in self.idle
            ],
        }


def sum_up(
    day: Day,
    stack: str,
    currency: str,
    computing: Mapping[str, Reported],
    gpus: Mapping[str, int],
    *,
    sm_active: Mapping[str, Reported] | None = None,
) -> Efficiency:
    """Return the efficiency of a day.

    Args:
        computing: instance id -> mean utilisation of its GPUs, of instances with a report.
        gpus: pool -> GPUs of one of its instances, for reserved ones that did not run.
        sm_active: instance id -> mean SM activity of its GPUs; likewise.
    """
    active = sm_active or {}
    uses = [
        _use(key, share, computing.get(key, UNREPORTED), active.get(key, UNREPORTED))
        for key, share in day.instances.items()
    ]
    idle = sorted(
        (use for use in uses if use.idle_cost > 0), key=lambda use: (-use.idle_cost, use.instance_id)
    )
    return Efficiency(
        name=day.name,
        stack=stack,
        currency=currency,
        pools=tuple(_pool_uses(day, uses, gpus)),
        idle=tuple(idle[:_MOST_IDLE]),
        saved_cost=sum((share.cost for share in day.saved.values()), Decimal(0)),
        computing={use.instance_id: use.computing for use in uses if use.computing.known},
        unpriced=day.unpriced,
        sm_active=_mean_sm_activity(uses),
    )


def _use(key: str, share: DayShare, computing: Reported, sm_active: Reported) -> Use:
    return Use(key, share.instance, share.gpu_hours, computing, share.cost, sm_active)


def _mean_sm_activity(uses: Iterable[Use]) -> Decimal | None:
    """Return the mean over the GPU hours that report it."""
    known = [(use.gpu_hours * use.sm_active.known, use.sm_active.share) for use in uses]
    hours = sum((each for each, _ in known), Decimal(0))
    return sum((each * share for each, share in known), Decimal(0)) / hours if hours else None


def _pool_uses(day: Day, uses: Iterable[Use], gpus: Mapping[str, int]) -> Iterable[PoolUse]:
    by_pool: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        by_pool[use.instance.pool].append(use)
    saved: dict[str, Decimal] = defaultdict(Decimal)
    for share in day.saved.values():
        saved[share.instance.pool] += share.gpu_hours
    for pool in sorted({*day.costs, *by_pool, *saved}):
        own = by_pool[pool]
        split = [use.computing.split(use.gpu_hours) for use in own]
        unused = day.unused_gpu_hours(pool, gpus)
        yield PoolUse(
            pool=pool,
            rented=sum((use.gpu_hours for use in own), unused),
            computing=sum((computing for computing, _, _ in split), Decimal(0)),
            unknown=sum((unknown for _, _, unknown in split), Decimal(0)),
            unused=unused,
            saved=saved[pool],
            cost=day.costs.get(pool, Decimal(0)),
            sm_active=_mean_sm_activity(own),
        )


def _short(amount: Decimal) -> str:
    return str(amount.quantize(CENT))
