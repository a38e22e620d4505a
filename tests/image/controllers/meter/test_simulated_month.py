"""A month by chance: the meter is near the exact cost, and chargeback and FOCUS say what the meter says."""

from decimal import Decimal

import pytest

from gpu_fleet_image.console.operators import focus
from gpu_fleet_image.controllers.meter.chargeback import BY, CENT, Attribution, charges
from tests.image.console.operators.test_focus import ACCOUNT, POLICY
from tests.image.controllers.meter import simulated_month


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(2, 12))])
def test_a_month_costs_what_the_meter_counts_by_every_key_and_as_focus(seed):
    known = simulated_month.lives(seed)
    reading, days = simulated_month.metered(known, seed)
    everything = [*days, reading.day]
    cost = reading.month_cost.quantize(CENT)
    jobs = simulated_month.jobs(known, seed)
    attribution = Attribution(jobs=jobs, queued={"held"})

    for by in BY:
        rows = charges(everything, {}, by, BUDGET_GPUS, reading.month_cost, attribution=attribution)
        assert sum(row.cost for row in rows) == cost
        assert "(before the days on record)" not in {row.name for row in rows}
    found = list(focus.rows(everything, reading.month_cost, POLICY, ACCOUNT, teams={}, jobs=jobs))
    assert sum(Decimal(row["BilledCost"]) for row in found) == reading.month_cost
    hours = {row.name: row.rented for row in charges(everything, {}, "run", {}, attribution=attribution)}
    for name in ("eve/gpt", "bob/wrap"):
        spent = sum(seconds.get(name, 0) for used in jobs.values() for seconds in used.values())
        assert float(hours[name]) == pytest.approx(spent / 3600 * BUDGET_GPUS["held"], rel=0.01)
    assert abs(reading.month_cost / simulated_month.exact(known) - 1) < Decimal("0.001")


BUDGET_GPUS = simulated_month.BUDGET.gpus_of_pools()
