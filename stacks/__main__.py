"""``python -m stacks check|preview|up STACK``: the Pulumi CLI with the mistakes caught before it starts."""

import shutil
import subprocess
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import yaml

from stacks import naming, settings_reader
from stacks.errors import StacksError
from stacks.settings import Stack

FOLDER = Path(__file__).parent
CLI_ADVICE = (
    "the Pulumi CLI is not on PATH. Get it from https://www.pulumi.com/docs/iac/download-install/ "
    "(3.260 or newer), log in with `pulumi login` (or `pulumi login --local`), and run this again"
)


def stack_names() -> list[str]:
    """The stacks that have a file, in alphabetical order."""
    return sorted(
        path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in FOLDER.glob("Pulumi.*.yaml")
    )


def stack_file(name: str) -> Path:
    """The file of a stack.

    Raises:
        StacksError: naming the stacks there are.
    """
    names = stack_names()
    if name not in names:
        close = get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise StacksError(f"no stack {name!r}: there are {', '.join(names)}{hint}")
    return FOLDER / f"Pulumi.{name}.yaml"


def read(name: str) -> Stack:
    """Read and check a stack file without Pulumi.

    Raises:
        StacksError: naming everything that is wrong with it.
    """
    path = stack_file(name)
    try:
        content: dict[str, Any] = yaml.safe_load(path.read_text())["config"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise StacksError(f"{path} is not a stack file: {error}") from error
    prefix = f"{naming.PROJECT}:"
    own = {key.removeprefix(prefix): value for key, value in content.items() if key.startswith(prefix)}
    return settings_reader.from_mapping(name, own)


def pulumi(command: str, name: str) -> int:
    """Run one command of the Pulumi CLI on a stack that was checked; returns its exit code.

    Raises:
        StacksError: when the stack file is wrong or the CLI is missing.
    """
    read(name)
    executable = shutil.which("pulumi")
    if executable is None:
        raise StacksError(CLI_ADVICE)
    root = FOLDER.parent
    selected = subprocess.run([executable, "stack", "select", "--create", name], cwd=root, check=False)
    if selected.returncode:
        return selected.returncode
    return subprocess.run([executable, command, "--stack", name], cwd=root, check=False).returncode


@click.group()
def main() -> None:
    """Check stack files, and hand sound ones to the Pulumi CLI."""


@main.command()
@click.argument("name", metavar="STACK")
def check(name: str) -> None:
    """Check a stack file; needs neither a cloud nor the CLI."""
    stack = read(name)
    pools = ", ".join(f"{pool.name} (up to {pool.size.max} {pool.types[0]})" for pool in stack.pools)
    click.echo(f"{name}: sound; {stack.cloud} {stack.region}, pools {pools}")


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
