"""``gpu-fleet check STACK``: checks a stack file and its budget without calling a cloud."""

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

import click

from gpu_fleet_image.core.shared_options import json_option, note
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.core.errors import SettingsError, StacksError
from gpu_fleet_stacks.cost import notice, view
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import Cost, hold_to_budget
from gpu_fleet_stacks.settings import Pool, Stack, stack_files
from gpu_fleet_stacks.settings.neighbours import shared_networks
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
    stack, others = stack_files.with_neighbours(name)
    cost = estimate(stack)
    for warning in said_of(stack, cost, others):
        note(f"warning: {warning}")
    hold_to_budget(cost, stack.budget.monthly, allow_overcommit=stack.budget.allow_overcommit)
    click.echo("\n".join(verdict(stack, cost)))


def said_of(stack: Stack, cost: Cost, others: Iterable[Stack]) -> list[str]:
    """Return the warnings about a valid stack, of itself and beside the others of its project."""
    no_image = notice.image_warning(stack)
    own = [
        *notice.warnings_of(stack, cost, prices.today()),
        *([no_image] if no_image else []),
    ]
    return [*own, *shared_networks(stack, others)]


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
        "sold": {},
        "cost": None,
    }
    try:
        stack, others = stack_files.with_neighbours(name)
        cost = estimate(stack)
        document |= {
            "cloud": str(stack.cloud),
            "region": stack.region,
            "account_id": stack.account_id,
            "pools": [
                {"name": pool.name, "types": list(pool.types), "max": instances(stack, pool)[Level.MAX]}
                for pool in stack.pools
            ],
            "warnings": said_of(stack, cost, others),
            "sold": {kind: day and day.isoformat() for kind, day in sold(stack).items()},
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
    yield sale_line(stack)
    yield view.summary(cost, stack.budget.monthly)
    yield notice.image_line(stack)
    if stack.budget.allow_overcommit:
        yield "budget.allow_overcommit is true: the worst month may pass the budget"


def sold(stack: Stack) -> dict[str, date | None]:
    """Return each type of the pools -> when a price list of the region had it; None where none is known."""
    names = dict.fromkeys(name for pool in stack.pools for name in pool.types)
    return {name: catalog.sold_on(catalog.load().get(name), stack.region) for name in names}


def sale_line(stack: Stack) -> str:
    """Return in one line which types the region is known to sell, and which not."""
    by_day: dict[date | None, list[str]] = {}
    for name, day in sold(stack).items():
        by_day.setdefault(day, []).append(name)
    unknown = by_day.pop(None, [])
    known = [f"{', '.join(names)} (price list of {day})" for day, names in by_day.items()]
    asked = f"unknown of {', '.join(unknown)}; `gpu-fleet preflight` asks the cloud" if unknown else ""
    return f"sold in {stack.region}: {'; '.join([*known, *([asked] if asked else [])])}"


def room(stack: Stack, pool: Pool) -> str:
    """Return how many instances of which types a pool allows; each group may grow to ``size.max``."""
    if pool.drains:
        return "takes no new instances; what still runs there is not counted"
    *others, last = pool.types
    types = f"{', '.join(others)} or {last}" if others else last
    of_all_groups = instances(stack, pool)[Level.MAX]
    most = f"up to {of_all_groups} {types}"
    if pool.reservations:
        return f"{most}: {', '.join(f'{held.count} in {held.id}' for held in pool.reservations)}"
    if of_all_groups == pool.size.max:
        return most
    return f"{most}: {pool.size.max} in each of {', '.join(stack.zones_of(pool))}"
