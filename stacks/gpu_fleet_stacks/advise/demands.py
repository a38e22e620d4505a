"""Demands on a plan: time, region, compliance, data and interconnect; what each refuses. Pure.

A price counts for its own region alone: in another one it is unknown.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from gpu_fleet_stacks.advise.offers import Offer, offers
from gpu_fleet_stacks.advise.plan import GIB, Candidate, peak, plan_of, ranked
from gpu_fleet_stacks.advise.work import Work
from gpu_fleet_stacks.catalog import Cloud, prices, regions
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, Money
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.settings.quantities import VOLUME_IOPS

PROFILES = Path(__file__).parents[1] / "crossguard" / "profiles.toml"
GIGABYTE = 10**9
NVME, DISK = "local NVMe", "disk"


class DemandsError(StacksError):
    """Demands that contradict one another; the message names both and what is allowed."""


@cache
def profiles() -> dict[str, list[str]]:
    """Return compliance profile -> patterns of its regions, as the policy pack has them."""
    listed = tomllib.loads(PROFILES.read_text(encoding="utf-8"))["profiles"]
    return {name: table["regions"] for name, table in listed.items() if name != "default"}


@dataclass(frozen=True)
class Demands:
    """Demands of a run; None for none.

    Attributes:
        days: the run is done by then.
        data_gb: training data that each instance holds.
        iops: reads a second from where the data lies.
        interconnect_gbps: least network of each instance where a run takes several.
    """

    days: float | None = None
    region: str | None = None
    compliance: str | None = None
    data_gb: float | None = None
    iops: int | None = None
    interconnect_gbps: float | None = None

    def check(self) -> None:
        """Raise DemandsError where region and compliance contradict one another, or IOPS lack data."""
        if self.iops is not None and self.data_gb is None:
            raise DemandsError(f"--data-iops {self.iops}: needs --data-gb, the size of the data")
        if self.region is not None and not self._is_compliant(self.region):
            allowed = ", ".join(profiles()[self.compliance or ""])
            raise DemandsError(
                f"--region {self.region} and --compliance {self.compliance}; allowed: regions {allowed}"
            )

    def allows(self, region: str) -> bool:
        """Return whether the run may be in a region."""
        return self.region in {None, region} and self._is_compliant(region)

    def _is_compliant(self, region: str) -> bool:
        patterns = profiles()[self.compliance] if self.compliance else ["*"]
        return any(fnmatchcase(region, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Advice:
    """Plans that meet the demands, the best first, and what they refuse: reason -> types."""

    plans: Sequence[Candidate]
    refused: dict[str, list[str]]


def advice(work: Work, demands: Demands, currency: str, among: Sequence[Offer] | None = None) -> Advice:
    """Return the plans, and why every other offer is none.

    Args:
        currency: its prices come first.
        among: the offers to plan with; None for all.

    Raises:
        DemandsError: the demands contradict one another.
    """
    demands.check()
    planned, refused = list[Candidate](), dict[str, list[str]]()
    for offer in offers() if among is None else among:
        plan = _planned(work, demands, offer)
        if isinstance(plan, Candidate):
            planned.append(plan)
        else:
            refused.setdefault(plan, []).append(offer.name)
    return Advice(ranked(planned, currency), refused)


def _planned(work: Work, demands: Demands, offer: Offer) -> Candidate | str:
    """Return the plan with an offer, or why there is none."""
    somewhere = demands.region or (f"a region of {demands.compliance}" if demands.compliance else "")
    if somewhere and not any(map(demands.allows, _regions(offer))):
        return f"not known to be sold in {somewhere}"
    if peak(offer, work.precision) is None:
        return f"no public {work.precision} rate"
    if offer.price is not None and not demands.allows(offer.price.region):
        offer = replace(offer, price=None, spot=None, interruptions=None)
    plan = plan_of(work, offer, demands.days)
    if plan is None:
        late = demands.days is not None and plan_of(work, offer, None) is not None
        return f"not done in {demands.days:g} days" if late else "too little memory"
    least = demands.interconnect_gbps
    if least is not None and plan.instances > 1 and (offer.network_gbps or 0) < least:
        return f"less than {least:g} Gbit/s between instances"
    return plan if demands.data_gb is None else _with_data(plan, demands, demands.data_gb)


def _regions(offer: Offer) -> Sequence[str]:
    """Return where an offer may be: all regions of its cloud, or of others that of its price."""
    if offer.vendor in set(Cloud):
        return regions.of_cloud(Cloud(offer.vendor))
    return [offer.price.region] if offer.price else []


def _with_data(plan: Candidate, demands: Demands, data_gb: float) -> Candidate | str:
    """Return a plan with the place and cost of its data, or why that cannot be.

    A stack's volumes have the IOPS that its launch templates declare; those of other disks are not published
    for each type, and refuse nothing.
    """
    gib = data_gb * GIGABYTE / GIB
    if plan.offer.nvme_gib is not None and plan.offer.nvme_gib >= gib:
        return replace(plan, data_on=NVME)
    if plan.offer.vendor == Cloud.AWS and (demands.iops or 0) > VOLUME_IOPS:
        return f"data larger than its local NVMe, and {VOLUME_IOPS} IOPS of a volume"
    if plan.offer.vendor not in set(Cloud):
        return replace(plan, data_on="unknown", lacks_data_cost=True)
    quote = prices.load(Cloud(plan.offer.vendor)).quotes["disk"]
    plan = replace(plan, data_on=DISK)
    price = plan.offer.price
    if quote.amount is None or price is None or plan.on_demand is None or quote.region != price.region:
        return replace(plan, lacks_data_cost=True)
    months = Decimal(plan.hours) / HOURS_PER_MONTH
    cost = Money(quote.amount, quote.currency) * (Decimal(gib) * months * plan.instances)
    longer = Decimal(plan.spot_hours or plan.hours) / Decimal(plan.hours)
    return replace(
        plan,
        data_cost=cost,
        on_demand=plan.on_demand + cost,
        spot=None if plan.spot is None else plan.spot + cost * longer,
        spot_p90=None if plan.spot_p90 is None else plan.spot_p90 + cost * longer,
    )
