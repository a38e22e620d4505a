"""Costs of a stack compared with its budget, for metrics, reports and users. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from gpu_fleet_image.controllers.meter import meter
from gpu_fleet_image.controllers.meter.freeze_rules import Freeze, FreezeStage
from gpu_fleet_image.controllers.meter.meter import ReservedUse
from gpu_fleet_image.controllers.meter.meter_state import MeterReading
from gpu_fleet_image.controllers.meter.team_budgets import TeamSpending
from gpu_fleet_image.core.budget_policy import BudgetPolicy
from gpu_fleet_image.core.counting import counted, left_uncounted
from gpu_fleet_image.core.metrics import (
    METRIC_FREEZE,
    METRIC_HOUR_COST,
    METRIC_MONTH_BUDGET,
    METRIC_MONTH_COST,
    METRIC_MONTH_FORECAST,
    METRIC_UNPRICED,
    Figure,
)
from gpu_fleet_image.core.times import format_time

CENT = Decimal("0.01")


@dataclass(frozen=True)
class Spending:
    """Costs of the stack compared with its budget.

    Attributes:
        rates: pool, or ``_shared``, -> present cost of an hour.
        unpriced: number of running instances without a price.
        freeze: the pools' freeze; None if no pool freezes.
        reserved: use of each reservation that is paid for now.
        teams: team with a budget -> its spending.
    """

    currency: str
    budget: BudgetPolicy
    reading: MeterReading
    rates: Mapping[str, Decimal]
    unpriced: int
    freeze: Freeze | None = None
    reserved: tuple[ReservedUse, ...] = ()
    teams: Mapping[str, TeamSpending] = field(default_factory=dict)

    @property
    def rate(self) -> Decimal:
        """Present cost of an hour of all pools."""
        return sum(self.rates.values(), Decimal(0))

    @property
    def at_least(self) -> bool:
        """True if the amounts lack something without a known price."""
        return self.unpriced > 0 or self.reading.at_least or bool(self.budget.lacks)

    @property
    def forecast(self) -> Decimal:
        """Forecast of the month's cost at its end."""
        return meter.forecast(self.reading, self.rate)

    def figures(self) -> list[Figure]:
        """Return the meter's metrics."""
        whole: dict[str, Decimal | int] = {
            METRIC_HOUR_COST: self.rate,
            METRIC_MONTH_COST: self.reading.month_cost,
            METRIC_MONTH_FORECAST: self.forecast,
            METRIC_MONTH_BUDGET: self.budget.monthly,
            METRIC_UNPRICED: self.unpriced,
            METRIC_FREEZE: self.freeze.stage if self.freeze else FreezeStage.OPEN,
        }
        return [
            *(Figure(name, float(value)) for name, value in whole.items()),
            *(Figure(METRIC_HOUR_COST, float(value), pool) for pool, value in self.rates.items()),
            *(Figure(METRIC_MONTH_COST, float(value), pool) for pool, value in self.reading.month.items()),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the spending for the report; money as decimal text."""
        return {
            "currency": self.currency,
            "per_hour": {pool: str(rate) for pool, rate in self.rates.items()},
            "month_to_date": {pool: str(cost.quantize(CENT)) for pool, cost in self.reading.month.items()},
            "month_cost": str(self.reading.month_cost.quantize(CENT)),
            "month_forecast": str(self.forecast.quantize(CENT)),
            "monthly": str(self.budget.monthly),
            "until": format_time(self.reading.until),
            "unpriced_machines": self.unpriced,
            "at_least": self.at_least,
            "reserved": [asdict(use) for use in self.reserved],
            "teams": {name: team.to_json() for name, team in self.teams.items()},
            "assumed": {kind: str(price) for kind, price in self.budget.assumed.items()},
            "freeze": self.freeze.to_json() if self.freeze else None,
        }


def line_of(spending: Spending) -> str:
    """Return the spending in one line."""
    currency, spent, monthly = spending.currency, spending.reading.month_cost, spending.budget.monthly
    share = f" ({spent / monthly:.0%})" if monthly else ""
    at_least = "at least " if spending.at_least else ""
    line = (
        f"{at_least}{spending.rate:,.2f} {currency} an hour; {at_least}{spent:,.2f} of {monthly:,} this month"
        f"{share}, {at_least}{spending.forecast:,.2f} at its end at this pace"
    )
    if spending.unpriced:
        line += f"; {counted(spending.unpriced, 'instance')} without a price: not counted"
    if spending.budget.lacks:
        line += f"; {left_uncounted(spending.budget.lacks)}"
    if spending.budget.borrowed:
        line += f"; by prices of {', '.join(spending.budget.borrowed)}, for want of the region's own"
    for use in spending.reserved:
        where = f"{use.pool} in {use.reservation}" if use.reservation else use.pool
        share = f"{use.used} of {use.paid} reserved instances of {where} in use ({use.used / use.paid:.0%})"
        line += f"; {share}, all are paid for"
    if spending.budget.assumed:
        line += f"; prices assumed by the stack: {', '.join(sorted(spending.budget.assumed))}"
    for name, team in spending.teams.items():
        line += f"; {team.sentence(name, currency)}"
    freeze = spending.freeze
    if freeze and freeze.stage is not FreezeStage.OPEN and freeze.since:
        line += f"; pools that freeze are {freeze.stage.word} since {format_time(freeze.since)}"
    return line
