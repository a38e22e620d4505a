"""Command groups that load a command's module only when it is called: `--help` does not wait for torch."""

import importlib
import sys
from typing import Any

import click

from training.errors import TrainingError, suggestion


class LazyGroup(click.Group):
    """A click group over a table of name -> "module:attribute"; shows TrainingErrors as one message."""

    def __init__(self, *args: Any, table: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._table})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._table[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            ctx.fail(f"no such command: {args[0]}{suggestion(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TrainingError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
