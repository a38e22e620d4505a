"""``gpu-fleet catalog list|show``: the instance types of both clouds, for users."""

import click
from click.shell_completion import CompletionItem

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import InstanceType, prices
from gpu_fleet_stacks.core import listing
from gpu_fleet_stacks.core.listing import Column, Listing

PIPE_WIDTH = 110


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


@click.command("list", epilog="\b\nExample:\n  gpu-fleet catalog list")
def list_types() -> None:
    """Print every GPU instance type of both clouds."""
    listing.console(PIPE_WIDTH).print(_table(tuple(catalog.load())))


@click.command(epilog="\b\nExample:\n  gpu-fleet catalog show p5.48xlarge")
@click.argument("name", metavar="TYPE", type=TypeName())
def show(name: str) -> None:
    """Print one type: GPUs, network, quota codes, price, and the source of each number."""
    click.echo(catalog.describe(name))


def _table(types: tuple[InstanceType, ...]) -> Listing:
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
