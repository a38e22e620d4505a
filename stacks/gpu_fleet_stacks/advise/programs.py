"""The advice for programs: what a run needs, and the ranking, as JSON or CSV. Pure."""

import json
from collections.abc import Sequence

from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.shared_options import CSV
from gpu_fleet_stacks.advise.plan import GIB, Candidate, affordable
from gpu_fleet_stacks.advise.work import Work, state_bytes
from gpu_fleet_stacks.catalog.money import Money

COLUMNS = (
    *("type", "vendor", "comparison", "instances", "gpus", "gpu_model", "spread", "gib_per_gpu", "hours"),
    *("on_demand", "spot", "spot_p90", "currency", "in_budget", "price_region", "price_date"),
)


def text(
    work: Work, ranked: Sequence[Candidate], most: Money | None, best: Candidate | None, form: str
) -> str:
    """Return the advice in a form; docs/reference/json.md has the keys."""
    rows = [_row(plan, most) for plan in ranked]
    if form == CSV:
        return csv_text(COLUMNS, rows)
    document = {
        "parameters": work.parameters,
        "tokens": work.tokens,
        "operations": work.flops,
        "state_gib": round(state_bytes(work.parameters) / GIB, 1),
        "plans": rows,
        "recommended": None if best is None else best.offer.name,
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
    }
