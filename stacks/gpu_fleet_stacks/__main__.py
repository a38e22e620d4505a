"""``python -m gpu_fleet_stacks COMMAND STACK``: the platform team's part of ``gpu-fleet``, an older name."""

import sys

import click

from gpu_fleet_stacks.cost.check import check
from gpu_fleet_stacks.cost.command import cost
from gpu_fleet_stacks.errors import StacksError
from gpu_fleet_stacks.guard.pulumi_command import outputs, preview, up
from gpu_fleet_stacks.preflight.command import preflight

main = click.Group(
    "gpu_fleet_stacks",
    help="Check stack files, and hand them to the Pulumi CLI.",
    commands=[check, cost, preflight, preview, up, outputs],
)

if __name__ == "__main__":
    try:
        main()
    except StacksError as error:
        sys.exit(f"error: {error}")
