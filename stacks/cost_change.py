"""What a change costs: the cost of a stack beside that of the same stack as it is deployed. Pure.

The deployed cost is the stack's own output ``cost``, as ``pulumi stack output cost --json`` prints it. The
program cannot ask for it: a stack that reads its own outputs needs a backend, and the first preview has none
to read. So ``gpu-fleet preview|up`` asks before it starts the program, and hands it over in an
environment variable; a bare ``pulumi preview`` says the cost alone, and shows the output's difference.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from stacks.cost import Cost, Level
from stacks.errors import StacksError
from stacks.money import CENT, Money

VARIABLE = "GPU_FLEET_DEPLOYED_COST"


class DeployedCostError(StacksError):
    """What stands for the deployed cost is no output of this program."""


@dataclass(frozen=True)
class Deployed:
    """What the deployed stack costs a month, at most.

    Attributes:
        now: with as many machines as it starts with.
        worst: with every pool at its maximum.
    """

    now: Money
    worst: Money


def deployed(environ: Mapping[str, str]) -> Deployed | None:
    """The deployed cost that somebody handed over; None where nobody did, or nothing is deployed.

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
