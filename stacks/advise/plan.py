"""Which machines finish a run, in how long, for how much: every type of the catalog that can. Pure."""

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from stacks import catalog, prices
from stacks.advise.work import LAYOUTS, Layout, Memory, Work, memory, seconds
from stacks.instance_types import InstanceType
from stacks.money import Money

GPUS = Path(__file__).with_name("gpus.toml")
TERA = 10**12
GIB = 1 << 30
HOUR_S = 3600
# What the driver, fragments and communication buffers take of a GPU's memory.
HEADROOM = 0.10
# Below, one card does; above, one machine does not.
ONE_CARD_BELOW, CLUSTER_ABOVE = 1e9, 10e9
MOST_MACHINES = 64


@dataclass(frozen=True)
class Plan:
    """A way to finish a run.

    Attributes:
        kind: the machines.
        machines: how many.
        gpus: how many of all their GPUs work.
        layout: how the run is spread over them.
        memory: what each GPU holds.
        hours: from the first step to the last, without interruptions.
        on_demand: list price of all machines for that long; None where no price is public.
        spot: the least that the same may cost on spot, at the largest advertised discount.
    """

    kind: InstanceType
    machines: int
    gpus: int
    layout: Layout
    memory: Memory
    hours: float
    on_demand: Money | None
    spot: Money | None


@cache
def facts() -> dict[str, Any]:
    """The peaks of GPUs and the utilisation that runs reach."""
    return tomllib.loads(GPUS.read_text(encoding="utf-8"))


def peak(kind: InstanceType, precision: str) -> float | None:
    """Operations per second of one GPU; None where it lacks the format or has no public figure."""
    found = facts()["peaks"].get(kind.gpu_model, {}).get(precision)
    return None if found is None else found * TERA


def plans(work: Work, days: float | None = None) -> list[Plan]:
    """Every type that can finish, the cheapest first within each currency; those without a price last.

    Args:
        work: the run.
        days: it must be done by then; None for no hurry.
    """
    found = [plan for kind in catalog.load() if (plan := plan_of(work, kind, days)) is not None]
    return sorted(found, key=_order)


def _order(plan: Plan) -> tuple[bool, str, Decimal, float]:
    if plan.on_demand is None:
        return True, "", Decimal(0), plan.hours
    return False, plan.on_demand.currency, plan.on_demand.amount, plan.hours


def plan_of(work: Work, kind: InstanceType, days: float | None) -> Plan | None:
    """The fewest machines of a type that hold the run and finish in time; None where no number does."""
    flops_per_s = peak(kind, work.precision)
    if flops_per_s is None:
        return None
    for machines, gpus in _sizes(work, kind, hurried=days is not None):
        layout = fitting(work, kind, gpus)
        if layout is None:
            continue
        utilisation = facts()["utilisation"]["decoder"]
        hours = seconds(work.flops, layout, flops_per_s * gpus, utilisation) / HOUR_S
        if days is None or hours <= days * 24:
            held = memory(work, layout, gpus)
            return _priced(kind, machines=machines, gpus=gpus, layout=layout, held=held, hours=hours)
    return None


def _sizes(work: Work, kind: InstanceType, *, hurried: bool) -> Iterator[tuple[int, int]]:
    """Machines and working GPUs to try, the fewest first.

    A small model uses one card. More than one machine needs RDMA between them, and a large model or a hurry.
    No more GPUs than sequences of a batch have anything to do.
    """
    if work.parameters < ONE_CARD_BELOW:
        yield 1, 1
        return
    joined = kind.efa_interfaces or kind.erdma_interfaces
    most = MOST_MACHINES if joined and (hurried or work.parameters > CLUSTER_ABOVE) else 1
    for exponent in range(int(math.log2(most)) + 1):
        gpus = kind.gpu_count * 2**exponent
        if gpus <= work.batch or exponent == 0:
            yield 2**exponent, min(gpus, work.batch)


def fitting(work: Work, kind: InstanceType, gpus: int) -> Layout | None:
    """The fastest layout whose memory a GPU of the type holds; None where none does."""
    room = kind.gpu_memory_gib * GIB * (1 - HEADROOM)
    for layout in LAYOUTS:
        if layout.sharded and gpus == 1:
            continue
        if memory(work, layout, gpus).total <= room:
            return layout
    return None


def _priced(
    kind: InstanceType, *, machines: int, gpus: int, layout: Layout, held: Memory, hours: float
) -> Plan:
    if kind.price is None:
        return Plan(kind, machines, gpus, layout, held, hours, None, None)
    on_demand = Money(kind.price.amount_per_hour, kind.price.currency) * (machines * Decimal(hours))
    spot = on_demand * (1 - prices.load(kind.cloud).spot_discount.most)
    return Plan(kind, machines, gpus, layout, held, hours, on_demand, spot)


def break_even_hours(discount: Decimal, hours_per_month: int = 730) -> Decimal:
    """From how many hours of use a month on a reservation is cheaper than paying by the hour.

    A reservation is paid for every hour at ``1 - discount`` of the price, used or not.
    """
    return hours_per_month * (1 - discount)
