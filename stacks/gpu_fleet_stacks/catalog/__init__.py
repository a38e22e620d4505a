"""GPU instance types, regions and prices of both clouds, each fact with its source and date."""

from gpu_fleet_stacks.catalog.instance_types import Cloud, InstanceType, NetworkCard, Price
from gpu_fleet_stacks.catalog.lookup import (
    Catalog,
    UnknownInstanceType,
    describe,
    facts_of,
    gpus,
    load,
    sold_on,
)
from gpu_fleet_stacks.catalog.reader import CatalogError, MalformedCatalogError

__all__ = [
    "Catalog",
    "CatalogError",
    "Cloud",
    "InstanceType",
    "MalformedCatalogError",
    "NetworkCard",
    "Price",
    "UnknownInstanceType",
    "describe",
    "facts_of",
    "gpus",
    "load",
    "sold_on",
]
