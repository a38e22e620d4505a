"""`contents`: list the files of a path that `gpu-fleet data put` uploads."""

import json

import click

from gpu_fleet_jobs.submitted.included import of_data


@click.command(hidden=True, epilog="\b\nExample:\n  gpu-fleet train contents data/digits")
@click.argument("path")
def contents(path: str) -> None:
    """Print the files of PATH that are uploaded, a line of JSON each, then those that are left out.

    Repositories, virtual environments, caches and files that look like secrets are left out, unless PATH is
    the file itself. Refuses links that lead out of PATH.
    """
    left_out: list[str] = []
    for name, size in of_data(path, left_out):
        click.echo(json.dumps({"name": name, "bytes": size}))
    click.echo(json.dumps({"left_out": left_out}))
