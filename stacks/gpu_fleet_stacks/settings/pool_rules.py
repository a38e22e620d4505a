"""Rules for the keys of one pool, among themselves and with the catalog."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, InstanceType
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import Grouping, IdleAction, ImageMode, Market, Pool, Stack

RESERVED_MARKETS = (Market.RESERVATION, Market.CAPACITY_BLOCK)
_ID, _GROUP = (
    r"cr-[0-9a-f]{17}",
    r"arn:aws(-us-gov)?:resource-groups:[a-z0-9-]+:[0-9]{12}:group/[A-Za-z0-9_.-]{1,128}",
)
_ONE_ID = "must be the id of a capacity reservation or capacity block (cr-...)"
_GROUPS = "the ARN of a resource group of reservations (arn:aws:resource-groups:...:group/NAME)"
_ASSURED = (
    r"(eap|crp)-[a-z0-9]+",
    "must be the id of an elasticity assurance (eap-...) or reservation (crp-...)",
)
# (cloud, whether it is for a capacity block) -> pattern of the reservation's id, and what is allowed.
RESERVATION_FORMS = {
    (Cloud.AWS, False): (
        f"{_ID}|{_GROUP}",
        f"must be the id of a capacity reservation (cr-...), or {_GROUPS}",
    ),
    (Cloud.AWS, True): (_ID, "must be the id of a capacity block (cr-...)"),
    (Cloud.ALICLOUD, False): _ASSURED,
    (Cloud.ALICLOUD, True): _ASSURED,
}


def known_types(pool: Pool) -> list[InstanceType]:
    """Return the pool's types that are in the catalog; another rule reports the others."""
    return [kind for name in pool.types if (kind := catalog.load().find(name)) is not None]


def _each_type_once(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    for name, count in Counter(pool.types).items():
        if count > 1:
            yield Problem(f"{key}.types", name, f"named {count} times; each type once")


def _known(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    known = catalog.load()
    unknown = [(index, name) for index, name in enumerate(pool.types) if known.find(name) is None]
    for index, name in unknown:
        nearest = ", ".join(known.suggest(name, cloud=stack.cloud))
        yield Problem(f"{key}.types[{index}]", name, f"unknown instance type; the nearest are {nearest}")


def _of_cloud(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    known = catalog.load()
    for index, name in enumerate(pool.types):
        kind = known.find(name)
        if kind is not None and kind.cloud is not stack.cloud:
            nearest = ", ".join(known.suggest(name, cloud=stack.cloud))
            allowed = f"a type of {kind.cloud}; this stack is on {stack.cloud}, which has {nearest}"
            yield Problem(f"{key}.types[{index}]", name, allowed)


def _size(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    size = pool.size
    if not size.min <= size.desired <= size.max:
        sizes = f"min {size.min}, desired {size.desired}, max {size.max}"
        drain = "; to drain the pool write min 0 and desired 0" if pool.drains else ""
        yield Problem(f"{key}.size", sizes, f"must hold min <= desired <= max{drain}")


def _spare(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if pool.size.min <= pool.size.max < pool.size.min + pool.spare:
        sizes = f"size.min {pool.size.min}, size.max {pool.size.max}"
        yield Problem(f"{key}.spare", pool.spare, f"must leave room between {sizes}")
    if pool.spare and not stack.image.managed:
        yield Problem(
            f"{key}.spare", pool.spare, "0 where image.mode is none: nothing of gpu-fleet runs there"
        )


def _drained(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    """Refuse to drain what is paid for whether it runs or not: the cost would leave it out."""
    if pool.drains and pool.market in RESERVED_MARKETS:
        allowed = f"at least 1 with market {pool.market}, which is paid for until it ends"
        yield Problem(f"{key}.size.max", 0, allowed)


def _reservation(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    where, named = f"{key}.reservation_id", pool.reservation_id or [held.id for held in pool.reservations]
    if pool.market in RESERVED_MARKETS and not pool.reserves:
        yield Problem(where, None, f"required where market is {pool.market}, or {key}.reservations")
    if pool.market not in RESERVED_MARKETS and pool.reserves:
        allowed = (
            f"does not fit market {pool.market}; use market reservation or capacity-block, or leave it out"
        )
        yield Problem(where if pool.reservation_id else f"{key}.reservations", named, allowed)
    if pool.reservation_id is not None and pool.reservations:
        yield Problem(where, pool.reservation_id, f"one of the two: this, or {key}.reservations")


def _reservation_form(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    """Check the form of the reservation's id; ``preflight`` asks the cloud whether it exists."""
    form, allowed = RESERVATION_FORMS[stack.cloud, pool.market is Market.CAPACITY_BLOCK]
    if pool.reservation_id is not None and re.fullmatch(form, pool.reservation_id) is None:
        yield Problem(f"{key}.reservation_id", pool.reservation_id, allowed)
    elif pool.reserved_by_group and f":{stack.region}:" not in str(pool.reservation_id):
        yield Problem(
            f"{key}.reservation_id", pool.reservation_id, f"must be a group of region {stack.region}"
        )


def _each_reservation(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    """Check each of several reservations by itself: its id, which is no group of them, its zone, its end."""
    form, allowed = (_ID, _ONE_ID) if stack.cloud is Cloud.AWS else _ASSURED
    zones = pool.zones or stack.network.zones
    for index, held in enumerate(pool.reservations):
        where = f"{key}.reservations[{index}]"
        if re.fullmatch(form, held.id) is None:
            yield Problem(f"{where}.id", held.id, allowed)
        if held.zone not in zones:
            yield Problem(f"{where}.zone", held.zone, f"must be a zone of the pool: {', '.join(zones)}")
        try:
            _ = held.ends_at
        except ValueError:
            yield Problem(f"{where}.until", held.until, "no such day")


def _all_reservations(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    """Check several reservations together: each once, one in each zone named, and room for ``size.max``."""
    held = pool.reservations
    for name, count in Counter(each.id for each in held).items():
        if count > 1:
            yield Problem(f"{key}.reservations", name, f"named {count} times; each reservation once")
    for index, zone in enumerate(pool.zones):
        if held and zone not in {each.zone for each in held}:
            yield Problem(f"{key}.zones[{index}]", zone, f"none of {key}.reservations is there: leave it out")
    total = sum(each.count for each in held)
    if held and total < pool.size.max:
        allowed = f"at most {total}, which {key}.reservations hold together"
        yield Problem(f"{key}.size.max", pool.size.max, allowed)


def _reserved_type(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    if pool.market in RESERVED_MARKETS and len(pool.types) > 1:
        yield Problem(f"{key}.types", list(pool.types), f"one type only with market {pool.market}")


def _base_of_spot(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    if pool.on_demand_base and pool.market is not Market.SPOT:
        yield Problem(f"{key}.on_demand_base", pool.on_demand_base, "only for market spot")


def _fallback_of_spot(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    if pool.on_demand_fallback and pool.market is not Market.SPOT:
        yield Problem(f"{key}.on_demand_fallback", True, "only for market spot")


def _base_within_size(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    if pool.on_demand_base > pool.size.max and not pool.drains:
        yield Problem(f"{key}.on_demand_base", pool.on_demand_base, f"must not pass size.max {pool.size.max}")


def _adapters_of_cloud(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.ALICLOUD and pool.efa:
        yield Problem(f"{key}.efa", True, "is for AWS only; on Alibaba Cloud use erdma")
    if stack.cloud is Cloud.AWS and pool.erdma:
        yield Problem(f"{key}.erdma", True, "is for Alibaba Cloud only; on AWS use efa")


def _efa(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    lacking = [kind.name for kind in known_types(pool) if not kind.efa_interfaces]
    if pool.efa and lacking:
        yield Problem(f"{key}.efa", True, f"needs types with such adapters; {', '.join(lacking)} has none")


def _erdma(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    lacking = [kind.name for kind in known_types(pool) if not kind.erdma_interfaces]
    if pool.erdma and lacking:
        yield Problem(f"{key}.erdma", True, f"needs types with such adapters; {', '.join(lacking)} has none")


def _type_of_efa(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    if pool.efa and len(pool.types) > 1:
        yield Problem(
            f"{key}.types", list(pool.types), "one type only where efa is true: its cards are of the type"
        )


def _zone_of_efa(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    if pool.efa and pool.grouping is Grouping.SINGLE and len(pool.zones) != 1:
        allowed = "must be per_zone, or name one zone: EFA traffic never leaves a zone"
        yield Problem(f"{key}.groups", str(pool.grouping), allowed)


def _mig(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    """Require that every type has the profile: one unit partitions every instance of the pool."""
    where, wanted = f"{key}.mig_profile", pool.mig_profile
    if wanted is None:
        return
    for kind in known_types(pool):
        known = kind.mig_profiles
        if wanted not in known:
            what = f"{kind.gpu_model or 'GPUs'} with {kind.gpu_memory_gib} GiB"
            has = ", ".join(known) or "no such instances: MIG begins with A100"
            yield Problem(where, wanted, f"{kind.name} has {what}, which know {has}")


def _zones(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    for index, zone in enumerate(pool.zones):
        if zone not in stack.network.zones:
            allowed = f"must be one of network.zones: {', '.join(stack.network.zones)}"
            yield Problem(f"{key}.zones[{index}]", zone, allowed)


def _reserved_zone(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    """Require one zone for the capacity of one reservation.

    The group of another zone would have no reservation: it would count in the worst month and find no
    capacity.
    """
    if pool.market in RESERVED_MARKETS and not pool.reservations and len(stack.zones_of(pool)) != 1:
        yield Problem(f"{key}.zones", list(pool.zones), "reserved capacity is in one zone: name that zone")


def _volume(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if pool.volume_gib < stack.image.size_gib:
        allowed = f"smaller than the image: at least image.size_gib {stack.image.size_gib}"
        yield Problem(f"{key}.volume_gib", pool.volume_gib, allowed)


def _too_old(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    too_old = [kind.name for kind in known_types(pool) if not kind.runs_bundled_image]
    if too_old and (stack.image.bundled or stack.image.mode is ImageMode.BAKED):
        allowed = (
            f"the bundled image's open kernel modules need Turing or newer; {', '.join(too_old)} is older"
        )
        yield Problem(f"{key}.types", list(pool.types), allowed)


def _stop_of_market(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    if pool.idle.action is IdleAction.STOP and pool.market is not Market.ON_DEMAND:
        yield Problem(f"{key}.idle.action", "stop", f"must be terminate for market {pool.market}")


def _stop_with_disks(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    """Refuse a stop of types with local disks: a stop keeps only the root volume."""
    if pool.idle.action is not IdleAction.STOP:
        return
    with_scratch = [kind.name for kind in known_types(pool) if kind.instance_store_scratch]
    if with_scratch:
        allowed = (
            f"must be terminate: a stop empties the local disks of {', '.join(with_scratch)} all the same"
        )
        yield Problem(f"{key}.idle.action", "stop", allowed)


def _command(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    """Require an idle command that only root can change, as the agent does.

    An account that can change the program decides about the instances of every user.
    """
    changeable = ("/home/", "/root/", "/tmp/", "/var/tmp/", "/scratch/", "/dev/shm/", "/run/user/")  # noqa: S108 - refused, not used
    if pool.idle.command and not pool.idle.command[0].startswith("/"):
        yield Problem(f"{key}.idle.command", list(pool.idle.command), "must begin with an absolute path")
    elif pool.idle.command and pool.idle.command[0].startswith(changeable):
        allowed = "must be where only root can change it, such as /usr/local/bin"
        yield Problem(f"{key}.idle.command", list(pool.idle.command), allowed)


RULES: tuple[Callable[[str, Pool, Stack], Iterator[Problem]], ...] = (
    *(
        _each_type_once,
        _known,
        _of_cloud,
        _size,
        _spare,
        _drained,
        _reservation,
        _reservation_form,
        _each_reservation,
        _all_reservations,
        _reserved_type,
    ),
    *(
        _base_of_spot,
        _fallback_of_spot,
        _base_within_size,
        _adapters_of_cloud,
        _efa,
        _erdma,
        _type_of_efa,
        _zone_of_efa,
    ),
    *(_mig, _zones, _reserved_zone, _volume, _too_old, _stop_of_market, _stop_with_disks, _command),
)
