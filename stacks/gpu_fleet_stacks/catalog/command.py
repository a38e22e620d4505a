"""``gpu-fleet catalog list|show``: the instance types of both clouds, for users."""

import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

import click
from click.shell_completion import CompletionItem
from rich.text import Text

from gpu_fleet_image.core import listing
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.shared_options import CSV, TABLE, form_option, json_option
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, InstanceType, prices

PIPE_WIDTH = 130


class TypeName(click.ParamType[str]):
    """An instance type of the catalog, with shell completion."""

    name = "type"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - the same
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the types whose names begin with the text."""
        return [CompletionItem(kind.name) for kind in catalog.load() if kind.name.startswith(incomplete)]


class GpuModel(click.ParamType[str]):
    """A text in the model of a GPU, such as H100."""

    name = "model"

    def __init__(self, models: Callable[[], Iterable[str | None]]) -> None:
        self._models = models

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a text that no model has, and name the models."""
        known = sorted({model for model in self._models() if model})
        if not any(value.casefold() in model.casefold() for model in known):
            self.fail(f"{value!r}; allowed: a text in one of {', '.join(known)}", param, ctx)
        return value


@click.command("list", epilog="\b\nExample:\n  gpu-fleet catalog list --cloud aws --gpu-memory 40 --top 5")
@click.option("--cloud", type=click.Choice([str(cloud) for cloud in Cloud]), help="Only types of this cloud.")
@click.option(
    "--gpu",
    metavar="MODEL",
    default="",
    type=GpuModel(lambda: (kind.gpu_model for kind in catalog.load())),
    help="Only GPUs whose model has this text, such as H100.",
)
@click.option(
    "--gpus", type=click.IntRange(min=1), default=1, help="Only types with at least this many GPUs."
)
@click.option(
    "--gpu-memory", type=click.IntRange(min=1), default=1, help="Only GPUs with at least this many GiB."
)
@click.option("--top", type=click.IntRange(min=1), help="Only this many of the cheapest of each currency.")
@form_option
def list_types(
    *, cloud: str | None, gpu: str, gpus: int, gpu_memory: int, top: int | None, form: str
) -> None:
    """Print the GPU instance types of both clouds, or those that you filter for.

    The last line recommends the cheapest of them in each currency that runs the bundled image.
    """
    types = [
        kind
        for kind in catalog.load()
        if cloud in (None, kind.cloud)
        and gpu.casefold() in (kind.gpu_model or "").casefold()
        and kind.gpu_count >= gpus
        and kind.gpu_memory_gib >= gpu_memory
    ]
    if not types:
        raise click.ClickException("no type of the catalog is so: leave out a filter")
    if top is not None:
        types = [kind for listed in _cheapest(types).values() for kind in listed[:top]]
    if form != TABLE:
        rows = [catalog.facts_of(kind) for kind in types]
        text = csv_text(tuple(rows[0]), rows) if form == CSV else json.dumps({"types": rows}, indent=1) + "\n"
        click.echo(text, nl=False)
        return
    console = listing.console(PIPE_WIDTH)
    console.print(_table(types))
    console.print(Text(recommendation(types), style="bold"))


@click.command(epilog="\b\nExample:\n  gpu-fleet catalog show p5.48xlarge")
@click.argument("name", metavar="TYPE", type=TypeName())
@json_option
def show(name: str, *, as_json: bool) -> None:
    """Print one type: GPUs, network, quota codes, price, and the source of each number."""
    text = catalog.describe(name)
    click.echo(json.dumps(catalog.facts_of(catalog.load().get(name)), indent=1) if as_json else text)


def recommendation(types: Sequence[InstanceType]) -> str:
    """Return the cheapest types that the bundled image runs on, in one line."""
    fitting = _cheapest([kind for kind in types if kind.runs_bundled_image])
    cheapest = [listed[0] for listed in fitting.values()]
    named = "; ".join(
        f"{kind.name} ({catalog.gpus(kind)}), {kind.price.amount_per_hour} {kind.price.currency} an hour"
        for kind in cheapest
        if kind.price
    )
    return f"recommended, the cheapest of these: {named or 'none, since no price of them is public'}"


def _cheapest(types: Iterable[InstanceType]) -> dict[str, list[InstanceType]]:
    """Return currency -> its types with a price, the cheapest first: two currencies are never compared."""
    by_currency: dict[str, list[InstanceType]] = {}
    for kind in sorted(types, key=lambda kind: kind.price.amount_per_hour if kind.price else Decimal(0)):
        if kind.price:
            by_currency.setdefault(kind.price.currency, []).append(kind)
    return by_currency


def _table(types: Iterable[InstanceType]) -> Listing:
    numbers_of = ("vCPU", "GiB", "NVMe GiB", "Gbit/s", "EFA/eRDMA", "per hour")
    right = (Column(heading, "right") for heading in numbers_of)
    columns = (Column("type"), Column("GPUs"), *right, Column("read"))
    table = Listing(columns, box=None)
    for kind in types:
        rdma = kind.efa_interfaces or kind.erdma_interfaces
        price = f"{kind.price.amount_per_hour} {kind.price.currency}" if kind.price else "unknown"
        numbers = (
            kind.vcpu,
            kind.memory_gib,
            kind.local_nvme_gib or "-",
            f"{kind.network_gbps:g}",
            rdma or "-",
        )
        read = prices.read_on(kind.price.date, prices.today()) if kind.price else ""
        table.add_row(kind.name, catalog.gpus(kind), *map(str, numbers), price, read)
    return table
