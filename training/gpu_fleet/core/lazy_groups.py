"""Command groups that load a command's module only when it is called, and options that commands share."""

import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from gpu_fleet.core import config, ctrl_c
from gpu_fleet.core.errors import MissingPackageError, TrainingError, suggestion

CLICKS = re.compile("^Error: ", re.MULTILINE)
SENTENCE = 200  # characters of a command's line in a list, which folds


class Name(click.types.StringParamType):
    """Text that must not be empty on the command line: `--branch "$NAME"` with an unset NAME is an error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        source = ctx.get_parameter_source(param.name) if ctx and param and param.name else None
        if not value and source is ParameterSource.COMMANDLINE:
            self.fail("is empty", param, ctx)
        return super().convert(value, param, ctx)


class FolderPath(click.Path):
    """Path of a folder; an empty path would mean the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("is empty", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """Range without NaN: comparisons with NaN are false, so click's own range accepts it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a finite number", param, ctx)
        return number


def identity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags about checkpoints of another run: --allow and --branch."""
    allow = click.option(
        "--allow",
        multiple=True,
        metavar="KEY",
        help="Resume although this key has changed since the checkpoint; may be given again.",
    )
    branch = click.option(
        "--branch",
        type=Name(),
        default="",
        metavar="NAME",
        help="Train as a new run NAME, beside run.directory, from the newest weights found there.",
    )
    return allow(branch(command))


def identity_flags(allow: Sequence[str], branch: str) -> list[str]:
    words = [word for key in allow for word in ("--allow", key)]
    return [*words, "--branch", branch] if branch else words


def configured(file: Path, overrides: Sequence[str], allow: Sequence[str], branch: str) -> config.Config:
    allowed = ["--checkpoint.allow", json.dumps(list(allow))] if allow else []
    settings = config.load(file, [*overrides, *allowed])
    return config.branched(settings, branch) if branch else settings


def imported(module: str) -> ModuleType:
    """Import a module of gpu_fleet; raises MissingPackageError if a package for it is not installed."""
    try:
        with ctrl_c.ends_the_process():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError.of(error.name) from error


def _leave(error: click.ClickException) -> NoReturn:
    """Show an error as all of gpu-fleet does, where click begins with "Error: ", and exit."""
    shown = StringIO()
    error.show(shown)
    click.echo(CLICKS.sub("error: ", shown.getvalue()), err=True, nl=False)
    sys.exit(error.exit_code)


class LazyGroup(click.Group):
    """Click group over a table of name -> "module:attribute"; shows a TrainingError as one message."""

    def __init__(self, *args: Any, table: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._table})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._table[cmd_name].partition(":")
        command = getattr(imported(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list in `--help` with whole sentences, where click cuts them to the line."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(str(each.name), each.get_short_help_str(SENTENCE)) for each in self._shown(ctx)]
            )

    def _shown(self, ctx: click.Context) -> list[click.Command]:
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        return [command for command in commands if command is not None and not command.hidden]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            known = [str(command.name) for command in self._shown(ctx)]
            ctx.fail(f"no such command: {args[0]}{suggestion(args[0], known)}")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the group's own options, which accept -h as those of `gpu-fleet` do."""
        self.context_settings.setdefault("help_option_names", ["-h", "--help"])
        try:
            return super().make_context(*args, **extra)
        except click.ClickException as error:
            _leave(error)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            _leave(error)
        except (KeyboardInterrupt, click.Abort):  # before, or without, what saves at a signal
            click.echo("interrupted", err=True)
            sys.exit(ctrl_c.INTERRUPTED)
        except (TrainingError, ModuleNotFoundError) as error:  # the latter of an import inside a command
            ending = error if isinstance(error, TrainingError) else MissingPackageError.of(error.name)
            click.echo(f"error: {ending}", err=True)
            sys.exit(ending.exit_status)
