"""What the keys of one pool must agree on, among themselves and with the catalog."""

from collections import Counter
from collections.abc import Iterator

from stacks import catalog, mig
from stacks.catalog import Cloud, InstanceType
from stacks.errors import Problem
from stacks.settings import Grouping, IdleAction, Image, Market, Network, Pool

RESERVED_MARKETS = (Market.RESERVATION, Market.CAPACITY_BLOCK)


def check(
    key: str, pool: Pool, network: Network | None, cloud: Cloud | None, image: Image | None
) -> Iterator[Problem]:
    """All rules of one pool.

    Args:
        key: where the pool stands, say ``pools[0]``.
        pool: the pool.
        network: the stack's network, if it parsed.
        cloud: the stack's cloud, if it parsed.
        image: the stack's image, if it parsed.
    """
    types = [found for name in pool.types if (found := catalog.load().find(name)) is not None]
    yield from _types(key, pool, cloud)
    yield from _size(key, pool)
    yield from _market(key, pool)
    yield from _efa(key, pool, types, cloud)
    yield from _idle(key, pool, types)
    yield from _mig(key, pool, types)
    if image is not None:
        yield from _image(key, pool, types, image)
    if network is not None:
        yield from _zones(key, pool, network)


def _types(key: str, pool: Pool, cloud: Cloud | None) -> Iterator[Problem]:
    known = catalog.load()
    for name, count in Counter(pool.types).items():
        if count > 1:
            yield Problem(f"{key}.types", name, f"named {count} times; each type once")
    for index, name in enumerate(pool.types):
        where, found = f"{key}.types[{index}]", known.find(name)
        if found is None:
            nearest = ", ".join(known.suggest(name, cloud=cloud))
            yield Problem(where, name, f"unknown instance type; the nearest are {nearest}")
        elif cloud is not None and found.cloud is not cloud:
            nearest = ", ".join(known.suggest(name, cloud=cloud))
            yield Problem(
                where, name, f"a type of {found.cloud}; this stack is on {cloud}, which has {nearest}"
            )


def _size(key: str, pool: Pool) -> Iterator[Problem]:
    size = pool.size
    if not size.min <= size.desired <= size.max:
        found = f"min {size.min}, desired {size.desired}, max {size.max}"
        yield Problem(f"{key}.size", found, "must hold min <= desired <= max")


def _market(key: str, pool: Pool) -> Iterator[Problem]:
    where = f"{key}.reservation_id"
    if pool.market in RESERVED_MARKETS and pool.reservation_id is None:
        yield Problem(where, None, f"required where market is {pool.market}")
    if pool.market not in RESERVED_MARKETS and pool.reservation_id is not None:
        allowed = (
            f"cannot go with market {pool.market}; use market reservation or capacity-block, or leave it out"
        )
        yield Problem(where, pool.reservation_id, allowed)
    if pool.on_demand_base and pool.market is not Market.SPOT:
        yield Problem(f"{key}.on_demand_base", pool.on_demand_base, "only for market spot")
    if pool.on_demand_base > pool.size.max:
        yield Problem(f"{key}.on_demand_base", pool.on_demand_base, f"must not pass size.max {pool.size.max}")
    if pool.market in RESERVED_MARKETS and len(pool.types) > 1:
        yield Problem(f"{key}.types", list(pool.types), f"one type only with market {pool.market}")


def _efa(key: str, pool: Pool, types: list[InstanceType], cloud: Cloud | None) -> Iterator[Problem]:
    if pool.efa and cloud is Cloud.ALICLOUD:
        yield Problem(f"{key}.efa", True, "is of AWS; on Alibaba Cloud use erdma")
    if pool.erdma and cloud is Cloud.AWS:
        yield Problem(f"{key}.erdma", True, "is of Alibaba Cloud; on AWS use efa")
    for wanted, flag, adapters in (
        (pool.efa, "efa", [found.efa_interfaces for found in types]),
        (pool.erdma, "erdma", [found.erdma_interfaces for found in types]),
    ):
        lacking = [found.name for found, count in zip(types, adapters, strict=True) if wanted and not count]
        if lacking:
            yield Problem(
                f"{key}.{flag}", True, f"needs types with such adapters; {', '.join(lacking)} has none"
            )
    if not pool.efa:
        return
    if len(pool.types) > 1:
        yield Problem(
            f"{key}.types", list(pool.types), "one type only where efa is true: its cards are of the type"
        )
    if pool.grouping is Grouping.SINGLE and len(pool.zones) != 1:
        allowed = "must be per_zone, or name one zone: EFA traffic never leaves a zone"
        yield Problem(f"{key}.groups", str(pool.grouping), allowed)


def _mig(key: str, pool: Pool, types: list[InstanceType]) -> Iterator[Problem]:
    """Every type must know the profile: the same unit cuts whichever machine of the pool starts."""
    where, wanted = f"{key}.mig_profile", pool.mig_profile
    if wanted is None:
        return
    for found in types:
        known = mig.profiles_of(found)
        if wanted not in known:
            what = f"{found.gpu_model or 'GPUs'} with {found.gpu_memory_gib} GiB"
            has = ", ".join(known) or "no such instances: MIG begins with A100"
            yield Problem(where, wanted, f"{found.name} has {what}, which know {has}")


def _zones(key: str, pool: Pool, network: Network) -> Iterator[Problem]:
    for index, zone in enumerate(pool.zones):
        if zone not in network.zones:
            allowed = f"must be one of network.zones: {', '.join(network.zones)}"
            yield Problem(f"{key}.zones[{index}]", zone, allowed)
    if pool.market is Market.CAPACITY_BLOCK and len(pool.zones or network.zones) != 1:
        yield Problem(f"{key}.zones", list(pool.zones), "a capacity block lies in one zone: name it")


def _image(key: str, pool: Pool, types: list[InstanceType], image: Image) -> Iterator[Problem]:
    if pool.volume_gib < image.size_gib:
        allowed = f"smaller than the image: at least image.size_gib {image.size_gib}"
        yield Problem(f"{key}.volume_gib", pool.volume_gib, allowed)
    too_old = [found.name for found in types if image.bundled and not found.runs_bundled_image]
    if too_old:
        allowed = (
            f"the bundled image's open kernel modules need Turing or newer; {', '.join(too_old)} is older"
        )
        yield Problem(f"{key}.types", list(pool.types), allowed)


def _idle(key: str, pool: Pool, types: list[InstanceType]) -> Iterator[Problem]:
    """A stop keeps the root volume only: refused where that is not all there is, or not allowed at all."""
    if pool.idle.action is not IdleAction.STOP:
        return
    where = f"{key}.idle.action"
    if pool.market is not Market.ON_DEMAND:
        yield Problem(where, "stop", f"must be terminate for market {pool.market}")
    with_scratch = [found.name for found in types if found.instance_store_scratch]
    if with_scratch:
        allowed = (
            f"must be terminate: a stop empties the local disks of {', '.join(with_scratch)} all the same"
        )
        yield Problem(where, "stop", allowed)
