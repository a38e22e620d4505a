"""How much a stack uses of what is paid for: instances, disks, gateways, hours. Pure, and without prices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from stacks import catalog
from stacks.catalog import Cloud
from stacks.catalog.money import HOURS_PER_MONTH
from stacks.settings.pools import GroupPlan, group_plans
from stacks.settings.schema import Nat, NetworkSettings, Pool, Redundancy, Stack

# Of a month, at most; how long a build without room is tried again (image/builds/keeper.py).
SUNDAYS, RETRY_HOURS = 5, 6
# How long builds are kept (stacks/aws/image.py), and what one stores: the base's own packages, driver,
# containers and some 10 GB of wheels, most of it torch with CUDA. No account has measured one yet.
KEPT_IMAGE_WEEKS, IMAGE_GB = 8, 25
# Interface endpoints of a stack: as many as the clouds' endpoints.py names; a test holds them together.
ENDPOINTS = {Cloud.AWS: 12, Cloud.ALICLOUD: 1}


class Level(StrEnum):
    """How full the pools are: as the stack starts them, at their minimum, at their maximum."""

    NOW = "now"
    MIN = "min"
    MAX = "max"


class CostKind(StrEnum):
    """What is paid for."""

    COMPUTE = "compute"
    DISKS = "disks"
    NAT = "nat"
    ENDPOINTS = "endpoints"
    STORAGE = "storage"
    LOGS = "logs"
    IMAGES = "images"


@dataclass(frozen=True)
class Volumes:
    """What users will store and send, which no stack file says: by default 100 GB of each.

    Attributes:
        bucket_gb: in all buckets, on average over the month.
        home_gb: in homes, where they grow by themselves.
        log_gb: flow log, and logs of instances, taken in within a month.
        nat_gb: through NAT within a month.
    """

    bucket_gb: int = 100
    home_gb: int = 100
    log_gb: int = 100
    nat_gb: int = 100


DEFAULT_VOLUMES = Volumes()


def instances(stack: Stack, pool: Pool) -> Mapping[Level, int]:
    """How many instances a pool has at each level.

    A pool with a group for each zone starts in the first and may move to any other, so at its worst every
    group is full. What a spot pool buys on demand instead is bought in the place of spot instances.
    """
    most = sum(plan.size.max for plan in _of_own_market(stack, pool))
    return {Level.NOW: pool.size.desired, Level.MIN: pool.size.min, Level.MAX: most}


def on_demand_instances(stack: Stack, pool: Pool) -> Mapping[Level, int]:
    """How many instances of a spot pool are bought on demand: each of its groups buys its own base first."""
    base, groups = pool.on_demand_base, {Level.MAX: len(_of_own_market(stack, pool))}
    return {level: min(base * groups.get(level, 1), many) for level, many in instances(stack, pool).items()}


def _of_own_market(stack: Stack, pool: Pool) -> list[GroupPlan]:
    return [plan for plan in group_plans(stack, pool) if plan.market is pool.market]


def gateways(network: NetworkSettings) -> int:
    """How many NAT gateways the stack has, each with a public address; in an existing VPC none."""
    if network.existing is not None:
        return 0
    return {Nat.NONE: 0, Nat.ONE: 1, Nat.PER_ZONE: len(network.zones)}[network.nat]


def shared_units(stack: Stack, volumes: Volumes = DEFAULT_VOLUMES) -> Iterator[tuple[str, CostKind, int]]:
    """What all pools of a stack use: the name of its price, its kind, and how many units a month."""
    network, storage = stack.network, stack.storage
    if many := gateways(network):
        yield "nat_gateway", CostKind.NAT, many * HOURS_PER_MONTH
        yield "public_address", CostKind.NAT, many * HOURS_PER_MONTH
        yield "nat_traffic", CostKind.NAT, volumes.nat_gb
    if network.interface_endpoints:
        hours = ENDPOINTS[stack.cloud] * len(network.zones) * HOURS_PER_MONTH
        yield "endpoint", CostKind.ENDPOINTS, hours
    yield bucket_price(stack), CostKind.STORAGE, volumes.bucket_gb
    if storage.home:
        grows = stack.cloud is Cloud.AWS
        yield "home", CostKind.STORAGE, volumes.home_gb if grows else storage.home_gib
    if storage.scratch_gib:
        yield "scratch", CostKind.STORAGE, storage.scratch_gib
    if stack.queued:
        yield "queue_controller", CostKind.COMPUTE, HOURS_PER_MONTH
        yield "disk", CostKind.DISKS, stack.image.size_gib
    if network.existing is None or stack.logs.instances:
        yield "log", CostKind.LOGS, volumes.log_gb


@dataclass(frozen=True)
class MonthOfBuilds:
    """What a month of image builds on AWS takes, at one level.

    Attributes:
        builder_hours: of the instance that builds, and of another like it where a scan has its own test.
        canary_hours: of a GPU instance that tries what was built.
        snapshot_gb: of every image that is kept.
    """

    builder_hours: int
    canary_hours: int
    snapshot_gb: int


def canary_types(stack: Stack) -> list[str]:
    """The GPU types of the stack on which a built image may be tried, the cheapest first.

    Empty where the stack has none that runs it, or wants none. Image Builder takes one that it can have.
    """
    known = {name: catalog.load().get(name) for pool in stack.pools for name in pool.types}
    fitting = [kind for kind in known.values() if kind.gpu_count and kind.runs_bundled_image and kind.price]
    by_price = sorted(fitting, key=lambda kind: (kind.price.amount_per_hour if kind.price else 0, kind.name))
    return [kind.name for kind in by_price] if stack.image.canary else []


def image_builds(stack: Stack) -> Mapping[Level, MonthOfBuilds]:
    """Of a stack that builds: each Sunday once and, at worst, again for six hours where there is no room.

    Whole hours, since a build takes most of one. At worst a kept image fills its disk.
    """
    each = 2 if stack.image.scan else 1
    kept = KEPT_IMAGE_WEEKS + 1
    usual = MonthOfBuilds(SUNDAYS * each, SUNDAYS, kept * IMAGE_GB)
    worst = MonthOfBuilds(SUNDAYS * (each + RETRY_HOURS * each), SUNDAYS, kept * stack.image.size_gib)
    return {Level.NOW: usual, Level.MIN: usual, Level.MAX: worst}


def bucket_price(stack: Stack) -> str:
    """S3 always keeps copies in several zones; OSS where the stack asks for them."""
    return "bucket_zone_redundant" if stack.storage.redundancy is Redundancy.ZRS else "bucket"


def disk_gib(stack: Stack, pool: Pool) -> int:
    """GiB of the disks of a pool with every group full."""
    return instances(stack, pool)[Level.MAX] * (pool.volume_gib + pool.scratch_gib)
