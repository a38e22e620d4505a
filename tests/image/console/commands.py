"""Every command that `gpu-fleet` reaches, for tests to go through."""

from collections.abc import Iterator

import click

from gpu_fleet_image.console.cli import main

Path = tuple[str, ...]


def walk(command: click.Command = main, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    """(names, command) of a group, its groups and their commands, from the top."""
    yield path, command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None, f"{name} is listed and not there"
                yield from walk(inner, (*path, name))


COMMANDS = dict(walk())
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}
