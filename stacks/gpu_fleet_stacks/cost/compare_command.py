"""The options of ``gpu-fleet cost STACK --compare``."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gpu_fleet_image.core import listing
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.shared_options import CSV, JSON, OutputFile
from gpu_fleet_stacks.cost import compare_page, offers_file
from gpu_fleet_stacks.cost.compare import compare, currency_of
from gpu_fleet_stacks.settings import Stack

PIPE_WIDTH = 150


@dataclass(frozen=True)
class CompareRequest:
    """A comparison that a command line asks for.

    Attributes:
        offers: the buyer's file; None for none.
        html: where to write the page; None for none.
    """

    offers: Path | None
    html: Path | None

    def show(self, stack: Stack, form: str) -> None:
        """Print the ways to pay for a stack's instances, and write the page."""
        file = None
        if self.offers is not None:
            types = frozenset(pool.types[0] for pool in stack.pools)
            file = offers_file.read(self.offers, currency=currency_of(stack), types=types)
        listed = compare(stack, file)
        if form == CSV:
            click.echo(csv_text(compare_page.COLUMNS, compare_page.rows(listed)), nl=False)
        elif form == JSON:
            click.echo(json.dumps({"stack": stack.name, "pools": compare_page.document(listed)}, indent=1))
        else:
            listing.console(PIPE_WIDTH).print(compare_page.table(listed))
        if self.html is not None:
            self.html.write_text(compare_page.html(stack.name, listed), encoding="utf-8")


def compare_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the command gets them as ``comparing``, None without ``--compare``."""

    @wraps(command)
    def taking(*, compare: bool, offers: Path | None, html: Path | None, **given: Any) -> None:
        for flag, path in (("--offers", offers), ("--html", html)):
            if path is not None and not compare:
                raise click.UsageError(f"{flag} {path}: needs --compare")
        given_by = click.get_current_context().get_parameter_source
        for name in given if compare else ():
            if name.endswith("_gb") and given_by(name) is ParameterSource.COMMANDLINE:
                flag = f"--{name.replace('_', '-')}"
                raise click.UsageError(
                    f"{flag} {given[name]}: not with --compare, which is of instances alone"
                )
        command(**given, comparing=CompareRequest(offers, html) if compare else None)

    made: Callable[..., None] = taking
    for option in (
        click.option(
            "--html", metavar="FILE", type=OutputFile(), help="Write the comparison as a page with pictures."
        ),
        click.option(
            "--offers",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="TOML with your vendor's offers and hardware of your own, to compare too.",
        ),
        click.option(
            "--compare", is_flag=True, help="Show the ways to pay for the instances, with break-even hours."
        ),
    ):
        made = option(made)
    return made
