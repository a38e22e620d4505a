"""Quantities of a stack's paid items: instances, disks, gateways, hours. Pure, and without prices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH
from gpu_fleet_stacks.settings.pool_rules import RESERVED_MARKETS
from gpu_fleet_stacks.settings.pools import GroupPlan, group_plans
from gpu_fleet_stacks.settings.schema import Nat, NetworkSettings, Pool, Redundancy, Stack

# The most Sundays of a month; how long a build without capacity is repeated
# (image/gpu_fleet_image/controllers/builds/build_controller.py).
SUNDAYS, RETRY_HOURS = 5, 6
# How long builds are kept (stacks/gpu_fleet_stacks/aws/image.py), and the size of one: the base's own
# packages, driver, containers and some 10 GB of wheels, mostly torch with CUDA. No account has measured the
# size yet.
KEPT_IMAGE_WEEKS, IMAGE_GB = 8, 25
# Of each volume on AWS: gp3 includes them without extra charge (aws.amazon.com/ebs/general-purpose).
VOLUME_IOPS = 3000
# Interface endpoints of a stack: as many as the clouds' endpoints.py names; a test compares them.
ENDPOINTS = {Cloud.AWS: 12, Cloud.ALICLOUD: 1}


class Level(StrEnum):
    """Fill level of the pools: at the stack's start, at their minimum, at their maximum."""

    NOW = "now"
    MIN = "min"
    MAX = "max"


class CostKind(StrEnum):
    """Kind of a paid item."""

    COMPUTE = "compute"
    DISKS = "disks"
    NAT = "nat"
    ENDPOINTS = "endpoints"
    STORAGE = "storage"
    LOGS = "logs"
    TRAFFIC = "traffic"
    IMAGES = "images"


@dataclass(frozen=True)
class Volumes:
    """Amounts that users will store and send, which no stack file names: by default 100 GB of most.

    Attributes:
        bucket_gb: in all buckets, on average over the month.
        home_gb: in homes, where they grow automatically.
        log_gb: flow log, and logs of instances, received within a month.
        nat_gb: through NAT within a month.
        egress_gb: to the internet within a month; none by default, as is the next.
        snapshot_gb: of disks, on average over the month.
    """

    bucket_gb: int = 100
    home_gb: int = 100
    log_gb: int = 100
    nat_gb: int = 100
    egress_gb: int = 0
    snapshot_gb: int = 0


DEFAULT_VOLUMES = Volumes()


def instances(stack: Stack, pool: Pool) -> Mapping[Level, int]:
    """Return the number of a pool's instances at each level.

    A pool with a group for each zone starts in the first zone and may use any other, so in the worst case
    every group is full. On-demand instances of a spot pool replace spot instances and are not added. The
    mover starts the spares though nobody asks.
    """
    most = sum(plan.size.max for plan in _of_own_market(stack, pool))
    now = min(pool.size.desired + pool.spare, pool.size.max)
    return {Level.NOW: now, Level.MIN: pool.size.min + pool.spare, Level.MAX: most}


def reserved_instances(pool: Pool) -> int:
    """Return how many instances are paid for whether they run or not: all that the pool may reserve."""
    if pool.reservations:
        return sum(held.count for held in pool.reservations)
    return pool.size.max if pool.market in RESERVED_MARKETS else 0


def on_demand_instances(stack: Stack, pool: Pool) -> Mapping[Level, int]:
    """Return the number of a spot pool's on-demand instances: each group buys its own base first."""
    base, groups = pool.on_demand_base, {Level.MAX: len(_of_own_market(stack, pool))}
    return {level: min(base * groups.get(level, 1), many) for level, many in instances(stack, pool).items()}


def _of_own_market(stack: Stack, pool: Pool) -> list[GroupPlan]:
    return [plan for plan in group_plans(stack, pool) if plan.market is pool.market]


def gateways(network: NetworkSettings) -> int:
    """Return the number of NAT gateways, each with a public address; 0 in an existing VPC."""
    if network.existing is not None:
        return 0
    return {Nat.NONE: 0, Nat.ONE: 1, Nat.PER_ZONE: len(network.zones)}[network.nat]


def shared_units(stack: Stack, volumes: Volumes = DEFAULT_VOLUMES) -> Iterator[tuple[str, CostKind, int]]:
    """Yield the items that all pools of a stack share: name of the price, kind, and units a month."""
    network, storage = stack.network, stack.storage
    if many := gateways(network):
        yield "nat_gateway", CostKind.NAT, many * HOURS_PER_MONTH
        yield "public_address", CostKind.NAT, many * HOURS_PER_MONTH
        yield "nat_traffic", CostKind.NAT, volumes.nat_gb
    if network.interface_endpoints:
        hours = ENDPOINTS[stack.cloud] * len(network.zones) * HOURS_PER_MONTH
        yield "endpoint", CostKind.ENDPOINTS, hours
    copies = 1 if storage.replica_region is None else 2
    yield bucket_price(stack), CostKind.STORAGE, copies * volumes.bucket_gb
    if storage.replica_region is not None:  # all that is stored was sent, at most once a month
        yield "replica_traffic", CostKind.STORAGE, volumes.bucket_gb
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
    if volumes.egress_gb:
        yield "egress", CostKind.TRAFFIC, volumes.egress_gb
    if volumes.snapshot_gb:
        yield "snapshot", CostKind.STORAGE, volumes.snapshot_gb


def uncounted(stack: Stack) -> Iterator[str]:
    """Yield what is paid by use in some stacks only, and what no price and no volume here counts."""
    if stack.storage.home and stack.cloud is Cloud.AWS:
        yield "reads and writes of homes (elastic throughput of EFS)"
    if stack.network.interface_endpoints:
        yield "traffic of interface endpoints"
    if stack.logs.data_events:
        yield "data events of CloudTrail"
    if stack.image.scan:
        yield "scans of Amazon Inspector"


@dataclass(frozen=True)
class MonthOfBuilds:
    """Quantities of a month of image builds on AWS, at one level.

    Attributes:
        builder_hours: of the instance that builds, and of a second one where a scan has its own test.
        canary_hours: of a GPU instance that tests the built image.
        snapshot_gb: of every image that is kept.
    """

    builder_hours: int
    canary_hours: int
    snapshot_gb: int


def canary_types(stack: Stack) -> list[str]:
    """Return the GPU types of the stack on which a built image may be tested, the cheapest first.

    Empty where no type runs the image, or ``image.canary`` is false. Image Builder uses one that is
    available.
    """
    known = {name: catalog.load().get(name) for pool in stack.pools for name in pool.types}
    fitting = [kind for kind in known.values() if kind.gpu_count and kind.runs_bundled_image and kind.price]
    by_price = sorted(fitting, key=lambda kind: (kind.price.amount_per_hour if kind.price else 0, kind.name))
    return [kind.name for kind in by_price] if stack.image.canary else []


def image_builds(stack: Stack) -> Mapping[Level, MonthOfBuilds]:
    """Return image builds per month, usual and worst case.

    Usually one build runs each Sunday. In the worst case it is repeated for six hours for want of capacity,
    and each kept image fills its disk. Hours are whole, since a build takes most of one.
    """
    each = 2 if stack.image.scan else 1
    kept = KEPT_IMAGE_WEEKS + 1
    usual = MonthOfBuilds(SUNDAYS * each, SUNDAYS, kept * IMAGE_GB)
    worst = MonthOfBuilds(SUNDAYS * (each + RETRY_HOURS * each), SUNDAYS, kept * stack.image.size_gib)
    return {Level.NOW: usual, Level.MIN: usual, Level.MAX: worst}


def bucket_price(stack: Stack) -> str:
    """Return the price of a bucket: S3 always stores copies in several zones, OSS only on request."""
    return "bucket_zone_redundant" if stack.storage.redundancy is Redundancy.ZRS else "bucket"


def disk_gib(stack: Stack, pool: Pool) -> int:
    """Return the GiB of a pool's disks with every group full."""
    return instances(stack, pool)[Level.MAX] * (pool.volume_gib + pool.scratch_gib)
