"""Click groups over the table: no module of a command is loaded before it is called."""

import click
from click.shell_completion import CompletionItem

from gpu_fleet_image.console import lazy
from gpu_fleet_image.console.table import INTERNAL, Row, Rows

Section = dict[str, Row | Rows]


class TableGroup(click.Group):
    """A group of the table's rows whose modules are on this computer, shown by section."""

    def __init__(self, name: str, sections: dict[str, Section], text: str, example: str) -> None:
        super().__init__(name, help=text, epilog=f"\b\nExample:\n  {example}")
        self.sections = {title: _present(rows) for title, rows in sections.items()}
        self._absent = {
            row_name for rows in sections.values() for row_name in rows if row_name not in self._rows()
        }

    def _rows(self) -> Section:
        return {name: row for rows in self.sections.values() for name, row in rows.items()}

    def _shown(self) -> Section:
        hidden = self.sections.get(INTERNAL, {})
        return {name: row for name, row in self._rows().items() if name not in hidden}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help."""
        return list(self._rows())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return the command; its module is imported now."""
        row = self._rows().get(cmd_name)
        if isinstance(row, Rows):
            return TableGroup(cmd_name, {"Commands": dict(row.commands)}, row.line, row.example)
        return None if row is None else lazy.command(row.target)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the list in ``--help`` without loading a command."""
        for title, rows in self.sections.items():
            if rows and title != INTERNAL:
                with formatter.section(title):
                    formatter.write_dl([(name, row.line) for name, row in rows.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions: commands' names and the group's own options, without loading a command."""
        own = click.Command.shell_complete(self, ctx, incomplete)
        commands = ((name, row.line) for name, row in self._shown().items() if name.startswith(incomplete))
        return [*(CompletionItem(name, help=line) for name, line in commands), *own]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. A typo is answered with the nearest names, a missing package with its name."""
        name, shown = args[0], self._shown()
        if name in self._rows() or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if name in self._absent:
            ctx.fail(
                f"{name!r} is no command on an instance: on your own computer pip install "
                f"'gpu-fleet[platform]' installs it; the commands here are: {', '.join(shown)}"
            )
        raise click.exceptions.NoSuchCommand(name, possibilities=shown, ctx=ctx)


def _present(rows: Section) -> Section:
    """Return the rows whose modules are on this computer; in a group, those of its commands."""
    kept: Section = {}
    for name, row in rows.items():
        if isinstance(row, Row):
            if lazy.is_here(row.target):
                kept[name] = row
        elif inner := {key: command for key, command in row.commands.items() if lazy.is_here(command.target)}:
            kept[name] = Rows(row.line, row.example, inner)
    return kept
