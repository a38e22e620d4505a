"""What a day's GPU hours were worth: bought, busy, saved, and who left most of them idle. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from image.reaper.money.meter_state import Day, DayShare, MeteredInstance

SECONDS_PER_HOUR = 3600
MOST_BELIEVED = 1e15  # samples of one instance and day; arithmetic with cents is exact up to there
MOST_IDLE = 10
CENT = Decimal("0.01")


@dataclass(frozen=True)
class Use:
    """What one instance did with its day.

    Attributes:
        gpu_hours: its GPUs times the hours it ran.
        busy: share of them in which it worked, 0 to 1; None where its agent said nothing.
    """

    instance_id: str
    instance: MeteredInstance
    gpu_hours: Decimal
    busy: Decimal | None
    cost: Decimal

    @property
    def busy_gpu_hours(self) -> Decimal:
        """None that nobody knows of."""
        return self.gpu_hours * (self.busy or Decimal(0))

    @property
    def idle_cost(self) -> Decimal:
        """What was paid for idle hours; nothing where nobody knows."""
        return Decimal(0) if self.busy is None else self.cost * (1 - self.busy)


@dataclass(frozen=True)
class PoolUse:
    """What a pool did with its day.

    Attributes:
        gpu_hours: bought.
        busy: of these, hours in which instances worked.
        unknown: of these, hours of instances whose agent said nothing.
        saved: hours that terminated instances would have run.
    """

    pool: str
    gpu_hours: Decimal
    busy: Decimal
    unknown: Decimal
    saved: Decimal
    cost: Decimal


@dataclass(frozen=True)
class Efficiency:
    """A day.

    Attributes:
        name: ``2026-11-21``.
        pools: each pool, by name; what all share is ``_shared``.
        idle: the instances that left most money idle, at most ten.
        saved_cost: what terminated instances would have cost.
        samples: that trainers say they worked through; None where none says.
        samples_cost: what the instances of those trainers cost.
        unpriced: instances without a known price; where there are any, every cost is at least what it says.
    """

    name: str
    stack: str
    currency: str
    pools: tuple[PoolUse, ...]
    idle: tuple[Use, ...]
    saved_cost: Decimal
    samples: Decimal | None
    samples_cost: Decimal
    unpriced: int = 0

    def total(self, attribute: str) -> Decimal:
        """Of all pools, by the name of an attribute of ``PoolUse``."""
        return sum((getattr(pool, attribute) for pool in self.pools), Decimal(0))

    @property
    def samples_per_money(self) -> Decimal | None:
        """Samples for one unit of the currency; None where no trainer says, or nothing was paid."""
        if self.samples is None or not self.samples_cost:
            return None
        return self.samples / self.samples_cost

    def to_json(self) -> dict[str, Any]:
        """For the bucket; amounts as decimal text."""
        return {
            "schema_version": 1,
            "day": self.name,
            "stack": self.stack,
            "currency": self.currency,
            "gpu_hours": {
                name: _short(self.total(attribute))
                for name, attribute in (
                    ("bought", "gpu_hours"),
                    ("busy", "busy"),
                    ("unknown", "unknown"),
                    ("saved", "saved"),
                )
            },
            "cost": _short(self.total("cost")),
            "unpriced_machines": self.unpriced,
            "saved_cost": _short(self.saved_cost),
            "samples_per_money": None if self.samples_per_money is None else _short(self.samples_per_money),
            "most_idle": [
                {"instance_id": use.instance_id, "idle_cost": _short(use.idle_cost)} for use in self.idle
            ],
        }


def sum_up(
    day: Day, stack: str, currency: str, busy: Mapping[str, float], samples: Mapping[str, float]
) -> Efficiency:
    """Sum a day up.

    Args:
        busy: instance id -> share of its time in which it worked; left out where nobody knows.
        samples: instance id -> samples its trainer worked through; left out where none says.
    """
    busy, samples = _usable(busy), _usable(samples)
    uses = [_use(key, share, busy.get(key)) for key, share in day.instances.items()]
    idle = sorted(
        (use for use in uses if use.idle_cost > 0), key=lambda use: (-use.idle_cost, use.instance_id)
    )
    known = samples.keys() & day.instances.keys()
    return Efficiency(
        name=day.name,
        stack=stack,
        currency=currency,
        pools=tuple(_pool_uses(day, uses)),
        idle=tuple(idle[:MOST_IDLE]),
        saved_cost=sum((share.cost for share in day.saved.values()), Decimal(0)),
        samples=sum((_decimal(samples[key]) for key in known), Decimal(0)) if known else None,
        samples_cost=sum((day.instances[key].cost for key in known), Decimal(0)),
        unpriced=day.unpriced,
    )


def _use(key: str, share: DayShare, busy: float | None) -> Use:
    share_busy = None if busy is None else min(Decimal(1), max(Decimal(0), _decimal(busy)))
    return Use(key, share.instance, _gpu_hours(share), share_busy, share.cost)


def _pool_uses(day: Day, uses: Iterable[Use]) -> Iterable[PoolUse]:
    by_pool: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        by_pool[use.instance.pool].append(use)
    saved: dict[str, Decimal] = defaultdict(Decimal)
    for share in day.saved.values():
        saved[share.instance.pool] += _gpu_hours(share)
    for pool in sorted({*day.costs, *by_pool, *saved}):
        own = by_pool[pool]
        yield PoolUse(
            pool=pool,
            gpu_hours=sum((use.gpu_hours for use in own), Decimal(0)),
            busy=sum((use.busy_gpu_hours for use in own), Decimal(0)),
            unknown=sum((use.gpu_hours for use in own if use.busy is None), Decimal(0)),
            saved=saved[pool],
            cost=day.costs.get(pool, Decimal(0)),
        )


def _gpu_hours(share: DayShare) -> Decimal:
    return Decimal(share.seconds * share.instance.gpus) / SECONDS_PER_HOUR


def _usable(values: Mapping[str, float]) -> dict[str, float]:
    """Without numbers that nobody can mean: everybody on an instance may publish in its name."""
    return {key: value for key, value in values.items() if 0 <= value < MOST_BELIEVED}


def _decimal(value: float) -> Decimal:
    return Decimal(str(value))


def _short(amount: Decimal) -> str:
    return str(amount.quantize(CENT))
