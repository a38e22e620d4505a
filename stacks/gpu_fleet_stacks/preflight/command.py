"""``gpu-fleet preflight STACK``: ask the cloud, before an ``up``, whether it has capacity for the stack."""

import importlib
import sys
from collections.abc import Iterator

import click

from gpu_fleet_image.core import listing
from gpu_fleet_image.core.shared_options import TABLE, form_option
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.preflight import report
from gpu_fleet_stacks.preflight.findings import Finding, Rating, exit_code
from gpu_fleet_stacks.settings import Stack, stack_files
from gpu_fleet_stacks.settings.stack_argument import stack_argument

PIPE_WIDTH = 140


def look(stack: Stack) -> Iterator[Finding]:
    """Yield each answer when it arrives; without credentials one finding, since every call would fail."""
    # an SDK takes a second to load: load only that of the stack's cloud
    cloud = importlib.import_module(f"gpu_fleet_stacks.preflight.{stack.cloud}")
    try:
        yield from cloud.look(stack)
    except CannotCheckError as error:
        yield Finding("account", Rating.UNCHECKED, f"could not be checked, so nothing else was: {error}")


@click.command(epilog="\b\nExample:\n  gpu-fleet preflight aws-prod")
@stack_argument
@form_option
def preflight(name: str, form: str) -> None:
    """Ask the cloud whether it has capacity for a stack: quotas, types, spot, image, key, budget.

    Reads only. Exit code 0: there is capacity; 1: something is missing; 3: something could not be checked,
    and nothing else is known to be missing.
    """
    stack = stack_files.settings_of(name)
    if form != TABLE:
        findings = list(look(stack))
        click.echo(report.text(name, findings, form), nl=False)
        sys.exit(exit_code(findings))
    console = listing.console(PIPE_WIDTH)
    findings = []
    with console.status(f"asking {stack.cloud}") as status:
        for finding in look(stack):
            findings.append(finding)
            status.update(f"asking {stack.cloud}: {finding.subject}")
    console.print(report.page(name, findings))
    sys.exit(exit_code(findings))
