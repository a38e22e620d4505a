"""What a stack file may say on one cloud only: the keys of Alibaba Cloud, and what it lacks or limits.

Pure, and apart from ``settings_rules`` so that what holds on both clouds reads without exceptions.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from stacks import catalog, naming
from stacks.catalog import Cloud, InstanceType
from stacks.errors import Problem
from stacks.settings import Budget, Market, Network, Pool, Storage

# github.com/aliyun/terraform-provider-alicloud, alicloud_ess_scaling_configuration, system_disk_size.
SMALLEST_VOLUME_GIB, LARGEST_VOLUME_GIB = 20, 500
# www.alibabacloud.com/help/en/ecs/user-guide/essds
SMALLEST_DISK_GIB, LARGEST_DISK_GIB = 20, 65_536
# The same provider, resource alicloud_ess_scaling_group, max_size.
LARGEST_GROUP = 2000
# The same resource, on_demand_base_capacity; and spot_price_limit, which it rounds to hundredths.
LARGEST_ON_DEMAND_BASE = 1000
SPOT_PRICE_STEP = Decimal("0.01")
# Resource alicloud_ess_scaling_configuration, instance_types.
MOST_TYPES_OF_A_CONFIGURATION = 10
# The same provider, resource alicloud_nas_file_system, example "CPFS Usage".
CPFS_FIRST_GIB, CPFS_STEP_GIB = 3600, 1200
# The same provider, resource alicloud_ess_scaling_rule, scaling_rule_name; and of an event-triggered task
# help.aliyun.com/en/auto-scaling/user-guide/manage-event-triggered-tasks.
LONGEST_RULE_NAME = 64
# What the name of a group that scales is followed by: the longest of its alarms.
LONGEST_ALARM = "gpu-memory-high"
# Prices of mainland China; an account elsewhere is billed in USD, and its prices are in no public list.
CURRENCY = "CNY"
KMS_INSTANCE = "kst-"
A10_FAMILY = "gn7i"


def check(name: str, cloud: Cloud, section: Mapping[str, Any]) -> Iterator[Problem]:
    """Every rule that holds on one cloud only.

    Args:
        name: the stack's name.
        cloud: the stack's cloud.
        section: top-level key -> parsed value, without those that did not parse; None for such pools.
    """
    if cloud is Cloud.ALICLOUD:
        yield from _of_alicloud(section)
        yield from _names(name, section)
    else:
        yield from _of_aws(section)
    for index, pool in enumerate(section.get("pools", ())):
        if pool is not None:
            yield from _gpu_memory(f"pools[{index}]", pool)


def _of_aws(section: Mapping[str, Any]) -> Iterator[Problem]:
    """The keys that only Alibaba Cloud has."""
    storage: Storage | None = section.get("storage")
    budget: Budget | None = section.get("budget")
    if storage is not None and storage.kms_instance_id is not None:
        yield Problem("storage.kms_instance_id", storage.kms_instance_id, "is of Alibaba Cloud; leave it out")
    if storage is not None and storage.redundancy is not None:
        allowed = "is of Alibaba Cloud: S3 keeps copies in three zones at least; leave it out"
        yield Problem("storage.redundancy", str(storage.redundancy), allowed)
    if budget is not None and budget.cny_per_usd is not None:
        yield Problem("budget.cny_per_usd", str(budget.cny_per_usd), "AWS prices are in USD; leave it out")
    for index, pool in enumerate(section.get("pools", ())):
        if pool is None:
            continue
        if pool.spot_price_limit is not None:
            limit = str(pool.spot_price_limit)
            yield Problem(f"pools[{index}].spot_price_limit", limit, "is of Alibaba Cloud; leave it out")
        if pool.scratch_gib:
            allowed = "is of Alibaba Cloud; on AWS /scratch lies on the type's local disks"
            yield Problem(f"pools[{index}].scratch_gib", pool.scratch_gib, allowed)


def _of_alicloud(section: Mapping[str, Any]) -> Iterator[Problem]:
    network: Network | None = section.get("network")
    if network is not None and network.s3_buckets:
        yield Problem("network.s3_buckets", list(network.s3_buckets), "is of AWS; leave it out")
    if section.get("endpoint_url") is not None:
        yield Problem("endpoint_url", section["endpoint_url"], "no emulator of Alibaba Cloud is known")
    if "storage" in section:
        yield from _storage(section["storage"])
        yield from _redundancy(section["storage"], protected=bool(section.get("protected")))
    pools = [pool for pool in section.get("pools", ()) if pool is not None]
    if "budget" in section:
        yield from _currency(section["budget"], pools)
    for index, pool in enumerate(section.get("pools", ())):
        if pool is not None:
            yield from _pool(f"pools[{index}]", pool)


def _names(stack: str, section: Mapping[str, Any]) -> Iterator[Problem]:
    """Auto Scaling takes 64 characters; a group in one zone, and an alarm of it, have the longest names."""
    network: Network | None = section.get("network")
    zones = ("",) if network is None else network.zones
    for index, pool in enumerate(section.get("pools", ())):
        if pool is None:
            continue
        parts = (pool.name, max(zones, key=len), *((LONGEST_ALARM,) if pool.scales else ()))
        longest = naming.prefixed(stack, *parts)
        if len(longest) > LONGEST_RULE_NAME:
            allowed = f"too long once prefixed: {longest} has {len(longest)} characters, "
            yield Problem(f"pools[{index}].name", pool.name, f"{allowed}{LONGEST_RULE_NAME} allowed")


def _storage(storage: Storage) -> Iterator[Problem]:
    """A key outside of a KMS instance turns every 365 days and no sooner.

    https://help.aliyun.com/zh/kms/key-management-service/developer-reference/api-kms-2016-01-20-updaterotationpolicy
    """
    if storage.kms_instance_id is None:
        allowed = "required on alicloud: only a key in a KMS instance turns sooner than yearly"
        yield Problem("storage.kms_instance_id", None, allowed)
    elif not storage.kms_instance_id.startswith(KMS_INSTANCE):
        allowed = f"the id of a KMS instance begins with {KMS_INSTANCE}"
        yield Problem("storage.kms_instance_id", storage.kms_instance_id, allowed)
    size = storage.scratch_gib
    if size and (size < CPFS_FIRST_GIB or (size - CPFS_FIRST_GIB) % CPFS_STEP_GIB):
        allowed = f"CPFS comes as {CPFS_FIRST_GIB} GiB and steps of {CPFS_STEP_GIB} GiB; 0 for none"
        yield Problem("storage.scratch_gib", size, allowed)


def _redundancy(storage: Storage, *, protected: bool) -> Iterator[Problem]:
    """A protected stack names it: `protected` alone decided before there was a key, for ZRS."""
    if protected and storage.redundancy is None:
        allowed = (
            "required where protected is true, ZRS or LRS; a stack that was deployed before names what its "
            "buckets have: ZRS if it was protected then, else LRS"
        )
        yield Problem("storage.redundancy", None, allowed)


def _currency(budget: Budget, pools: list[Pool]) -> Iterator[Problem]:
    """Prices are compared with the budget every few minutes: a sum of two currencies would say nothing."""
    known = catalog.load()
    kinds = [kind for pool in pools for name in pool.types if (kind := known.find(name)) is not None]
    currencies = {kind.price.currency if kind.price else CURRENCY for kind in kinds}
    others = ", ".join(sorted(currencies - {budget.currency}))
    if others and budget.cny_per_usd is None:
        allowed = f"the prices of its types are in {others}: needs budget.cny_per_usd to compare them"
        yield Problem("budget.currency", budget.currency, allowed)


def _pool(key: str, pool: Pool) -> Iterator[Problem]:
    if pool.market is Market.CAPACITY_BLOCK:
        allowed = "is of AWS; on Alibaba Cloud use market reservation with an elasticity assurance"
        yield Problem(f"{key}.market", str(pool.market), allowed)
    if pool.spot_price_limit is not None and pool.market is not Market.SPOT:
        yield Problem(f"{key}.spot_price_limit", str(pool.spot_price_limit), "only for market spot")
    if pool.spot_price_limit is not None and pool.spot_price_limit % SPOT_PRICE_STEP:
        allowed = f"must be a multiple of {SPOT_PRICE_STEP}: Auto Scaling is told no more digits"
        yield Problem(f"{key}.spot_price_limit", str(pool.spot_price_limit), allowed)
    if pool.on_demand_base > LARGEST_ON_DEMAND_BASE:
        allowed = f"must be {LARGEST_ON_DEMAND_BASE} at most"
        yield Problem(f"{key}.on_demand_base", pool.on_demand_base, allowed)
    if (pool.erdma or pool.reservation_id) and len(pool.types) > MOST_TYPES_OF_A_CONFIGURATION:
        allowed = f"{MOST_TYPES_OF_A_CONFIGURATION} types at most where eRDMA or a reservation is asked for"
        yield Problem(f"{key}.types", list(pool.types), allowed)
    if not SMALLEST_VOLUME_GIB <= pool.volume_gib <= LARGEST_VOLUME_GIB:
        allowed = f"must be from {SMALLEST_VOLUME_GIB} to {LARGEST_VOLUME_GIB}; data goes to scratch_gib"
        yield Problem(f"{key}.volume_gib", pool.volume_gib, allowed)
    if pool.scratch_gib and not SMALLEST_DISK_GIB <= pool.scratch_gib <= LARGEST_DISK_GIB:
        allowed = f"must be from {SMALLEST_DISK_GIB} to {LARGEST_DISK_GIB}; 0 for none"
        yield Problem(f"{key}.scratch_gib", pool.scratch_gib, allowed)
    if pool.size.max > LARGEST_GROUP:
        yield Problem(
            f"{key}.size.max", pool.size.max, f"a scaling group holds {LARGEST_GROUP} machines at most"
        )


def _gpu_memory(key: str, pool: Pool) -> Iterator[Problem]:
    """Each type must have what the work needs of a GPU."""
    wanted = pool.gpu_memory_gib
    if wanted is None:
        return
    known = catalog.load()
    kinds = [kind for name in pool.types if (kind := known.find(name)) is not None]
    for kind in kinds:
        if kind.gpu_memory_gib < wanted:
            yield Problem(f"{key}.gpu_memory_gib", wanted, _too_small(kind))


def _too_small(kind: InstanceType) -> str:
    found = f"{kind.name} has {kind.gpu_model or 'GPUs'} with {kind.gpu_memory_gib} GiB each"
    if not kind.name.startswith(f"ecs.{A10_FAMILY}-"):
        return found
    return f"{found}: gn7i is A10 and not A100; A100 is gn7 with 40 GiB, gn7e and ebmgn7e with 80 GiB"
