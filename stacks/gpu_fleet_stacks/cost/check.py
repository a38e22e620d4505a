"""``gpu-fleet check STACK``: checks a stack file and its budget without calling a cloud."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from gpu_fleet_image.core.shared_options import json_option
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.core.errors import SettingsError, StacksError
from gpu_fleet_stacks.cost import notice, view
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import Cost, hold_to_budget, warnings
from gpu_fleet_stacks.settings import Pool, Stack, stack_files
from gpu_fleet_stacks.settings.neighbours import group_labels
from gpu_fleet_stacks.settings.quantities import Level, instances
from gpu_fleet_stacks.settings.stack_argument import stack_argument


@click.command(epilog="\b\nExample:\n  gpu-fleet check aws-dev")
@stack_argument
@json_option
def check(name: str, *, as_json: bool) -> None:
    """Check a stack file: its keys, the stacks beside it, and the worst month against its budget.

    Needs neither a cloud nor the CLI.
    """
    if as_json:
        document = checked(name)
        click.echo(json.dumps(document, indent=1))
        sys.exit(0 if document["ok"] else 1)
    stack = stack_files.alone_of(name)
    cost = estimate(stack)
    for warning in said_of(stack, cost):
        click.echo(f"warning: {warning}", err=True)
    hold_to_budget(cost, stack.budget.monthly, allow_overcommit=stack.budget.allow_overcommit)
    click.echo("\n".join(verdict(stack, cost)))


def said_of(stack: Stack, cost: Cost) -> list[str]:
    """Return the lines about a valid stack."""
    no_image = notice.image_warning(stack)
    return [*warnings(cost, prices.today()), *([no_image] if no_image else [])]


def checked(name: str) -> dict[str, Any]:
    """Return the same as a document, also of a stack that is refused; docs/reference/json.md has its keys."""
    document: dict[str, Any] = {
        "stack": name,
        "ok": False,
        "error": "",
        "problems": [],
        "warnings": [],
        "cloud": "",
        "region": "",
        "account_id": "",
        "pools": [],
        "cost": None,
    }
    try:
        stack = stack_files.alone_of(name)
        cost = estimate(stack)
        document |= {
            "cloud": str(stack.cloud),
            "region": stack.region,
            "account_id": stack.account_id,
            "pools": [
                {"name": pool.name, "types": list(pool.types), "max": instances(stack, pool)[Level.MAX]}
                for pool in stack.pools
            ],
            "warnings": said_of(stack, cost),
            "cost": view.output(cost, stack.budget.monthly),
        }
        hold_to_budget(cost, stack.budget.monthly, allow_overcommit=stack.budget.allow_overcommit)
    except StacksError as error:
        problems = error.problems if isinstance(error, SettingsError) else ()
        rows = [{"key": row.key, "value": str(row.value), "allowed": row.allowed} for row in problems]
        return document | {"error": str(error), "problems": rows}
    return document | {"ok": True}


def verdict(stack: Stack, cost: Cost) -> Iterator[str]:
    """Yield the size and cost of a valid stack, line by line."""
    pools = ", ".join(f"{pool.name} ({room(stack, pool)})" for pool in stack.pools)
    yield f"{stack.name}: OK; {stack.cloud} {stack.region}, pools {pools}"
    yield view.summary(cost, stack.budget.monthly)
    yield notice.image_line(stack)
    if stack.budget.allow_overcommit:
        yield "budget.allow_overcommit is true: the worst month may pass the budget"


def room(stack: Stack, pool: Pool) -> str:
    """Return how many instances of which types a pool allows; each group may grow to ``size.max``."""
    if pool.drains:
        return "takes no new instances; what still runs there is not counted"
    *others, last = pool.types
    types = f"{', '.join(others)} or {last}" if others else last
    most = f"up to {instances(stack, pool)[Level.MAX]} {types}"
    groups = group_labels(stack, pool)
    return (
        most if len(groups) == 1 else f"{most}: {pool.size.max} in each of {', '.join(stack.zones_of(pool))}"
    )
