"""``gpu-fleet destroy STACK``: show the plan, ask, and destroy."""

import importlib
import sys
from typing import Any

import click

from gpu_fleet_image.core.shared_options import note
from gpu_fleet_stacks.settings import Stack, stack_files
from gpu_fleet_stacks.settings.stack_argument import PassingOn, stack_argument
from gpu_fleet_stacks.teardown import engine, page
from gpu_fleet_stacks.teardown.errors import RefusedError, TeardownError
from gpu_fleet_stacks.teardown.plan import KINDS, Wishes
from gpu_fleet_stacks.teardown.run import DRAIN_S, Teardown

ALL = "all"


def cloud_of(stack: Stack) -> Any:
    """Connect to the stack's cloud; only that cloud's SDK is loaded, since each loads for a second."""
    return importlib.import_module(f"gpu_fleet_stacks.teardown.{stack.cloud}").connect(stack)


@click.command(
    cls=PassingOn,
    epilog="\b\nExamples:\n  gpu-fleet destroy aws-dev --dry-run\n"
    "  gpu-fleet destroy aws-dev --delete-data checkpoints --delete-data records",
)
@stack_argument
@click.option("--dry-run", is_flag=True, help="Only show what would be terminated, deleted and kept.")
@click.option("--yes", is_flag=True, help="Do not ask, for scripts.")
@click.option(
    "--delete-data",
    "kinds",
    multiple=True,
    type=click.Choice([*KINDS, ALL]),
    help="Delete this kind of data too, every version of it. Repeat for more; without it data is kept.",
)
@click.option("--terminate-stopped", is_flag=True, help="Also terminate instances that the sweep stopped.")
@click.option(
    "--ignore-holds",
    metavar="REASON",
    default="",
    help="Terminate held instances too; the reason is recorded.",
)
@click.option(
    "--wait-minutes",
    type=click.IntRange(min=1),
    default=DRAIN_S // 60,
    show_default=True,
    help="Time that instances may take to save and shut down.",
)
@click.argument("arguments", metavar="[-- PULUMI-FLAG...]", nargs=-1, type=click.UNPROCESSED)
def destroy(
    name: str,
    kinds: tuple[str, ...],
    ignore_holds: str,
    wait_minutes: int,
    arguments: tuple[str, ...],
    *,
    dry_run: bool,
    yes: bool,
    terminate_stopped: bool,
) -> None:
    """Drain a stack's instances and delete the stack; data and its key stay unless --delete-data names them.

    Each group's lifecycle hook lets trainer and agent save before an instance terminates. Flags after -- go
    to `pulumi destroy`. If the command was interrupted, run it again to continue.
    """
    engine.refuse(arguments)
    stack = stack_files.settings_of(name)
    reason = " ".join(ignore_holds.split())
    wishes = Wishes(frozenset(KINDS if ALL in kinds else kinds), terminate_stopped, reason)
    message = "gpu-fleet destroy" + (f", holds ignored: {reason}" if reason else "")
    teardown = Teardown(
        stack,
        cloud_of(stack),
        engine.Engine(name, arguments, message),
        wishes,
        note=note,
        drain_s=wait_minutes * 60,
    )
    resources, decided = teardown.look()
    if not resources:
        click.echo(f"{name} has no resources; nothing to destroy")
        return
    for line in page.lines(stack, decided):
        click.echo(line)
    if decided.refusals:
        raise RefusedError(name, decided.refusals)
    if dry_run:
        click.echo("\ndry run: nothing was touched")
        return
    if not yes:
        confirm(name)
    for line in page.afterwards(stack, teardown.run(resources, decided)):
        click.echo(line)


def confirm(name: str) -> None:
    """Ask the user to type the stack's name.

    Raises TeardownError if the user typed something else, or standard input is no terminal.
    """
    if not _at_a_terminal():
        raise TeardownError(f"there is no terminal to confirm at; --yes destroys {name} without asking")
    if click.prompt("\nType the stack's name to continue") != name:
        raise TeardownError(f"that is not {name}; nothing was touched")


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()
