"""``gpu-fleet check STACK``: is a stack file sound; asks no cloud."""

import click

from stacks import image_notice, stack_files
from stacks.stack_name import StackName


@click.command(epilog="\b\nExample:\n  gpu-fleet check aws-dev")
@click.argument("name", metavar="STACK", type=StackName())
def check(name: str) -> None:
    """Check a stack file; needs neither a cloud nor the CLI."""
    stack = stack_files.settings_of(name)
    pools = ", ".join(f"{pool.name} (up to {pool.size.max} {pool.types[0]})" for pool in stack.pools)
    click.echo(f"{name}: sound; {stack.cloud} {stack.region}, pools {pools}")
    if warning := image_notice.warning(stack):
        click.echo(f"warning: {warning}", err=True)
