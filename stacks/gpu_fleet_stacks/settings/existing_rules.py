"""Rules for existing networks and buckets that the stack uses but does not own. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import Nat, Stack

# docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html: 8 digits until 2018, 17 since.
_AWS_ID = r"[0-9a-f]{8}(?:[0-9a-f]{9})?"
# www.alibabacloud.com/help/en/vpc/developer-reference/api-vpc-2016-04-28-createvpc and createvswitch
_ALICLOUD_ID = r"[0-9a-z]{8,32}"
VPC_IDS = {Cloud.AWS: f"vpc-{_AWS_ID}", Cloud.ALICLOUD: f"vpc-{_ALICLOUD_ID}"}
SUBNET_IDS = {Cloud.AWS: f"subnet-{_AWS_ID}", Cloud.ALICLOUD: f"vsw-{_ALICLOUD_ID}"}
VPC_EXAMPLE = {Cloud.AWS: "vpc-0123456789abcdef0", Cloud.ALICLOUD: "vpc-bp1opxu1zkhn00gzv26cn"}
SUBNET_EXAMPLE = {Cloud.AWS: "subnet-0123456789abcdef0", Cloud.ALICLOUD: "vsw-bp1s5fnvk4gn2tws03624"}
# Keys by their id, since an alias may be moved to another key:
# docs.aws.amazon.com/kms/latest/developerguide/concepts.html, "Key ARN";
# www.alibabacloud.com/help/en/kms/key-management-service/security-and-compliance, "ARN".
KEY_ARNS = {
    Cloud.AWS: r"arn:aws(-us-gov|-cn)?:kms:{region}:[0-9]{{12}}:key/[0-9a-f-]+",
    Cloud.ALICLOUD: r"acs:kms:{region}:[0-9]{{16}}:key/[0-9a-z-]+",
}
KEY_EXAMPLE = {
    Cloud.AWS: "arn:aws:kms:{region}:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    Cloud.ALICLOUD: "acs:kms:{region}:1234567890123456:key/key-szh0000000000000000",
}
OWN_BUCKETS = ("data", "checkpoints", "records", "access-logs")  # as in storage.py of either cloud
OF_OWN_NETWORK = "is only for the stack's own network; leave it out where network.existing names a VPC"


OWN_DATA = "data"


def _data_events(stack: Stack) -> Iterator[Problem]:
    if not stack.logs.data_events:
        return
    if stack.cloud is not Cloud.AWS:
        allowed = "is only for CloudTrail on AWS; on Alibaba Cloud logs.bucket_access records the requests"
        yield Problem("logs.data_events", True, allowed)
    elif not stack.logs.bucket_access:
        yield Problem("logs.data_events", True, "needs the bucket that logs.bucket_access: true makes")


def _cached_buckets(stack: Stack) -> Iterator[Problem]:
    """Require that cached buckets exist, once each, with the stack's own Lustre on AWS.

    API CreateDataRepositoryAssociation: 8 associations of a file system.
    """
    storage = stack.storage
    if not storage.cached_buckets:
        return
    key, names = "storage.cached_buckets", list(storage.cached_buckets)
    if stack.cloud is not Cloud.AWS:
        yield Problem(key, names, "is only for FSx for Lustre on AWS; leave it out")
        return
    if not storage.scratch_gib:
        yield Problem(key, names, "needs a Lustre of the stack's own: storage.scratch_gib")
    allowed = f"must be {OWN_DATA}, or a bucket of storage.existing.buckets"
    for name in names:
        if name != OWN_DATA and name not in storage.existing.buckets:
            yield Problem(key, name, allowed)
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(key, name, "is named more than once; each bucket once")


def _one_network(stack: Stack) -> Iterator[Problem]:
    """Require exactly one network: the stack's own or an existing one."""
    network = stack.network
    if network.cidr is None and network.existing is None:
        yield Problem("network.cidr", None, "required, and missing, unless network.existing names a VPC")
    if network.cidr is not None and network.existing is not None:
        yield Problem("network.cidr", str(network.cidr), OF_OWN_NETWORK)


def _not_of_existing(stack: Stack) -> Iterator[Problem]:
    """Refuse keys that an existing network would make meaningless."""
    network = stack.network
    if network.existing is None:
        return
    if network.nat is not Nat.ONE:
        allowed = "is only for the stack's own network; use network.existing.internet instead"
        yield Problem("network.nat", str(network.nat), allowed)
    if network.peers:
        yield Problem("network.peers", [str(peer) for peer in network.peers], OF_OWN_NETWORK)
    if network.s3_buckets:
        yield Problem("network.s3_buckets", list(network.s3_buckets), OF_OWN_NETWORK)


def _vpc(stack: Stack) -> Iterator[Problem]:
    existing, example = stack.network.existing, VPC_EXAMPLE[stack.cloud]
    if existing is not None and not re.fullmatch(VPC_IDS[stack.cloud], existing.vpc_id):
        allowed = f"must be the id of a VPC of {stack.cloud}, such as {example}"
        yield Problem("network.existing.vpc_id", existing.vpc_id, allowed)


def _subnets(stack: Stack) -> Iterator[Problem]:
    existing, example = stack.network.existing, SUBNET_EXAMPLE[stack.cloud]
    for zone, subnet in existing.subnets.items() if existing is not None else ():
        if not re.fullmatch(SUBNET_IDS[stack.cloud], subnet):
            kind = "subnet" if stack.cloud is Cloud.AWS else "vSwitch"
            allowed = f"must be the id of a {kind} of {stack.cloud}, such as {example}"
            yield Problem(f"network.existing.subnets.{zone}", subnet, allowed)


def _each_subnet_once(stack: Stack) -> Iterator[Problem]:
    existing = stack.network.existing
    for subnet, count in Counter(existing.subnets.values() if existing is not None else ()).items():
        if count > 1:
            allowed = f"given to {count} zones; a subnet is in one"
            yield Problem("network.existing.subnets", subnet, allowed)


def _subnets_of_zones(stack: Stack) -> Iterator[Problem]:
    existing, zones = stack.network.existing, stack.network.zones
    if existing is None:
        return
    for zone in zones:
        if zone not in existing.subnets:
            allowed = "required, and missing: network.zones names the zone"
            yield Problem(f"network.existing.subnets.{zone}", None, allowed)
    for zone, subnet in existing.subnets.items():
        if zone not in zones:
            allowed = f"of no zone in use; network.zones are {', '.join(zones)}"
            yield Problem(f"network.existing.subnets.{zone}", subnet, allowed)


def _own_buckets(stack: Stack) -> Iterator[Problem]:
    """Refuse the stack's own buckets: instances would get more permissions in them than the stack gives."""
    for bucket in stack.storage.existing.buckets:
        if bucket in {stack.bucket_name(kind) for kind in OWN_BUCKETS}:
            yield Problem("storage.existing.buckets", bucket, "is the stack's own; leave it out")


def _dots(stack: Stack) -> Iterator[Problem]:
    for bucket in stack.storage.existing.buckets:
        if stack.cloud is Cloud.ALICLOUD and "." in bucket:
            yield Problem("storage.existing.buckets", bucket, "a bucket of OSS has no dots in its name")


def _bucket_keys(stack: Stack) -> Iterator[Problem]:
    pattern = KEY_ARNS[stack.cloud].format(region=re.escape(stack.region))
    for bucket, use in stack.storage.existing.buckets.items():
        if use.key is not None and not re.fullmatch(pattern, use.key):
            example = KEY_EXAMPLE[stack.cloud].format(region=stack.region)
            allowed = f"must be the ARN of a key in {stack.region}, such as {example}"
            yield Problem(f"storage.existing.buckets.{bucket}.key", use.key, allowed)


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (
    *(_one_network, _not_of_existing, _vpc, _subnets, _each_subnet_once, _subnets_of_zones),
    *(_own_buckets, _dots, _bucket_keys, _cached_buckets, _data_events),
)
