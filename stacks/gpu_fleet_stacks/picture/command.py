"""``gpu-fleet show STACK``: a stack as one picture."""

from pathlib import Path

import click

from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.core import files
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import warnings
from gpu_fleet_stacks.picture.stack import picture
from gpu_fleet_stacks.settings import projects, stack_files
from gpu_fleet_stacks.settings.stack_argument import stack_argument


def _svg(_: click.Context, __: click.Parameter, file: Path | None) -> Path | None:
    """Refuse a file that is not named as an SVG, such as the ``json`` of other commands' ``-o``."""
    if file is not None and file.suffix.lower() != ".svg":
        raise click.BadParameter(f"{str(file)!r}; allowed: a file whose name ends in .svg")
    return file


@click.command(epilog="\b\nExample:\n  gpu-fleet show aws-dev -o aws-dev.svg")
@stack_argument
@click.option(
    *("-o", "--output", "target"),
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_svg,
    help="The SVG file; by default build/STACK.svg of the project.",
)
def show(name: str, target: Path | None) -> None:
    """Draw a stack: network, pools, storage, budget, and what each costs an hour and a month.

    Needs no cloud. The prices are those of `gpu-fleet cost`.
    """
    stack = stack_files.settings_of(name)
    cost = estimate(stack)
    drawn = picture(stack, cost, warnings(cost, prices.today()))
    file = target or projects.build_folder() / f"{name}.svg"
    try:
        if target is None:
            file.parent.mkdir(exist_ok=True)
        files.replace(file, drawn)
    except OSError as error:
        raise StacksError(f"--output = {str(file)!r}: cannot be written: {error.strerror}") from error
    click.echo(file)
