"""``python -m stacks COMMAND STACK``: the platform team's part of ``gpu-fleet``, by its older name."""

import sys

import click

from stacks.cost.check import check
from stacks.cost.command import cost
from stacks.errors import StacksError
from stacks.guard.pulumi_command import outputs, preview, up
from stacks.preflight.command import preflight

main = click.Group(
    "stacks",
    help="Check stack files, and hand them to the Pulumi CLI.",
    commands=[check, cost, preflight, preview, up, outputs],
)

if __name__ == "__main__":
    try:
        main()
    except StacksError as error:
        sys.exit(f"error: {error}")
