"""Offers of every vendor: the catalog's types, and those of other vendors for comparison."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import prices, toml_file
from gpu_fleet_stacks.catalog.instance_types import InstanceType, Price
from gpu_fleet_stacks.catalog.numbers import AMOUNT, NUMBER
from gpu_fleet_stacks.catalog.prices import Interruptions, SpotPrice
from gpu_fleet_stacks.core.errors import StacksError

FILE = Path(__file__).with_name("vendors.toml")


class VendorsError(StacksError):
    """A vendors file that is not valid."""


@dataclass(frozen=True)
class Offer:
    """An instance for rent.

    Attributes:
        gpu_count, gpu_model, gpu_memory_gib: its GPUs; None for a model without a public name.
        network_gbps: of all its cards; None where unknown.
        joined: whether RDMA can connect several of them.
        price: for an hour on demand; None where no list has it.
        spot: for an hour on spot, in the region of ``price``; None where no price is published.
        comparison: for comparison only: no stack can use it.
        nvme_gib: of local disks, 0 for none; None where unknown.
        interruptions: of spot, in the region of ``spot``; None where nobody publishes them.
        source: of its facts but the prices.
    """

    name: str
    vendor: str
    gpu_count: int
    gpu_model: str | None
    gpu_memory_gib: int
    network_gbps: float | None
    joined: bool
    price: Price | None
    spot: SpotPrice | None
    comparison: bool
    nvme_gib: int | None = None
    interruptions: Interruptions | None = None
    source: str = ""


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Instance(_Exact):
    name: str
    gpus: Annotated[int, Field(gt=0), NUMBER]
    gpu_model: str
    gpu_memory_gib: Annotated[int, Field(gt=0), NUMBER]
    network_gbps: Annotated[float, Field(gt=0), NUMBER] | None = None
    price: Annotated[Decimal, Field(gt=0), AMOUNT] | None = None


class Vendor(_Exact):
    """One vendor in the file; it lists instances only where the catalog has none of the vendor."""

    title: str
    instances: list[_Instance] = []
    currency: str = ""
    region: str = ""
    date: datetime.date | None = None
    source: str = ""


class Vendors(_Exact):
    """The whole file.

    Attributes:
        vendors: short name -> vendor.
    """

    vendors: dict[str, Vendor]


@cache
def vendors(path: Path = FILE) -> Vendors:
    """Return the file, read once. Raises VendorsError if the file cannot be read, or is not valid."""
    try:
        return toml_file.read(path, Vendors)
    except ValueError as error:
        raise VendorsError(str(error)) from error


def of_type(kind: InstanceType) -> Offer:
    """Return a type of the catalog as an offer."""
    spot = prices.load(kind.cloud).spot.get(kind.name)
    there = spot is not None and kind.price is not None and spot.region == kind.price.region
    return Offer(
        name=kind.name,
        vendor=kind.cloud,
        gpu_count=kind.gpu_count,
        gpu_model=kind.gpu_model,
        gpu_memory_gib=kind.gpu_memory_gib,
        network_gbps=kind.network_gbps,
        joined=bool(kind.efa_interfaces or kind.erdma_interfaces),
        price=kind.price,
        spot=spot if there else None,
        comparison=False,
        nvme_gib=kind.local_nvme_gib,
        interruptions=prices.load(kind.cloud).interruptions.get(kind.name) if there else None,
        source=kind.source,
    )


def offers() -> Iterator[Offer]:
    """Yield every offer: the catalog's, then those for comparison."""
    yield from map(of_type, catalog.load())
    for name, vendor in vendors().vendors.items():
        for row in vendor.instances:
            yield _for_comparison(name, vendor, row)


def _for_comparison(name: str, vendor: Vendor, row: _Instance) -> Offer:
    """Return an offer of a single instance: this project does not check how such instances connect."""
    price = None
    if row.price is not None and vendor.date is not None:
        price = Price(row.price, vendor.currency, vendor.region, vendor.date, vendor.source)
    return Offer(
        name=row.name,
        vendor=name,
        gpu_count=row.gpus,
        gpu_model=row.gpu_model,
        gpu_memory_gib=row.gpu_memory_gib,
        network_gbps=row.network_gbps,
        joined=False,
        price=price,
        spot=None,
        comparison=True,
        source=vendor.source,
    )
