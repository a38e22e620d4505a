"""The small stack that an acceptance run deploys in place of the real one. Pure.

It has the real stack's account, region, network, image and owner, and two instances: one on demand that the
sweep finds idle, and one on spot that is interrupted during training. It has its own name, so the real stack
is untouched.
"""

from collections.abc import Mapping
from decimal import ROUND_UP, Decimal
from typing import Any

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.acceptance.errors import AcceptanceError
from gpu_fleet_stacks.catalog import Cloud, InstanceType
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import ImageMode, Stack

SUFFIX = "-accept"
IDLE_POOL, SPOT_POOL = "people", "spot"
# The shortest times that leave the boot enough: an instance is idle for this long before the sweep marks
# it, and its owner has this long to object.
IDLE_AFTER_HOURS = 0.5
GRACE_MINUTES = 10
SWEEP_EVERY_MINUTES = 5
LEAST_VOLUME_GIB = 100
# Alibaba Cloud: a group made with 0 has no expected number and grows by request; only a real account
# shows whether it does.
DESIRED = {Cloud.AWS: 1, Cloud.ALICLOUD: 0}
SCRATCH_GIB = {Cloud.AWS: 0, Cloud.ALICLOUD: 100}  # types of Alibaba Cloud have no local disks
# Names of prices.toml that the variant pays for; a stack file's assumptions of them hold for it too.
ASSUMED = ("disk", "nat_gateway", "public_address", "nat_traffic", "bucket", "log")
KEPT = ("cloud", "region", "account_id", "owner", "endpoint_url")


def name_of(stack: str) -> str:
    """Return the variant's name."""
    return f"{stack}{SUFFIX}"


def cheapest_type(cloud: Cloud) -> InstanceType:
    """Return the GPU type with the lowest list price that runs the bundled image."""
    priced = [kind for kind in catalog.load().of_cloud(cloud) if kind.price and kind.runs_bundled_image]
    return min(priced, key=lambda kind: kind.price.amount_per_hour if kind.price else Decimal("Infinity"))


def chosen_type(cloud: Cloud, name: str | None) -> InstanceType:
    """Return the type that both pools use.

    Raises AcceptanceError if it is not in the catalog, or of the other cloud.
    """
    if name is None:
        return cheapest_type(cloud)
    kind = catalog.load().find(name)
    if kind is None or kind.cloud is not cloud:
        near = ", ".join(catalog.load().suggest(name, cloud))
        raise AcceptanceError(f"--type {name!r}: no type of {cloud} in the catalog; the nearest are {near}")
    return kind


def config(raw: Mapping[str, Any], stack: Stack, kind: InstanceType, cap: Decimal) -> dict[str, Any]:
    """Return the variant's ``config`` mapping, keys with their prefix.

    Args:
        raw: the ``config`` mapping of the real stack's file.
        cap: the most that the run may cost, in the currency of the stack's budget.
    """
    prefix = f"{naming.PROJECT}:"
    other = {key: value for key, value in raw.items() if not key.startswith(prefix)}
    own = {key.removeprefix(prefix): value for key, value in raw.items() if key.startswith(prefix)}
    budget = dict(own.get("budget") or {})
    kept_budget = {key: budget[key] for key in ("currency", "cny_per_usd", "recipients") if key in budget}
    assumed = {
        name: price for name, price in (budget.get("assume") or {}).items() if name in (kind.name, *ASSUMED)
    }
    image = {
        key: value
        for key, value in (own.get("image") or {}).items()
        if key not in ("base_id", "payload", "disk")
    }
    if stack.image.follows_builds:
        image["mode"] = str(ImageMode.BOOTSTRAP)  # no image is built for a stack of an hour
    storage = {
        key: value
        for key, value in (own.get("storage") or {}).items()
        if key in ("kms_instance_id", "key_rotation_days")
    }
    network = {key: value for key, value in own["network"].items() if key in ("cidr", "zones", "peers")}
    made = {key: own[key] for key in KEPT if key in own} | {
        "network": network | {"nat": "one"},
        "storage": storage,
        "pools": pools(stack, kind),
        "budget": kept_budget
        | ({"assume": assumed} if assumed else {})
        | {"monthly": int(cap.to_integral_value(ROUND_UP)), "allow_overcommit": True},
        "reaper": {"every_minutes": SWEEP_EVERY_MINUTES, "max_percent": 100},
        "image": image,
    }
    return other | {f"{prefix}{key}": value for key, value in made.items()}


def pools(stack: Stack, kind: InstanceType) -> list[dict[str, Any]]:
    """Return one pool on demand that is swept when idle, and one on spot of fixed size.

    The first has eRDMA where the stack has it and the type supports it: such a pool needs three passes.
    """
    erdma = kind.erdma_interfaces > 0 and any(pool.erdma for pool in stack.pools)
    size = {"min": 0, "desired": DESIRED[stack.cloud], "max": 1}
    both = {
        "types": [kind.name],
        "volume_gib": max(LEAST_VOLUME_GIB, stack.image.size_gib),
        "scratch_gib": SCRATCH_GIB[stack.cloud],
    }
    idle = {
        "after_hours": IDLE_AFTER_HOURS,
        "grace_minutes": GRACE_MINUTES,
        "min_uptime_minutes": 0,
        "action": "terminate",
    }
    return [
        both
        | {"name": IDLE_POOL, "size": size, "scaling": False, "idle": idle}
        | ({"erdma": True} if erdma else {}),
        both
        | {
            "name": SPOT_POOL,
            "purpose": "training",
            "market": "spot",
            "size": {"min": 1, "desired": 1, "max": 1},
        },
    ]
