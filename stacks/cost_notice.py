"""A stack's cost within its Pulumi program: said in every preview, kept as an output, held to the budget."""

import datetime
import os
from typing import Any

import pulumi

from stacks import cost_change, cost_view
from stacks.cost import hold_to_budget, warnings
from stacks.cost_lines import estimate
from stacks.settings import Stack


def announce(stack: Stack) -> dict[str, Any]:
    """Log what the stack will cost, and how that differs from what is deployed, before anything is declared.

    Returns:
        The output ``cost``; the next preview compares itself with it.

    Raises:
        OvercommitError: the worst month passes ``budget.monthly`` and the settings do not allow that.
        CurrencyError: a price has no rate to the budget's currency.
    """
    cost = estimate(stack)
    monthly = stack.budget.monthly
    hold_to_budget(cost, monthly, allow_overcommit=stack.budget.allow_overcommit)
    said = [cost_view.summary(cost, monthly)]
    try:
        said.append(cost_change.sentence(cost, cost_change.deployed(os.environ)))
    except cost_change.DeployedCostError as error:
        # what another version of this program exported must not stand in the way of deploying this one
        pulumi.log.warn(f"cost of {cost.stack}: no difference to the deployed stack: {error}")
    pulumi.log.info("; ".join(part for part in said if part))
    for warning in warnings(cost, datetime.datetime.now(datetime.UTC).date()):
        pulumi.log.warn(f"cost of {cost.stack}: {warning}")
    return cost_view.output(cost, monthly)
