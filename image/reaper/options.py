"""Command-line options that several commands share."""

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from image.reaper.place import Asked
from image.reaper.sweep import cloud as clouds
from image.reaper.sweep.environment import LEDGER_URI
from image.reaper.times import parse_time

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class IsoTime(click.ParamType[datetime]):
    """A time with its zone."""

    name = "ISO"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Parse it, or fail naming what is allowed."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_time(str(value))
        except ValueError:
            self.fail(f"{value!r}; allowed: ISO 8601 with a zone, say 2026-11-21T18:00:00+01:00", param, ctx)


now_option: Decorator = click.option("--now", type=IsoTime(), help="As of this time instead of the present.")


class StackName(click.ParamType[str]):
    """The name of a stack; a shell completes it with the stack files of the checkout, if this is one."""

    name = "stack"

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """The stacks whose names begin so."""
        return [CompletionItem(name) for name in stack_names(ctx) if name.startswith(incomplete)]


class PoolName(click.ParamType[str]):
    """The name of a pool; a shell completes it with those of the stack that ``--stack`` names."""

    name = "pool"

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """The pools whose names begin so."""
        stack = ctx.params.get("stack")
        names = ctx.obj.pools(stack) if ctx.obj and stack else []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def stack_names(context: click.Context) -> list[str]:
    """The stacks that have a file here."""
    return context.obj.names() if context.obj else []


WHERE: tuple[Decorator, ...] = (
    click.option("--stack", metavar="NAME", type=StackName(), help="Of this stack, by its published policy."),
    click.option("--region", help="Its region; by default of its file, this instance, the environment."),
    click.option("--cloud", type=click.Choice(clouds.CLOUDS), help="Its cloud; by default likewise."),
    click.option("--account", "account_id", metavar="ID", help="Its account; by default yours."),
)
POLICY: tuple[Decorator, ...] = (
    click.option(
        "--policy", "policy_path", metavar="FILE", type=click.Path(path_type=Path), help="A policy in a file."
    ),
    click.option("--ledger", metavar="URI", help=f"Where the ledger lies; by default {LEDGER_URI}."),
)


def stack_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which stack is meant; the command gets them as ``asked``."""
    return _asking(command, (*WHERE, *POLICY))


def where_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same without those of a policy, for a command that needs none."""
    return _asking(command, WHERE)


def _asking(command: Callable[..., None], options: tuple[Decorator, ...]) -> Callable[..., None]:
    names = {field.name for field in fields(Asked)}

    @wraps(command)
    def taking(**given: Any) -> None:
        said = {name: given.pop(name) for name in names & given.keys()}
        command(**given, asked=Asked(**said, files=click.get_current_context().obj))

    made: Callable[..., None] = taking
    for option in reversed(options):
        made = option(made)
    return made
