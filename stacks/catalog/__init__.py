"""GPU instance types, regions and prices of both clouds, each fact with its source and date."""

from stacks.catalog.instance_types import Cloud, InstanceType, NetworkCard, Price
from stacks.catalog.lookup import Catalog, UnknownInstanceType, describe, gpus, load
from stacks.catalog.reader import CatalogError, MalformedCatalogError

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
    "gpus",
    "load",
]
