"""Command-line options that several commands share."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core import paths
from gpu_fleet_image.core.cloud import LEDGER_URI, policy_file
from gpu_fleet_image.core.place import Asked
from gpu_fleet_image.core.shared_options import STACK_VARIABLE
from gpu_fleet_image.core.times import parse_time

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class IsoTime(click.ParamType[datetime]):
    """A time with its zone."""

    name = "ISO"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Parse the text, or fail naming the allowed form."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_time(str(value))
        except ValueError:
            self.fail(f"{value!r}; allowed: ISO 8601 with a zone, say 2026-11-21T18:00:00+01:00", param, ctx)


now_option: _Decorator = click.option("--now", type=IsoTime(), help="Use this time instead of the present.")


class Known(click.ParamType[str]):
    """A free name; a shell completes it with the names known here."""

    def __init__(self, name: str, known: Callable[[click.Context], list[str]]) -> None:
        self.name = name
        self._known = known

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the known names that begin with the text."""
        return [CompletionItem(name) for name in self._known(ctx) if name.startswith(incomplete)]


def _stacks(context: click.Context) -> list[str]:
    """Return the stacks that have a file here, if this is a checkout."""
    return context.obj.names() if context.obj else []


def _pools(context: click.Context) -> list[str]:
    """Return the pools of the stack that ``--stack`` names."""
    with suppress(click.BadParameter):  # a shell completes nothing for a wrong path
        if context.obj and (stack := _name_of(context, "stack", context.params.get("stack"))):
            pools: list[str] = context.obj.pools(stack)
            return pools
    return []


_STACK_NAME, POOL_NAME = Known("stack", _stacks), Known("pool", _pools)
WHERE: tuple[_Decorator, ...] = (
    click.option(
        *("-s", "--stack"),
        metavar="NAME",
        type=_STACK_NAME,
        envvar=STACK_VARIABLE,
        help=f"The stack, by its published policy; by default {STACK_VARIABLE}, else the only one here.",
    ),
    click.option(
        "--region", help="Its region; by default that of its file, this instance or the environment."
    ),
    click.option("--cloud", type=click.Choice(clouds.CLOUDS), help="Its cloud; by default likewise."),
    click.option("--account", "account_id", metavar="ID", help="Its account; by default yours."),
)
POLICY: tuple[_Decorator, ...] = (
    click.option(
        "--policy", "policy_path", metavar="FILE", type=click.Path(path_type=Path), help="A policy in a file."
    ),
    click.option("--ledger", metavar="URI", help=f"URI of the ledger; by default {LEDGER_URI}."),
)


def stack_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select a stack; the command gets them as ``asked``."""
    return _asking(command, (*WHERE, *POLICY))


def subject_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same options, and the stack's name as an argument."""
    return click.argument("subject", metavar="[STACK]", required=False, type=_STACK_NAME)(
        _asking(command, (*WHERE, *POLICY))
    )


def where_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same options but those of a policy, for a command that needs none."""
    return _asking(command, WHERE)


def _name_of(context: click.Context, parameter: str, text: str | None) -> str | None:
    """Return the stack that a parameter names, by its name or by the path of its file."""
    if not text or context.obj is None:
        return text
    param = next(each for each in context.command.params if each.name == parameter)
    name: str = context.obj.name_of(text, param, context)
    return name


def _stack_of(context: click.Context, subject: str | None, said: Mapping[str, Any]) -> str | None:
    """Return the stack that a command line selects; None if this instance or a policy selects it.

    A path selects the folder of its stack file as well, so only the one that counts is looked up.
    """
    by_flag = context.get_parameter_source("stack") is ParameterSource.COMMANDLINE
    flag = None if subject and not by_flag else _name_of(context, "stack", said["stack"])
    named = _name_of(context, "subject", subject)
    if named and flag and flag != named:
        raise click.UsageError(f"two stacks are named, {subject!r} and --stack {said['stack']!r}; name one")
    if named or flag:
        return named or flag
    known = _stacks(context)
    elsewhere = said.get("policy_path") or paths.instance_file().exists() or policy_file().exists()
    return known[0] if len(known) == 1 and not elsewhere else None


def _asking(command: Callable[..., None], options: tuple[_Decorator, ...]) -> Callable[..., None]:
    names = {field.name for field in fields(Asked)}

    @wraps(command)
    def taking(**given: Any) -> None:
        context = click.get_current_context()
        said = {name: given.pop(name) for name in names & given.keys()}
        said["stack"] = _stack_of(context, given.pop("subject", None), said)
        command(**given, asked=Asked(**said, files=context.obj))

    made: Callable[..., None] = taking
    for option in reversed(options):
        made = option(made)
    return made
