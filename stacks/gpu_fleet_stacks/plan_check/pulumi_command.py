"""``gpu-fleet preview|up|outputs STACK``: run the Pulumi CLI, and find mistakes before it starts."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from gpu_fleet_image.core import listing
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.shared_options import CSV, JSON, form_option, note
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.cost import notice
from gpu_fleet_stacks.plan_check import deploy, policy_pack
from gpu_fleet_stacks.settings import projects, stack_files
from gpu_fleet_stacks.settings.stack_argument import (
    PassingOn,
    StackName,
    stack_and_word,
    stack_argument,
    stack_option,
)

CLI_ADVICE = (
    "the Pulumi CLI is not on PATH. Get it from https://www.pulumi.com/docs/iac/download-install/ "
    "(3.260 or newer), log in with `pulumi login` (or `pulumi login --local`), and run this again"
)
# Flags of the CLI that this command sets itself -> what to do instead.
REFUSED = {
    "--stack": "it is the argument STACK",
    "--cwd": "the program is that of the project; gpu-fleet --dir names another",
    "--config": "write it into the stack file",
    "--config-path": "write it into the stack file",
    "--config-file": "the stack file was checked, and another would not be",
    "--policy-pack": f"{policy_pack.NAME} is loaded; --no-policy leaves it out",
    "--policy-pack-config": "the pack reads its own profiles.toml",
}
SHORT = {"s": "--stack", "C": "--cwd", "c": "--config"}
TAKE_A_VALUE = "mptv"  # --message, --parallel, --target, --verbose: the rest of the word is their value
PIPE_WIDTH = 160


REPLACE = click.option(
    "--replace",
    metavar="NAME",
    multiple=True,
    help="Let the change lose NAME, which holds data and was backed up; again for each.",
)


def refuse(arguments: Sequence[str]) -> None:
    """Refuse flags that would undo a check or contradict this command.

    Args:
        arguments: the user's words after ``--``.

    Raises StacksError, which names the argument and what to do instead.
    """
    if arguments and not arguments[0].startswith("-"):
        raise StacksError(
            f"{arguments[0]!r} after --: allowed are flags of the Pulumi CLI, such as -- --diff"
        )
    for argument in arguments:
        name = flag_of(argument)
        if name in REFUSED:
            raise StacksError(f"{argument!r} after --: not allowed, {REFUSED[name]}")
        if argument == "--":
            raise StacksError("'--' twice: allowed are flags of the Pulumi CLI, such as -- --diff")


def flag_of(argument: str, letters: Mapping[str, str] = SHORT) -> str:
    """Return the flag as the CLI reads it: ``--stack=x``, ``-s``, ``-sx`` and ``-ysx`` are ``--stack``."""
    if argument.startswith("--") or not argument.startswith("-"):
        return argument.partition("=")[0]
    for letter in argument[1:]:
        if letter in letters:
            return letters[letter]
        if letter in SHORT or letter in TAKE_A_VALUE:
            break
    return argument


def pulumi(
    command: str,
    name: str,
    arguments: Sequence[str] = (),
    *,
    policy: bool = True,
    replace: Sequence[str] = (),
) -> int:
    """Run one command of the Pulumi CLI on a checked stack; return its exit code.

    Args:
        command: ``preview`` or ``up``.
        replace: logical names of resources that hold data and may be lost.

    Raises:
        StacksError: the stack file or an argument is wrong, or the CLI or the pack's environment is missing;
            or the change would lose data, and nothing was touched.
    """
    refuse(arguments)
    stack = stack_files.alone_of(name)
    executable = cli()
    root = projects.root()
    pack = ["--policy-pack", policy_pack.ready(root, note).flag] if policy else []
    selected = subprocess.run([executable, "stack", "select", "--create", name], cwd=root, check=False)
    if selected.returncode:
        return selected.returncode
    environ = os.environ | {notice.VARIABLE: deployed_cost(executable, name)}
    deployment = deploy.Deployment(executable, stack, root, environ, arguments)
    run = {"preview": deploy.preview, "up": deploy.up}[command]
    return run(deployment, *pack, replace=replace)


def cli() -> str:
    """Return the CLI's path; raise StacksError with its download address where it is missing."""
    executable = shutil.which("pulumi")
    if executable is None:
        raise StacksError(CLI_ADVICE)
    return executable


def deployed_cost(executable: str, name: str) -> str:
    """Return the output ``cost`` of the deployed stack as JSON; empty before the first ``up``."""
    asked = [executable, "stack", "output", "cost", "--json", "--stack", name]
    done = subprocess.run(asked, cwd=projects.root(), capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def deployed(name: str) -> dict[str, Any]:
    """Return every output of the deployed stack. Raises StacksError."""
    stack_files.path_of(name)
    asked = [cli(), "stack", "output", "--json", "--stack", name]
    done = subprocess.run(asked, cwd=projects.root(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise StacksError(f"the outputs of {name} cannot be read: {done.stderr.strip()}")
    try:
        values: dict[str, Any] = json.loads(done.stdout or "{}")
    except ValueError as error:
        raise StacksError(f"the outputs of {name} are not JSON: {error}") from error
    return values


@click.command(
    cls=PassingOn, epilog="\b\nExamples:\n  gpu-fleet preview aws-dev\n  gpu-fleet preview aws-dev -- --diff"
)
@stack_argument
@click.option("--no-policy", is_flag=True, help=f"Do not load {policy_pack.NAME}.")
@REPLACE
@click.argument("arguments", metavar="[-- PULUMI-FLAG...]", nargs=-1, type=click.UNPROCESSED)
def preview(name: str, arguments: tuple[str, ...], *, no_policy: bool, replace: tuple[str, ...]) -> None:
    """Show what `up` would change; flags after -- go to `pulumi preview`."""
    sys.exit(pulumi("preview", name, arguments, policy=not no_policy, replace=replace))


@click.command(cls=PassingOn, epilog="\b\nExamples:\n  gpu-fleet up aws-dev\n  gpu-fleet up aws-dev -- --yes")
@stack_argument
@click.option("--no-policy", is_flag=True, help=f"Do not load {policy_pack.NAME}.")
@REPLACE
@click.argument("arguments", metavar="[-- PULUMI-FLAG...]", nargs=-1, type=click.UNPROCESSED)
def up(name: str, arguments: tuple[str, ...], *, no_policy: bool, replace: tuple[str, ...]) -> None:
    """Create or update the stack; flags after -- go to `pulumi up`."""
    sys.exit(pulumi("up", name, arguments, policy=not no_policy, replace=replace))


@click.command(epilog="\b\nExamples:\n  gpu-fleet outputs aws-dev\n  gpu-fleet outputs aws-dev dashboard_url")
@click.argument("words", metavar="[STACK] [NAME]", nargs=-1, type=StackName())
@stack_option
@form_option
def outputs(words: tuple[str, ...], form: str) -> None:
    """Print the outputs of a deployed stack: all of them, or only the value NAME."""
    name, output = stack_and_word(words)
    values = deployed(name)
    if output is not None and output not in values:
        near = get_close_matches(output, values, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise StacksError(f"no output {output!r}; known: {', '.join(values) or 'none'}{hint}")
    chosen: Any = values if output is None else values[output]
    if form == JSON:
        click.echo(json.dumps(chosen, indent=2))
    elif form == CSV:
        shown = values if output is None else {output: chosen}
        rows = ({"output": key, "value": _text(value)} for key, value in sorted(shown.items()))
        click.echo(csv_text(("output", "value"), rows), nl=False)
    elif output is None:
        listing.console(PIPE_WIDTH).print(table(values))
    else:
        click.echo(chosen if isinstance(chosen, str) else json.dumps(chosen, indent=2))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def table(values: dict[str, Any]) -> Table:
    """Return the outputs as a table for a terminal, with whole values."""
    made = Table(box=None, header_style="bold")
    made.add_column("output", no_wrap=True)
    made.add_column("value", overflow="fold")
    for key, value in sorted(values.items()):
        made.add_row(key, Text(_text(value)))  # [true] is no markup
    return made
