"""``gpu-fleet catalog refresh``: write today's prices into the price files, or only show them."""

import datetime
import importlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpu_fleet_image.core import listing
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.shared_options import note
from gpu_fleet_stacks.catalog import lookup, prices, reader
from gpu_fleet_stacks.catalog.instance_types import Cloud
from gpu_fleet_stacks.catalog.prices import load
from gpu_fleet_stacks.catalog_refresh.listed import ListedPrices
from gpu_fleet_stacks.catalog_refresh.rewrite import PriceChange, rewrite_catalog, rewrite_prices, wanted
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core import files
from gpu_fleet_stacks.core.errors import StacksError

CATALOG, PRICES = lookup.FILE, prices.FILE
PIPE_WIDTH = 140


@click.command(epilog="\b\nExample:\n  gpu-fleet catalog refresh --dry-run --cloud aws")
@click.option(
    "--cloud", type=click.Choice([str(cloud) for cloud in Cloud]), help="One only; by default both."
)
@click.option("--dry-run", is_flag=True, help="Show the difference, write nothing.")
def refresh(cloud: str | None, *, dry_run: bool) -> None:
    """Ask the clouds for today's list prices, and write them with their source and date.

    Needs credentials that may read prices (`pricing:GetProducts`, `ec2:DescribeSpotPriceHistory`;
    `ecs:DescribePrice`). Where any call is denied or not answered, nothing is written.
    """
    console = listing.console(PIPE_WIDTH)
    clouds = list(Cloud) if cloud is None else [Cloud(cloud)]
    try:
        texts, changes, unlisted = _asked(console, clouds, datetime.datetime.now(datetime.UTC).date())
        _check(texts)
    except CannotCheckError as error:
        raise click.ClickException(f"prices could not be read: {error}; nothing was written") from error
    except StacksError as error:
        raise click.ClickException(f"{error}; nothing was written") from error
    console.print(table(changes))
    for what in unlisted:
        note(f"warning: {what} is in no price list; its price in the file is kept")
    if dry_run:
        return
    for path, text in texts.items():
        files.replace(path, text)
    click.echo(f"wrote {', '.join(map(str, texts))}: the prices of this installation alone")


def _asked(
    console: Console, clouds: Sequence[Cloud], today: datetime.date
) -> tuple[dict[Path, str], list[PriceChange], list[str]]:
    """Return the new texts of the files, every change, and the items that no list has."""
    texts = {path: path.read_text(encoding="utf-8") for path in (CATALOG, PRICES)}
    changes: list[PriceChange] = []
    unlisted: list[str] = []
    for cloud in clouds:
        with console.status(f"asking {cloud}") as status:
            answers = ask(cloud, texts[CATALOG], today, lambda what: status.update(f"asking for {what}"))
        for path, write in ((CATALOG, rewrite_catalog), (PRICES, rewrite_prices)):
            texts[path], written = write(texts[path], cloud, answers)
            changes += written
        unlisted += answers.unlisted
    return texts, changes, unlisted


def ask(cloud: Cloud, text: str, today: datetime.date, say: Callable[[str], None]) -> ListedPrices:
    """Return the price of each item of the files that one cloud lists."""
    # an SDK takes a second to load: load only that of the cloud
    module = importlib.import_module(f"gpu_fleet_stacks.catalog_refresh.{cloud}")
    answers: ListedPrices = module.ask(_region(cloud), wanted(text, cloud), today, say)
    return answers


def _region(cloud: Cloud) -> str:
    """Return the region of the prices of everything but instances."""
    return next(iter(load(cloud).quotes.values())).region


def _check(texts: dict[Path, str]) -> None:
    """Read the new files with the readers of the other commands, before they replace the old ones.

    Raises StacksError if one of them is not valid.
    """
    with tempfile.TemporaryDirectory() as folder:
        copies = {path: Path(folder) / path.name for path in texts}
        for path, text in texts.items():
            copies[path].write_text(text, encoding="utf-8")
        reader.read(copies[CATALOG])
        for cloud in Cloud:
            load(cloud, copies[PRICES])


def table(changes: Sequence[PriceChange]) -> RenderableType:
    """Return a table of the changed prices, with the change in percent, and how many there are."""
    moved = [change for change in changes if change.moved]
    numbers = (Column(heading, "right") for heading in ("before", "now", "change"))
    made = Listing((Column("price of", wraps=True), *numbers, Column("source", wraps=True)), box=None)
    for change in moved:
        share = ""
        if change.before is not None:
            share = f"{float(change.after) / float(change.before) - 1:+.1%}"
        before = change.before or "unknown"
        made.add_row(change.what, before, f"{change.after} {change.currency}", share, change.source)
    return Group(made, Text(f"{len(moved)} moved, {len(changes) - len(moved)} stayed"))
