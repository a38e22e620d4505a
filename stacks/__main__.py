"""``python -m stacks COMMAND STACK``: the Pulumi CLI with the mistakes caught before it starts."""

import os
import shutil
import subprocess
import sys

import click

from stacks import cost_change, cost_command, stack_files
from stacks.errors import StacksError
from stacks.preflight.command import preflight

ROOT = stack_files.FOLDER.parent
CLI_ADVICE = (
    "the Pulumi CLI is not on PATH. Get it from https://www.pulumi.com/docs/iac/download-install/ "
    "(3.260 or newer), log in with `pulumi login` (or `pulumi login --local`), and run this again"
)


def pulumi(command: str, name: str) -> int:
    """Run one command of the Pulumi CLI on a stack that was checked; returns its exit code.

    Raises:
        StacksError: when the stack file is wrong or the CLI is missing.
    """
    stack_files.settings_of(name)
    executable = shutil.which("pulumi")
    if executable is None:
        raise StacksError(CLI_ADVICE)
    selected = subprocess.run([executable, "stack", "select", "--create", name], cwd=ROOT, check=False)
    if selected.returncode:
        return selected.returncode
    environ = os.environ | {cost_change.VARIABLE: deployed_cost(executable, name)}
    done = subprocess.run([executable, command, "--stack", name], cwd=ROOT, env=environ, check=False)
    return done.returncode


def deployed_cost(executable: str, name: str) -> str:
    """The output ``cost`` of the deployed stack as JSON; empty before the first ``up``."""
    asked = [executable, "stack", "output", "cost", "--json", "--stack", name]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@click.group()
def main() -> None:
    """Check stack files, and hand sound ones to the Pulumi CLI."""


@main.command()
@click.argument("name", metavar="STACK")
def check(name: str) -> None:
    """Check a stack file; needs neither a cloud nor the CLI."""
    stack = stack_files.settings_of(name)
    pools = ", ".join(f"{pool.name} (up to {pool.size.max} {pool.types[0]})" for pool in stack.pools)
    click.echo(f"{name}: sound; {stack.cloud} {stack.region}, pools {pools}")


main.add_command(cost_command.cost)
main.add_command(preflight)


@main.command()
@click.argument("name", metavar="STACK")
def preview(name: str) -> None:
    """Show what would change."""
    sys.exit(pulumi("preview", name))


@main.command()
@click.argument("name", metavar="STACK")
def up(name: str) -> None:
    """Stand the stack up."""
    sys.exit(pulumi("up", name))


if __name__ == "__main__":
    try:
        main()
    except StacksError as error:
        sys.exit(f"error: {error}")
