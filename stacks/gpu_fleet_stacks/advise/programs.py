"""The advice for programs: what a run needs, and the ranking, as JSON or CSV. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.shared_options import CSV
from gpu_fleet_stacks.advise import scorecard_page
from gpu_fleet_stacks.advise.plan import GIB, Candidate, affordable, facts
from gpu_fleet_stacks.advise.scorecard import Card
from gpu_fleet_stacks.advise.work import Work, state_bytes
from gpu_fleet_stacks.catalog.money import Money

COLUMNS = (
    *("type", "vendor", "comparison", "instances", "gpus", "gpu_model", "spread", "gib_per_gpu", "hours"),
    *("on_demand", "spot", "spot_p90", "currency", "in_budget", "price_region", "price_date"),
    *("spot_hours", "spot_at_least", "data_on", "data_cost"),
)


@dataclass(frozen=True)
class Choice:
    """The plans that a stack can use and the budget pays for.

    Attributes:
        most: the budget; None for none.
        paid: the cheapest first; the first one is recommended.
        on_spot: none of them fits the budget on demand.
    """

    most: Money | None
    paid: Sequence[Candidate]
    on_spot: bool

    @property
    def best(self) -> Candidate | None:
        """The recommended plan; None where there is none."""
        return self.paid[0] if self.paid else None

    def why(self) -> str:
        """Return the reason for the best plan."""
        market = "on spot" if self.on_spot else "on demand"
        costs = [(plan.spot if self.on_spot else plan.on_demand) for plan in self.paid]
        own = costs[0].currency if costs[0] else ""
        alike = [
            (plan, cost) for plan, cost in zip(self.paid, costs, strict=True) if cost and cost.currency == own
        ]
        whole = f"of {len(alike)}" if self.most is None else f"of {len(alike)} within {self.most}"
        others = f" in {own}" if len(alike) < len(self.paid) else ""
        reason = f"is the cheapest {market} {whole}{others}"
        if len(alike) == 1:
            return reason
        after, cost = alike[1]
        return f"{reason}; next is {after.instances} x {after.offer.name} for {cost}"


def text(work: Work, ranked: Sequence[Candidate], choice: Choice, cards: Sequence[Card], form: str) -> str:
    """Return the advice in a form; docs/reference/json.md has the keys."""
    rows = [_row(plan, choice.most) for plan in ranked]
    if form == CSV:
        return csv_text(COLUMNS, rows)
    document = {
        "parameters": work.parameters,
        "tokens": work.tokens,
        "operations": work.flops,
        "state_gib": round(state_bytes(work.parameters) / GIB, 1),
        "hours_error": facts()["utilisation"]["held_out_error"],
        "plans": rows,
        "recommended": None if choice.best is None else choice.best.offer.name,
        "why": None if choice.best is None else choice.why(),
        "scorecard": scorecard_page.document(cards),
    }
    return json.dumps(document, indent=1) + "\n"


def _row(plan: Candidate, most: Money | None) -> dict[str, object]:
    offer, costs = plan.offer, (plan.on_demand, plan.spot, plan.spot_p90)
    on_demand, spot, spot_p90 = (None if cost is None else f"{cost.amount:.2f}" for cost in costs)
    return {
        "type": offer.name,
        "vendor": str(offer.vendor),
        "comparison": offer.comparison,
        "instances": plan.instances,
        "gpus": plan.gpus,
        "gpu_model": offer.gpu_model,
        "spread": str(plan.layout),
        "gib_per_gpu": round(plan.memory.total / GIB, 1),
        "hours": round(plan.hours, 1),
        "on_demand": on_demand,
        "spot": spot,
        "spot_p90": spot_p90,
        "currency": None if plan.on_demand is None else plan.on_demand.currency,
        "in_budget": affordable(plan, most) or None,
        "price_region": offer.price.region if offer.price else None,
        "price_date": offer.price.date.isoformat() if offer.price else None,
        "spot_hours": None if plan.spot_hours is None else round(plan.spot_hours, 1),
        "spot_at_least": plan.spot_at_least,
        "data_on": plan.data_on or None,
        "data_cost": None if plan.data_cost is None else f"{plan.data_cost.amount:.2f}",
    }
