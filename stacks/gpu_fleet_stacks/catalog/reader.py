"""Reader of catalog.toml: a family states common facts once, and this module copies them to each type."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gpu_fleet_stacks.catalog import toml_file
from gpu_fleet_stacks.catalog.instance_types import (
    Architecture,
    Cloud,
    InstanceType,
    InterfaceType,
    NetworkCard,
    Price,
)
from gpu_fleet_stacks.catalog.numbers import AMOUNT, NUMBER, Currency
from gpu_fleet_stacks.core.errors import StacksError

BYTES_PER_GB = 1_000_000_000
BYTES_PER_GIB = 1 << 30

Entry = TypeVar("Entry")


class CatalogError(StacksError):
    """An error in the catalog, or in a query to it."""


class MalformedCatalogError(CatalogError):
    """A catalog file that is not valid; the message names file, place and what is allowed."""


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Positive = Annotated[int, Field(gt=0), NUMBER]
Count = Annotated[int, Field(ge=0), NUMBER]


class _PriceList(_Exact):
    currency: Currency
    region: str
    date: datetime.date
    source: str


class _CardRange(_Exact):
    first: Count
    last: Count
    device: Count
    kind: InterfaceType


class _Type(_Exact):
    name: str
    gpus: Positive
    vcpu: Positive
    memory_gib: Annotated[Decimal, Field(gt=0), AMOUNT]
    nvme_gb: Count = 0
    network_gbps: Annotated[float, Field(gt=0), NUMBER]
    efa: Count = 0
    erdma: Count = 0
    cards: str | None = None
    price_list: str | None = None
    price: Annotated[Decimal, Field(gt=0), AMOUNT] | None = None


class _Family(_Exact):
    cloud: Cloud
    gpu_model: str | None = None
    gpu_memory_gib: Positive
    gpu_architecture: Architecture
    quota_code: str | None = None
    quota_code_spot: str | None = None
    price_list: str | None = None
    source: str
    types: Annotated[list[_Type], Field(min_length=1)]


class _File(_Exact):
    sources: dict[str, str]
    price_lists: dict[str, _PriceList]
    card_layouts: dict[str, list[_CardRange]]
    families: dict[str, _Family]


def read(path: Path) -> tuple[InstanceType, ...]:
    """Return the types in the order of the file. Raises MalformedCatalogError."""
    content = _parse(path)
    try:
        types = tuple(
            _instance_type(content, family, row)
            for family in content.families.values()
            for row in family.types
        )
    except MalformedCatalogError as error:
        raise MalformedCatalogError(f"{path}: {error}") from error
    names = [kind.name for kind in types]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MalformedCatalogError(f"{path}: {', '.join(twice)} appears more than once; name each type once")
    return types


def _parse(path: Path) -> _File:
    try:
        return toml_file.read(path, _File)
    except ValueError as error:
        raise MalformedCatalogError(str(error)) from error


def _instance_type(content: _File, family: _Family, row: _Type) -> InstanceType:
    return InstanceType(
        name=row.name,
        cloud=family.cloud,
        gpu_count=row.gpus,
        gpu_model=family.gpu_model,
        gpu_memory_gib=family.gpu_memory_gib,
        gpu_architecture=family.gpu_architecture,
        vcpu=row.vcpu,
        memory_gib=row.memory_gib,
        local_nvme_gib=row.nvme_gb * BYTES_PER_GB // BYTES_PER_GIB,
        network_gbps=row.network_gbps,
        efa_interfaces=row.efa,
        erdma_interfaces=row.erdma,
        network_cards=_network_cards(content, family, row),
        quota_code=family.quota_code,
        quota_code_spot=family.quota_code_spot,
        price=_price(content, family, row),
        source=_defined(content.sources, "sources", family.source, row),
    )


def _network_cards(content: _File, family: _Family, row: _Type) -> tuple[NetworkCard, ...]:
    if family.cloud is not Cloud.AWS:
        return ()
    if row.cards is None:
        return (NetworkCard(0, 0, "efa" if row.efa else "interface"),)
    layout = _defined(content.card_layouts, "card_layouts", row.cards, row)
    return tuple(
        NetworkCard(index, span.device, span.kind)
        for span in layout
        for index in range(span.first, span.last + 1)
    )


def _price(content: _File, family: _Family, row: _Type) -> Price | None:
    if row.price is None:
        return None
    price_list = row.price_list or family.price_list
    if price_list is None:
        raise MalformedCatalogError(f"{row.name} has a price but no price_list; give it or its family one")
    listed = _defined(content.price_lists, "price_lists", price_list, row)
    return Price(row.price, listed.currency, listed.region, listed.date, listed.source)


def _defined(tables: dict[str, Entry], table: str, key: str, row: _Type) -> Entry:
    if key not in tables:
        raise MalformedCatalogError(
            f"{row.name} refers to {table}.{key}; defined are {', '.join(sorted(tables))}"
        )
    return tables[key]
