"""``gpu-fleet upgrade-notes VERSION``: what a deployed stack sees since a release."""

import click

from gpu_fleet_stacks.releases import notes


@click.command("upgrade-notes", epilog="\b\nExample:\n  gpu-fleet upgrade-notes 0.2.0")
@click.argument("start", metavar="VERSION")
def upgrade_notes(start: str) -> None:
    """Show what a deployed stack sees since VERSION: replaced resources, and edits of the stack file.

    VERSION is the release that the stack was last updated with; its file names it (`version`).
    """
    newer = notes.since(start, notes.known())
    if not newer:
        kind = "newest release" if notes.is_released(start.removeprefix("v")) else "release in preparation"
        click.echo(f"{start} is the {kind}, as far as this gpu-fleet knows; a deployed stack sees nothing")
    for release, said in newer.items():
        click.echo(f"{release}")
        for note in said or ("nothing",):
            click.echo(f"  - {note}")
