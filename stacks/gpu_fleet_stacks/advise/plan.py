"""Instances that finish a run, with time and cost: every suitable type of the catalog. Pure."""

import math
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.advise.offers import Offer
from gpu_fleet_stacks.advise.work import LAYOUTS, Layout, MemoryNeed, Work, memory, seconds
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, Money
from gpu_fleet_stacks.cost.compare import slowdown
from gpu_fleet_stacks.cost.offers_file import SpotRuns

GPUS = Path(__file__).with_name("gpus.toml")
TERA = 10**12
GIB = 1 << 30
HOUR_S, HOURS_PER_DAY = 3600, 24
# Share of a GPU's memory for the driver, fragments and communication buffers.
HEADROOM = 0.10
# Smaller models use one card; larger ones more than one instance.
ONE_CARD_BELOW, CLUSTER_ABOVE = 1e9, 10e9
MOST_INSTANCES = 64
FITS = ("yes", "on spot")  # of `affordable`


@dataclass(frozen=True)
class Candidate:
    """A way to finish a run.

    Attributes:
        gpus: number of their GPUs that the run uses.
        layout: how the run is spread over them.
        hours: from the first step to the last, without interruptions.
        on_demand: list price of all instances for that time; None where no price is public.
        spot: expected spot price for that time and what interruptions add; None where no price is public.
        spot_p90: the same at the 90th percentile of the spot price.
        spot_hours: with what interruptions add (cost/compare.py); None where that is unknown.
        spot_at_least: interruptions are unknown, or of a range without an upper end: spot may cost more.
        in_time_on_spot: spot finishes within the time limit; not where interruptions are unknown.
        data_on: where each instance has the data; empty where nobody asked.
        data_cost: of the disks for it, a part of the costs above; None where their price is unknown.
        lacks_data_cost: the costs above lack the disks for the data, whose price is unknown.
    """

    offer: Offer
    instances: int
    gpus: int
    layout: Layout
    memory: MemoryNeed
    hours: float
    on_demand: Money | None
    spot: Money | None
    spot_p90: Money | None
    spot_hours: float | None = None
    spot_at_least: bool = False
    in_time_on_spot: bool = True
    data_on: str = ""
    data_cost: Money | None = None
    lacks_data_cost: bool = False


@cache
def facts() -> dict[str, Any]:
    """Return the peak rates of GPUs and the utilisation that runs reach."""
    return tomllib.loads(GPUS.read_text(encoding="utf-8"))


def peak(offer: Offer, precision: str) -> float | None:
    """Return operations per second of one GPU; None where it lacks the format or has no public figure."""
    peak_flops = facts()["peaks"].get(offer.gpu_model, {}).get(precision)
    return None if peak_flops is None else peak_flops * TERA


def ranked(some: Iterable[Candidate], currency: str) -> list[Candidate]:
    """Return plans, the cheapest first in each currency, then those with a part unpriced; unpriced ones last.

    Args:
        currency: its prices come before those of others.
    """
    return sorted(some, key=lambda plan: _order(plan, currency))


def _order(plan: Candidate, currency: str) -> tuple[bool, bool, bool, Decimal, float]:
    if plan.on_demand is None:
        return True, True, True, Decimal(0), plan.hours
    own = plan.on_demand
    return False, own.currency != currency, plan.lacks_data_cost, own.amount, plan.hours


def plan_of(work: Work, offer: Offer, days: float | None) -> Candidate | None:
    """Return the fewest instances of a type that hold the run and finish in time; None where none do."""
    flops_per_s = peak(offer, work.precision)
    if flops_per_s is None:
        return None
    for instances, gpus in _sizes(work, offer, hurried=days is not None):
        layout = fitting(work, offer, gpus)
        if layout is None:
            continue
        utilisation = facts()["utilisation"]["decoder"]
        hours = seconds(work.flops, layout, flops_per_s * gpus, utilisation) / HOUR_S
        if days is None or hours <= days * HOURS_PER_DAY:
            held = memory(work, layout, gpus)
            plan = Candidate(offer, instances, gpus, layout, held, hours, None, None, None)
            return _priced(plan, days)
    return None


def _sizes(work: Work, offer: Offer, *, hurried: bool) -> Iterator[tuple[int, int]]:
    """Yield the numbers of instances and working GPUs to try, the fewest first.

    A small model uses one card. More than one instance needs RDMA between them, and a large model or a time
    limit. A run uses at most one GPU for each sequence of a batch.
    """
    if work.parameters < ONE_CARD_BELOW:
        yield 1, 1
        return
    most = MOST_INSTANCES if offer.joined and (hurried or work.parameters > CLUSTER_ABOVE) else 1
    for exponent in range(int(math.log2(most)) + 1):
        gpus = offer.gpu_count * 2**exponent
        if gpus <= work.batch or exponent == 0:
            yield 2**exponent, min(gpus, work.batch)


def fitting(work: Work, offer: Offer, gpus: int) -> Layout | None:
    """Return the fastest layout that fits the memory of one GPU; None where none fits."""
    room = offer.gpu_memory_gib * GIB * (1 - HEADROOM)
    for layout in LAYOUTS:
        if layout.sharded and gpus == 1:
            continue
        if memory(work, layout, gpus).total <= room:
            return layout
    return None


def _priced(plan: Candidate, days: float | None) -> Candidate:
    """Return a plan with its costs; on spot all its instances are one run, which any interruption stops."""
    offer, in_all = plan.offer, plan.instances * Decimal(plan.hours)
    if offer.price is None:
        return plan
    plan = replace(plan, on_demand=Money(offer.price.amount_per_hour, offer.price.currency) * in_all)
    if offer.spot is None:
        return plan
    taken = offer.interruptions
    slower = Decimal(1) if taken is None else slowdown(taken.percent, plan.instances, SpotRuns())
    if slower is None:
        return plan
    spot_hours = plan.hours * float(slower)
    p90 = None if offer.spot.p90 is None else Money(offer.spot.p90, offer.spot.currency) * (in_all * slower)
    return replace(
        plan,
        spot=Money(offer.spot.expected, offer.spot.currency) * (in_all * slower),
        spot_p90=p90,
        spot_hours=None if taken is None else spot_hours,
        spot_at_least=taken is None or taken.at_least,
        in_time_on_spot=days is None or (taken is not None and spot_hours <= days * HOURS_PER_DAY),
    )


def affordable(plan: Candidate, most: Money | None) -> str:
    """Say whether a plan is expected to fit the budget; empty where currency or price leave that open.

    A plan without a public spot price, or too late on spot, fits on demand or not at all.
    """
    if most is None or plan.on_demand is None or plan.on_demand.currency != most.currency:
        return ""
    if plan.lacks_data_cost:
        return ""
    if plan.on_demand <= most:
        return "yes"
    on_spot = plan.spot is not None and plan.spot <= most and plan.in_time_on_spot
    return "on spot" if on_spot else "no"


def months_begun(plan: Candidate) -> int:
    """Return the months of a reservation that the run pays for: every month that it begins."""
    return math.ceil(plan.hours / HOURS_PER_MONTH)


def reserved(plan: Candidate, discount: Decimal) -> Money | None:
    """Return the cost on a reservation: all hours of every month begun, at the discounted price.

    Returns:
        None where no price is public.
    """
    if plan.offer.price is None:
        return None
    hour = Money(plan.offer.price.amount_per_hour, plan.offer.price.currency)
    return hour * ((1 - discount) * (months_begun(plan) * HOURS_PER_MONTH * plan.instances))


def break_even_hours(discount: Decimal) -> Decimal:
    """Return the hours of use a month from which a reservation is cheaper than paying by the hour.

    A reservation is paid for every hour at ``1 - discount`` of the price, used or not.
    """
    return HOURS_PER_MONTH * (1 - discount)
