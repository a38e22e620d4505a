"""Rules of one cloud only: the keys and limits of Alibaba Cloud.

Pure. They are separate from ``rules``, so that the rules of both clouds read without exceptions.
"""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, InstanceType
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import Market, Pool, Stack
from gpu_fleet_stacks.settings.pools import LOAD_ALARMS

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
# The longest suffix of a scaling group's name: the longest of its alarms.
LONGEST_ALARM = max((alarm.label for alarm in LOAD_ALARMS), key=len)
# Prices of mainland China; an account elsewhere is billed in USD, and no public list has its prices.
CURRENCY = "CNY"
KNOWN_CURRENCIES = ("CNY", "USD")
KMS_INSTANCE = "kst-"
# pulumi_alicloud 4.0.0, cs.NodePool, ``tags`` of ECS; in any capitals by
# help.aliyun.com/en/oss/user-guide/0010-00000213.
NO_TAG = re.compile(r"(aliyun|acs:)|.*https?://", re.IGNORECASE)
NO_TAG_RULE = "must not begin with aliyun or acs:, or contain http:// or https://: no tag there may"
A10_FAMILY = "gn7i"


def _keys_of_alicloud(stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.AWS and stack.storage.kms_instance_id is not None:
        allowed = "is for Alibaba Cloud only; leave it out"
        yield Problem("storage.kms_instance_id", stack.storage.kms_instance_id, allowed)


def _redundancy_of_alicloud(stack: Stack) -> Iterator[Problem]:
    redundancy = stack.storage.redundancy
    if stack.cloud is Cloud.AWS and redundancy is not None:
        allowed = "is for Alibaba Cloud only: S3 keeps copies in three zones at least; leave it out"
        yield Problem("storage.redundancy", str(redundancy), allowed)


def _rate_of_alicloud(stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.AWS and stack.budget.cny_per_usd is not None:
        allowed = "AWS prices are in USD; leave it out"
        yield Problem("budget.cny_per_usd", str(stack.budget.cny_per_usd), allowed)


def _limit_of_alicloud(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.AWS and pool.spot_price_limit is not None:
        allowed = "is for Alibaba Cloud only; leave it out"
        yield Problem(f"{key}.spot_price_limit", str(pool.spot_price_limit), allowed)


def _disk_of_alicloud(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.AWS and pool.scratch_gib:
        allowed = "is for Alibaba Cloud only; on AWS /scratch is on the type's local disks"
        yield Problem(f"{key}.scratch_gib", pool.scratch_gib, allowed)


def _buckets_of_aws(stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.ALICLOUD and stack.network.s3_buckets:
        yield Problem("network.s3_buckets", list(stack.network.s3_buckets), "is for AWS only; leave it out")


def _tags(stack: Stack) -> Iterator[Problem]:
    own = {f"tags.{key}": value for key, value in stack.tags.items()}
    for key, value in {"stack": stack.name, "owner": stack.owner, **own}.items():
        if stack.cloud is Cloud.ALICLOUD and NO_TAG.match(value):
            yield Problem(key, value, NO_TAG_RULE)
    for key in stack.tags:
        if stack.cloud is Cloud.ALICLOUD and NO_TAG.match(key):
            yield Problem("tags", key, NO_TAG_RULE)


def _tags_of_pool(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    for name, value in (("name", pool.name), ("owner", pool.owner)):
        if stack.cloud is Cloud.ALICLOUD and NO_TAG.match(value):
            yield Problem(f"{key}.{name}", value, NO_TAG_RULE)


def _emulator(stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.ALICLOUD and stack.endpoint_url is not None:
        yield Problem("endpoint_url", stack.endpoint_url, "no emulator of Alibaba Cloud is known")


def _kms_instance(stack: Stack) -> Iterator[Problem]:
    """Require a KMS instance: a key outside of one rotates only every 365 days.

    https://help.aliyun.com/zh/kms/key-management-service/developer-reference/api-kms-2016-01-20-updaterotationpolicy
    """
    if stack.cloud is not Cloud.ALICLOUD:
        return
    instance_id = stack.storage.kms_instance_id
    if instance_id is None:
        allowed = "required on alicloud: only a key in a KMS instance rotates sooner than yearly"
        yield Problem("storage.kms_instance_id", None, allowed)
    elif not instance_id.startswith(KMS_INSTANCE):
        allowed = f"the id of a KMS instance begins with {KMS_INSTANCE}"
        yield Problem("storage.kms_instance_id", instance_id, allowed)


def _replica_kms_instance(stack: Stack) -> Iterator[Problem]:
    """Require the other region's KMS instance for copies, by the same reason."""
    key, instance_id = "storage.replica_kms_instance_id", stack.storage.replica_kms_instance_id
    has_copies = stack.storage.replica_region is not None and stack.cloud is Cloud.ALICLOUD
    if not has_copies and instance_id is not None:
        yield Problem(key, instance_id, "is for storage.replica_region on alicloud only; leave it out")
    elif has_copies and not (instance_id or "").startswith(KMS_INSTANCE):
        allowed = f"required with storage.replica_region: a KMS instance of that region, {KMS_INSTANCE}..."
        yield Problem(key, instance_id, allowed)


def _cpfs(stack: Stack) -> Iterator[Problem]:
    size = stack.storage.scratch_gib
    off = size < CPFS_FIRST_GIB or (size - CPFS_FIRST_GIB) % CPFS_STEP_GIB
    if size and off and stack.cloud is Cloud.ALICLOUD:
        allowed = f"CPFS comes as {CPFS_FIRST_GIB} GiB and steps of {CPFS_STEP_GIB} GiB; 0 for none"
        yield Problem("storage.scratch_gib", size, allowed)


def _redundancy(stack: Stack) -> Iterator[Problem]:
    """Require ``storage.redundancy`` on a protected stack, whose buckets cannot be made anew to change it."""
    if stack.cloud is Cloud.ALICLOUD and stack.protected and stack.storage.redundancy is None:
        yield Problem("storage.redundancy", None, "required where protected is true: ZRS or LRS")


def _currency(stack: Stack) -> Iterator[Problem]:
    """Require a rate between two currencies: the sweep compares prices with the budget every few minutes."""
    if stack.cloud is not Cloud.ALICLOUD or stack.budget.currency not in KNOWN_CURRENCIES:
        return
    known = catalog.load()
    kinds = [kind for pool in stack.pools for name in pool.types if (kind := known.find(name)) is not None]
    currencies = {kind.price.currency if kind.price else CURRENCY for kind in kinds}
    others = ", ".join(sorted(currencies - {stack.budget.currency}))
    if others and stack.budget.cny_per_usd is None:
        allowed = f"the prices of its types are in {others}: needs budget.cny_per_usd to compare them"
        yield Problem("budget.currency", stack.budget.currency, allowed)


def _length_of_names(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    """Limit names to 64 characters, as Auto Scaling does; the longest are a zone's group and its alarms."""
    if stack.cloud is not Cloud.ALICLOUD:
        return
    ends = [held.id for held in pool.reservations] or stack.network.zones
    parts = (pool.name, max(ends, key=len), *((LONGEST_ALARM,) if pool.scales else ()))
    longest = naming.prefixed(stack.name, *parts)
    if len(longest) > LONGEST_RULE_NAME:
        allowed = f"too long once prefixed: {longest} has {len(longest)} characters, "
        yield Problem(f"{key}.name", pool.name, f"{allowed}{LONGEST_RULE_NAME} allowed")


def _boundary_of_aws(stack: Stack) -> Iterator[Problem]:
    boundary = stack.aws.permissions_boundary
    if stack.cloud is Cloud.ALICLOUD and boundary is not None:
        yield Problem("aws.permissions_boundary", boundary, "is for AWS only; RAM has no boundary for roles")


def _market(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.ALICLOUD and pool.market is Market.CAPACITY_BLOCK:
        allowed = "is for AWS only; on Alibaba Cloud use market reservation with an elasticity assurance"
        yield Problem(f"{key}.market", str(pool.market), allowed)


def _limit_of_spot(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    limit = pool.spot_price_limit
    if limit is not None and stack.cloud is Cloud.ALICLOUD and pool.market is not Market.SPOT:
        yield Problem(f"{key}.spot_price_limit", str(limit), "only for market spot")


def _step_of_limit(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    limit = pool.spot_price_limit
    if limit is not None and limit % SPOT_PRICE_STEP and stack.cloud is Cloud.ALICLOUD:
        allowed = f"must be a multiple of {SPOT_PRICE_STEP}: Auto Scaling accepts no more digits"
        yield Problem(f"{key}.spot_price_limit", str(limit), allowed)


def _on_demand_base(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if pool.on_demand_base > LARGEST_ON_DEMAND_BASE and stack.cloud is Cloud.ALICLOUD:
        allowed = f"must be {LARGEST_ON_DEMAND_BASE} at most"
        yield Problem(f"{key}.on_demand_base", pool.on_demand_base, allowed)


def _number_of_types(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if len(pool.types) <= MOST_TYPES_OF_A_CONFIGURATION or stack.cloud is not Cloud.ALICLOUD:
        return
    if pool.erdma or pool.reserves:
        allowed = f"{MOST_TYPES_OF_A_CONFIGURATION} types at most where eRDMA or a reservation is asked for"
        yield Problem(f"{key}.types", list(pool.types), allowed)


def _volume(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    fits = SMALLEST_VOLUME_GIB <= pool.volume_gib <= LARGEST_VOLUME_GIB
    if not fits and stack.cloud is Cloud.ALICLOUD:
        allowed = f"must be from {SMALLEST_VOLUME_GIB} to {LARGEST_VOLUME_GIB}; put data on scratch_gib"
        yield Problem(f"{key}.volume_gib", pool.volume_gib, allowed)


def _scratch_disk(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    fits = SMALLEST_DISK_GIB <= pool.scratch_gib <= LARGEST_DISK_GIB
    if pool.scratch_gib and not fits and stack.cloud is Cloud.ALICLOUD:
        allowed = f"must be from {SMALLEST_DISK_GIB} to {LARGEST_DISK_GIB}; 0 for none"
        yield Problem(f"{key}.scratch_gib", pool.scratch_gib, allowed)


def _group_size(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if pool.size.max > LARGEST_GROUP and stack.cloud is Cloud.ALICLOUD:
        allowed = f"a scaling group holds {LARGEST_GROUP} instances at most"
        yield Problem(f"{key}.size.max", pool.size.max, allowed)


def _gpu_memory(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    """Require that each type has the GPU memory that the work needs."""
    wanted = pool.gpu_memory_gib
    if wanted is None:
        return
    known = catalog.load()
    kinds = [kind for name in pool.types if (kind := known.find(name)) is not None]
    for kind in kinds:
        if kind.gpu_memory_gib < wanted:
            yield Problem(f"{key}.gpu_memory_gib", wanted, _too_small(kind))


def _too_small(kind: InstanceType) -> str:
    memory = f"{kind.name} has {kind.gpu_model or 'GPUs'} with {kind.gpu_memory_gib} GiB each"
    if not kind.name.startswith(f"ecs.{A10_FAMILY}-"):
        return memory
    return f"{memory}: gn7i is A10 and not A100; A100 is gn7 with 40 GiB, gn7e and ebmgn7e with 80 GiB"


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (
    _keys_of_alicloud,
    _redundancy_of_alicloud,
    _rate_of_alicloud,
    _buckets_of_aws,
    _boundary_of_aws,
    _tags,
    _emulator,
    _kms_instance,
    _replica_kms_instance,
    _cpfs,
    _redundancy,
    _currency,
)
POOL_RULES: tuple[Callable[[str, Pool, Stack], Iterator[Problem]], ...] = (
    *(_limit_of_alicloud, _disk_of_alicloud, _length_of_names, _market, _limit_of_spot, _step_of_limit),
    *(_on_demand_base, _number_of_types, _volume, _scratch_disk, _group_size, _gpu_memory, _tags_of_pool),
)
