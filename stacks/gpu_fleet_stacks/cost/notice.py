"""Messages of each preview and update: the cost, its change, and whether instances are ever terminated.

The deployed cost is the stack's own output ``cost``, as ``pulumi stack output cost --json`` prints it. The
program cannot read it itself: a stack that reads its own outputs needs a backend, and the first preview has
no output. So ``gpu-fleet preview|up`` reads it before it starts the program, and passes it in an environment
variable. A bare ``pulumi preview`` shows the new cost alone, beside the output's difference.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any

from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.catalog.money import CENT, Money
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.cost import view
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import Cost, hold_to_budget, warnings
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.quantities import Level

VARIABLE = "GPU_FLEET_DEPLOYED_COST"


class DeployedCostError(StacksError):
    """The variable for the deployed cost does not hold an output of this program."""


@dataclass(frozen=True)
class Deployed:
    """Highest monthly cost of the deployed stack.

    Attributes:
        now: with as many instances as it starts with.
        worst: with every pool at its maximum.
    """

    now: Money
    worst: Money


def deployed(environ: Mapping[str, str]) -> Deployed | None:
    """Return the deployed cost from the environment; None where none was passed, or nothing is deployed.

    Raises DeployedCostError, which names the variable and what it should hold.
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
    """Describe the change from the deployed cost, at the start and at worst; empty without a deployed cost.

    Amounts in two currencies are not compared.
    """
    if before is None:
        return ""
    if before.now.currency != cost.currency:
        return f"deployed: in {before.now.currency}, not comparable"
    now = _signed(cost.month(Level.NOW).worst - before.now)
    worst = _signed(cost.worst_month - before.worst)
    if {now, worst} == {None}:
        return "deployed: the same"
    return f"deployed: {now or '0.00'} a month now, {worst or '0.00'} at worst, {cost.currency}"


def _signed(change: Money) -> str | None:
    """Format a change as ``+12.30``; None for less than half a cent."""
    amount = change.amount.quantize(CENT)
    return f"{amount:+,}" if amount else None


def announce_cost(stack: Stack) -> dict[str, Any]:
    """Log the cost of the stack and its change from the deployed cost, before anything is declared.

    Returns:
        The output ``cost``; the next preview compares its own cost with it.

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
        # an output of another version of this program must not block this deployment
        _say("warn", f"cost of {cost.stack}: no difference to the deployed stack: {error}")
    _say("info", "; ".join(part for part in said if part))
    for warning in warnings_of(stack, cost, prices.today()):
        _say("warn", f"cost of {cost.stack}: {warning}")
    return view.output(cost, monthly)


def _say(level: str, text: str) -> None:
    """Write into the engine's log.

    Pulumi is imported here because it loads for half a second and `check` needs only the sentences.
    """
    import pulumi  # noqa: PLC0415 - see above

    getattr(pulumi.log, level)(text)


def warnings_of(stack: Stack, cost: Cost, today: date) -> list[str]:
    """Return what to know before trusting the sums of a stack's cost. Pure."""
    return [*warnings(cost, today), *ended(stack, today)]


def ended(stack: Stack, today: date) -> list[str]:
    """Return a warning for each reservation that has ended, which the estimate counts all the same. Pure."""
    return [
        f"reservation {held.id} of pool {pool.name} is past its until, {held.until}: nothing starts there, "
        "and the cost counts it all the same; remove it"
        for pool in stack.pools
        for held in pool.reservations
        if held.ends_at is not None and held.ends_at.date() < today
    ]


def image_warning(stack: Stack) -> str:
    """Return a warning where instances run no agent and gate, else an empty text. Pure."""
    if stack.image.managed:
        return ""
    return (
        "image.mode = 'none': the sweep terminates nothing here: instances run no agent, gate or trainer, "
        "have no tag gpu-fleet:managed, and cost money until you terminate them; bootstrap installs all three"
    )


def image_line(stack: Stack) -> str:
    """Return which image instances boot, and the source of agent, gate and trainer. Pure."""
    image = stack.image
    named = image.id or f"what {image.parameter} names"
    if image.follows_builds:
        return (
            f"image: the newest build that passed its tests (`gpu-fleet image build {stack.name}`); until "
            f"the first has ended {named}, bootstrapped"
        )
    return f"image: {named}, {image.mode.in_words}"


def announce_image(stack: Stack) -> None:
    """Log the warning about the image in the preview and the update, before anything is declared."""
    if said := image_warning(stack):
        _say("warn", said)
