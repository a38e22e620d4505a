"""What every preview and update says of a stack: its cost, what the change costs, whether it is reaped.

The deployed cost is the stack's own output ``cost``, as ``pulumi stack output cost --json`` prints it. The
program cannot ask for it: a stack that reads its own outputs needs a backend, and the first preview has none
to read. So ``gpu-fleet preview|up`` asks before it starts the program, and hands it over in an
environment variable; a bare ``pulumi preview`` says the cost alone, and shows the output's difference.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pulumi

from stacks.catalog.money import CENT, Money
from stacks.cost import lines, view
from stacks.cost.estimate import estimate
from stacks.cost.lines import Cost, hold_to_budget, warnings
from stacks.errors import StacksError
from stacks.settings import Stack
from stacks.settings.quantities import Level

VARIABLE = "GPU_FLEET_DEPLOYED_COST"


class DeployedCostError(StacksError):
    """What stands for the deployed cost is no output of this program."""


@dataclass(frozen=True)
class Deployed:
    """What the deployed stack costs a month, at most.

    Attributes:
        now: with as many instances as it starts with.
        worst: with every pool at its maximum.
    """

    now: Money
    worst: Money


def deployed(environ: Mapping[str, str]) -> Deployed | None:
    """The deployed cost that was handed over; None where none was, or nothing is deployed.

    Raises:
        DeployedCostError: naming the variable and what it should hold.
    """
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        output = json.loads(text)
        currency = str(output["currency"])
        now = Decimal(output["month"][str(Level.NOW)]["high"])
        worst = Decimal(output["worst_month"])
    except (ValueError, KeyError, TypeError, InvalidOperation) as error:
        raise DeployedCostError(
            f"{VARIABLE} = {text[:60]!r}: must be the stack's output cost as JSON, or empty"
        ) from error
    return Deployed(Money(now, currency), Money(worst, currency))


def sentence(cost: Cost, before: Deployed | None) -> str:
    """How the cost differs from the deployed one, now and at worst; empty where nothing is known of it.

    A budget that moved to another currency leaves nothing to compare.
    """
    if before is None:
        return ""
    if before.now.currency != cost.currency:
        return f"deployed: in {before.now.currency}, not comparable"
    now = _signed(cost.month(Level.NOW).high - before.now)
    worst = _signed(cost.worst_month - before.worst)
    if {now, worst} == {None}:
        return "deployed: the same"
    return f"deployed: {now or '0.00'} a month now, {worst or '0.00'} at worst, {cost.currency}"


def _signed(change: Money) -> str | None:
    """``+12.30``; None for less than half a cent."""
    amount = change.amount.quantize(CENT)
    return f"{amount:+,}" if amount else None


def announce_cost(stack: Stack) -> dict[str, Any]:
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
    said = [view.summary(cost, monthly)]
    try:
        said.append(sentence(cost, deployed(os.environ)))
    except DeployedCostError as error:
        # what another version of this program exported must not stand in the way of deploying this one
        pulumi.log.warn(f"cost of {cost.stack}: no difference to the deployed stack: {error}")
    pulumi.log.info("; ".join(part for part in said if part))
    for warning in warnings(cost, lines.today()):
        pulumi.log.warn(f"cost of {cost.stack}: {warning}")
    return view.output(cost, monthly)


def image_warning(stack: Stack) -> str:
    """One sentence; empty where agent and gate come up. Pure."""
    if stack.image.managed:
        return ""
    return (
        "image.mode = 'none': nothing is reaped here: instances run no agent, gate or trainer, carry no "
        "gpu-fleet:managed, and cost money until they are terminated; bootstrap brings all of it"
    )


def image_line(stack: Stack) -> str:
    """Which image instances boot, and where agent, gate and trainer come from. Pure."""
    image = stack.image
    named = image.id or f"what {image.parameter} names"
    if image.follows_builds:
        return (
            f"image: the newest build that passed its tests (`gpu-fleet image build {stack.name}`); until "
            f"the first has ended {named}, bootstrapped"
        )
    return f"image: {named}, {image.mode.in_words}"


def announce_image(stack: Stack) -> None:
    """Say it in the preview and the update, before anything is declared."""
    if said := image_warning(stack):
        pulumi.log.warn(said)
