"""The catalog: facts and price of each GPU instance type of both clouds, read from catalog.toml.

``gpu-fleet catalog`` lists the types, shows one, and updates the prices.
"""

import difflib
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.catalog import prices, reader
from gpu_fleet_stacks.catalog.instance_types import Cloud, InstanceType, Price
from gpu_fleet_stacks.catalog.prices import SpotPrice, read_on
from gpu_fleet_stacks.catalog.reader import CatalogError

FILE = Path(__file__).with_name("catalog.toml")
SUGGESTED = 3  # names that a message offers


class UnknownInstanceType(CatalogError):  # noqa: N818 - callers know this name, and it says what happened
    """A name that is not in the catalog.

    Attributes:
        suggestions: the nearest names, the nearest first.
    """

    def __init__(self, name: str, suggestions: list[str]) -> None:
        self.name = name
        self.suggestions = suggestions
        super().__init__(f"unknown instance type {name!r}; the nearest are {', '.join(suggestions)}")


class Catalog:
    """Every known type, by name."""

    def __init__(self, types: tuple[InstanceType, ...]) -> None:
        self._types = {kind.name: kind for kind in types}

    def __iter__(self) -> Iterator[InstanceType]:
        return iter(self._types.values())

    def find(self, name: str) -> InstanceType | None:
        """Return the type of that name, None if there is none."""
        return self._types.get(name)

    def get(self, name: str) -> InstanceType:
        """Return the type of that name. Raises UnknownInstanceType, which names the nearest types."""
        if (kind := self.find(name)) is None:
            raise UnknownInstanceType(name, self.suggest(name))
        return kind

    def of_cloud(self, cloud: Cloud) -> tuple[InstanceType, ...]:
        """Return the types of one cloud, in the order of the file."""
        return tuple(kind for kind in self if kind.cloud is cloud)

    def suggest(self, name: str, cloud: Cloud | None = None) -> list[str]:
        """Return the nearest names: by spelling, or by GPUs where ``name`` is a type of another cloud."""
        candidates = [kind for kind in self if cloud in (None, kind.cloud)]
        known = self.find(name)
        if known is not None and known not in candidates:
            return [
                kind.name
                for kind in sorted(candidates, key=lambda other: _distance(known, other))[:SUGGESTED]
            ]
        names = [kind.name for kind in candidates]
        return difflib.get_close_matches(name.lower(), names, n=SUGGESTED, cutoff=0)


def _distance(wanted: InstanceType, other: InstanceType) -> tuple[int, int, int]:
    """Return how much two types differ: by total GPU memory, then by memory of each GPU, then by vCPUs."""
    in_all = abs(wanted.gpu_count * wanted.gpu_memory_gib - other.gpu_count * other.gpu_memory_gib)
    return in_all, abs(wanted.gpu_memory_gib - other.gpu_memory_gib), abs(wanted.vcpu - other.vcpu)


@cache
def load(path: Path = FILE) -> Catalog:
    """Return the catalog, read once for each file. Raises MalformedCatalogError."""
    return Catalog(reader.read(path))


def facts_of(kind: InstanceType) -> dict[str, Any]:
    """Return a type for programs; docs/reference/json.md has the keys."""
    price, spot = kind.price, prices.load(kind.cloud).spot.get(kind.name)
    return {
        "type": kind.name,
        "cloud": str(kind.cloud),
        "gpus": kind.gpu_count,
        "gpu_model": kind.gpu_model,
        "gpu_memory_gib": kind.gpu_memory_gib,
        "vcpus": kind.vcpu,
        "memory_gib": float(kind.memory_gib),
        "nvme_gib": kind.local_nvme_gib,
        "network_gbps": kind.network_gbps,
        "efa": kind.efa_interfaces,
        "erdma": kind.erdma_interfaces,
        "runs_bundled_image": kind.runs_bundled_image,
        "price_per_hour": str(price.amount_per_hour) if price else None,
        "spot_per_hour": str(spot.expected) if spot else None,
        "currency": price.currency if price else None,
        "price_region": price.region if price else None,
        "price_date": price.date.isoformat() if price else None,
    }


def describe(name: str) -> str:
    """Describe a type in a few lines for a user. Raises UnknownInstanceType."""
    kind = load().get(name)
    rdma = f"{kind.efa_interfaces} EFA" if kind.cloud is Cloud.AWS else f"{kind.erdma_interfaces} eRDMA"
    scratch = f"{kind.local_nvme_gib} GiB of local NVMe" if kind.instance_store_scratch else "no local disks"
    image = "runs the bundled image" if kind.runs_bundled_image else "too old for the bundled image (Volta)"
    return "\n".join(
        (
            f"{kind.name} ({kind.cloud}): {gpus(kind)} ({kind.gpu_architecture}), {image}",
            f"  {kind.vcpu} vCPU, {kind.memory_gib} GiB of memory, {scratch}",
            f"  {kind.network_gbps:g} Gbit/s, {rdma} interfaces",
            f"  quota: {kind.quota_code or 'unknown'} on demand, {kind.quota_code_spot or 'unknown'} spot",
            f"  price: {_price_in_full(kind.price)}",
            f"  spot: {_spot_in_full(prices.load(kind.cloud).spot.get(name))}",
            f"  source: {kind.source}",
        )
    )


def sold_on(kind: InstanceType, region: str) -> date | None:
    """Return the newest day on which a price of the type was read in a region; None where none is known.

    A price list has what the region sells. Of other regions nothing is known here, neither way.
    """
    spot = prices.load(kind.cloud).spot.get(kind.name)
    days = (price.date for price in (kind.price, spot) if price and price.region == region)
    return max(days, default=None)


def gpus(kind: InstanceType) -> str:
    """Return number, model and memory of a type's GPUs."""
    return f"{kind.gpu_count} x {kind.gpu_model or 'unnamed GPU'} {kind.gpu_memory_gib} GiB"


def _price_in_full(price: Price | None) -> str:
    if price is None:
        return "unknown"
    amount = f"{price.amount_per_hour} {price.currency} per hour on demand"
    return f"{amount} in {price.region} on {read_on(price.date, prices.today())} ({price.source})"


def _spot_in_full(spot: SpotPrice | None) -> str:
    if spot is None:
        return "unknown"
    p90 = "unknown" if spot.p90 is None else str(spot.p90)
    amount = f"{spot.expected} {spot.currency} per hour expected, 90th percentile {p90}"
    return f"{amount}, in {spot.region} on {read_on(spot.date, prices.today())} ({spot.source})"
