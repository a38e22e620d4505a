"""``gpu-fleet check STACK``: checks a stack file and its budget without calling a cloud."""

from collections.abc import Iterator

import click

from stacks.catalog import prices
from stacks.cost import notice, view
from stacks.cost.estimate import estimate
from stacks.cost.lines import Cost, hold_to_budget, warnings
from stacks.settings import Pool, Stack, stack_files
from stacks.settings.neighbours import group_labels
from stacks.settings.quantities import Level, instances
from stacks.settings.stack_files import StackName


@click.command(epilog="\b\nExample:\n  gpu-fleet check aws-dev")
@click.argument("name", metavar="STACK", type=StackName())
def check(name: str) -> None:
    """Check a stack file: its keys, the stacks beside it, and the worst month against its budget.

    Needs neither a cloud nor the CLI.
    """
    stack = stack_files.alone_of(name)
    cost = estimate(stack)
    said = warnings(cost, prices.today())
    if no_image := notice.image_warning(stack):
        said.append(no_image)
    for warning in said:
        click.echo(f"warning: {warning}", err=True)
    hold_to_budget(cost, stack.budget.monthly, allow_overcommit=stack.budget.allow_overcommit)
    click.echo("\n".join(verdict(stack, cost)))


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
    *others, last = pool.types
    types = f"{', '.join(others)} or {last}" if others else last
    most = f"up to {instances(stack, pool)[Level.MAX]} {types}"
    groups = group_labels(stack, pool)
    return (
        most if len(groups) == 1 else f"{most}: {pool.size.max} in each of {', '.join(stack.zones_of(pool))}"
    )
