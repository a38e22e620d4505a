"""``gpu-reaper``: one command group; each command's module is imported only when it runs."""

import importlib
import sys
from typing import Any

import click

from image.reaper.errors import ReaperError, nearest

# command -> "module:attribute" of a click command in this package, and its line in the help.
COMMANDS: dict[str, tuple[str, str]] = {
    "sweep": ("sweep.command:sweep", "Mark idle machines, end those whose time has come."),
    "agent": ("agent.command:command", "Watch this machine and publish heartbeats."),
    "status": ("people.status:status", "Who has what, how idle, when it would go, what it costs."),
    "explain": ("people.explain:explain", "Why a machine goes or stays, and its heartbeats."),
    "keep": ("people.keep:keep", "Keep a machine for some hours or days, used or not."),
    "release": ("people.keep:release", "Keep a machine no longer."),
    "unfreeze": ("people.unfreeze:unfreeze", "Let frozen pools take machines again this month."),
    "report": ("people.report:report", "What a month saved, or a day was worth, as a page."),
}


class LazyGroup(click.Group):
    """Imports a command when it is asked for: the agent need not load the sweep's cloud libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every command's name."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command, with its module imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"image.reaper.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """The list in ``--help``, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a typo is answered with the nearest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            allowed = ", ".join(COMMANDS)
            ctx.fail(f"command {args[0]!r}; allowed: {allowed}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what this room raises on purpose is one message and exit code 1."""
        try:
            return super().invoke(ctx)
        except ReaperError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)


@click.group(cls=LazyGroup, name="gpu-reaper", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Find GPU machines that nobody uses, tell their owners, and take them away."""
