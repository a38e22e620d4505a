"""A stack's cost within its Pulumi program: said in every preview, kept as an output, held to the budget."""

import datetime
from typing import Any

import pulumi

from stacks import cost_view
from stacks.cost import hold_to_budget, warnings
from stacks.cost_lines import estimate
from stacks.settings import Stack


def announce(stack: Stack) -> dict[str, Any]:
    """Log what the stack will cost, before anything is declared.

    Returns:
        The output ``cost``; a preview shows how it differs from the deployed one.

    Raises:
        OvercommitError: the worst month passes ``budget.monthly`` and the settings do not allow that.
        CurrencyError: a price has no rate to the budget's currency.
    """
    cost = estimate(stack)
    monthly = stack.budget.monthly
    hold_to_budget(cost, monthly, allow_overcommit=stack.budget.allow_overcommit)
    pulumi.log.info(cost_view.summary(cost, monthly))
    for warning in warnings(cost, datetime.datetime.now(datetime.UTC).date()):
        pulumi.log.warn(f"cost of {cost.stack}: {warning}")
    return cost_view.output(cost, monthly)
