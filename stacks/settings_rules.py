"""What the keys of a stack file must agree on. Each rule is a pure generator of problems.

A rule gets only sections that parsed; it reads what it needs and stays silent about what is missing, because
the missing or malformed key has been reported already.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import cache
from ipaddress import IPv4Network
from itertools import pairwise
from typing import Any
from zoneinfo import available_timezones

from stacks import alicloud_rules, image_rules, naming, pool_rules
from stacks.catalog import Cloud
from stacks.errors import Problem
from stacks.settings import (
    Access,
    Budget,
    Image,
    Nat,
    Network,
    OnExceeded,
    Pool,
    Reaper,
    Storage,
    ThresholdKind,
)

PRIVATE_RANGES = tuple(IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
WIDEST_PUBLIC_PREFIX = 20

# S3 refuses bucket names over 63 characters; IAM role names end at 64 (docs.aws.amazon.com, "Quotas" pages).
LONGEST_BUCKET_NAME = 63
LONGEST_ROLE_NAME = 64
# AWSServiceRoleForAutoScaling_gpu-fleet-<stack>: the longest name that IAM takes with that beginning.
LONGEST_STACK_NAME_AWS = LONGEST_ROLE_NAME - len("AWSServiceRoleForAutoScaling_gpu-fleet-")

ACCOUNT_DIGITS = {Cloud.AWS: 12, Cloud.ALICLOUD: 16}
REGION_PATTERN = {
    # Not China, and not the isolated regions: policies name principals and endpoints as elsewhere.
    Cloud.AWS: r"(?!cn-)[a-z]{2}(-gov)?-[a-z]+-\d",
    Cloud.ALICLOUD: r"[a-z]{2}-[a-z]+(-\d)?",
}
ZONE_SUFFIX_PATTERN = {Cloud.AWS: r"[a-z]", Cloud.ALICLOUD: r"-?[a-z]"}
ROTATION_DAYS_AWS = 90
FREEZE_STAGES = 2
# docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_budgets_NotificationWithSubscribers.html and
# API_budgets_CreateBudget.html
MOST_RECIPIENTS_AWS, MOST_THRESHOLDS_AWS = 10, 10
# The stack's own security groups (firewall.py of either cloud), each named like a pool's.
OWN_GROUPS = ("endpoints", "home", "scratch", "image-builder")
LUSTRE_FIRST_GIB = 1200
LUSTRE_STEP_GIB = 2400

DEFAULTS = {"access": Access, "storage": Storage, "budget": Budget, "reaper": Reaper, "image": Image}


def check(name: str, sound: Mapping[str, Any], absent: Set[str]) -> list[Problem]:
    """All rules over the sections that parsed.

    Args:
        name: the stack's name.
        sound: top-level key -> parsed value, without those that did not parse; such pools are None.
        absent: keys the file does not name, for which the defaults must hold.
    """
    section = {key: make() for key, make in DEFAULTS.items() if key in absent} | dict(sound)
    cloud: Cloud | None = section.get("cloud")
    network: Network | None = section.get("network")
    problems = [
        *_name(name, cloud),
        *_identity(name, cloud, section.get("region"), section.get("account_id")),
    ]
    if network is not None:
        problems += _network(network, cloud, section.get("region"))
    if "access" in section:
        problems += _access(section["access"])
    if "storage" in section:
        problems += _storage(section["storage"], cloud)
    if "budget" in section:
        problems += _budget(section["budget"], cloud, emulated=bool(section.get("endpoint_url")))
    if "reaper" in section:
        problems += _reaper(section["reaper"])
    if "image" in section:
        emulated = bool(section.get("endpoint_url"))
        problems += image_rules.check(section["image"], cloud, network, emulated=emulated)
    problems += _pools(name, section.get("pools", ()), network, cloud, section.get("image"))
    if cloud is not None:
        problems += alicloud_rules.check(name, cloud, section)
    return problems


def _name(name: str, cloud: Cloud | None) -> Iterator[Problem]:
    if not re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name):
        yield Problem("stack", name, "must be lower case letters, digits and dashes, starting with a letter")
    if cloud is Cloud.AWS and len(name) > LONGEST_STACK_NAME_AWS:
        allowed = f"too long for the name of its scaling role: {LONGEST_STACK_NAME_AWS} characters at most"
        yield Problem("stack", name, allowed)


def _identity(name: str, cloud: Cloud | None, region: str | None, account: str | None) -> Iterator[Problem]:
    if cloud is None:
        return
    if region is not None and not re.fullmatch(REGION_PATTERN[cloud], region):
        example = "us-east-1 (none in China)" if cloud is Cloud.AWS else "cn-hangzhou"
        yield Problem("region", region, f"must be a region of {cloud}, such as {example}")
    if account is None:
        return
    if not re.fullmatch(rf"\d{{{ACCOUNT_DIGITS[cloud]}}}", account):
        allowed = f"must be the {ACCOUNT_DIGITS[cloud]} digits of an account of {cloud}"
        yield Problem("account_id", account, allowed)
    bucket = naming.prefixed(name, "checkpoints", account)
    if len(bucket) > LONGEST_BUCKET_NAME:
        allowed = f"too long: bucket {bucket} has {len(bucket)} characters, {LONGEST_BUCKET_NAME} allowed"
        yield Problem("stack", name, allowed)


def _network(network: Network, cloud: Cloud | None, region: str | None) -> Iterator[Problem]:
    cidr = network.cidr
    if not any(cidr.subnet_of(private) for private in PRIVATE_RANGES):
        yield Problem("network.cidr", str(cidr), "not private: must lie in 10/8, 172.16/12 or 192.168/16")
    if cidr.prefixlen > naming.LONGEST_NETWORK_PREFIX:
        largest = naming.LONGEST_NETWORK_PREFIX
        allowed = f"too small for the zones: {naming.ZONE_SLOTS} zone slots need /{largest} or larger"
        yield Problem("network.cidr", str(cidr), allowed)
    if cidr.prefixlen < naming.SHORTEST_NETWORK_PREFIX:
        yield Problem("network.cidr", str(cidr), f"too large: /{naming.SHORTEST_NETWORK_PREFIX} at most")
    for index, peer in enumerate(network.peers):
        if peer.overlaps(cidr):
            yield Problem(
                "network.cidr", str(cidr), f"overlaps network.peers[{index}] {peer}; must be apart from it"
            )
    if network.nat is Nat.NONE and not network.interface_endpoints:
        allowed = "must be true where network.nat is none: private machines reach nothing otherwise"
        yield Problem("network.interface_endpoints", False, allowed)
    yield from _zones(network.zones, cloud, region)


def _zones(zones: tuple[str, ...], cloud: Cloud | None, region: str | None) -> Iterator[Problem]:
    for zone, count in Counter(zones).items():
        if count > 1:
            yield Problem("network.zones", zone, f"named {count} times; each zone once")
    if cloud is None or region is None:
        return
    for index, zone in enumerate(zones):
        if not re.fullmatch(re.escape(region) + ZONE_SUFFIX_PATTERN[cloud], zone):
            example = f"{region}a" if region[-1].isdigit() else f"{region}-a"
            yield Problem(
                f"network.zones[{index}]", zone, f"must be a zone of region {region}, such as {example}"
            )


def _access(access: Access) -> Iterator[Problem]:
    for site, network in access.ssh_from.items():
        key = f"access.ssh_from.{site}"
        private = any(network.subnet_of(private) for private in PRIVATE_RANGES)
        if network.prefixlen == 0:
            allowed = "the whole internet is never let in; name a private or office network"
            yield Problem(key, str(network), allowed)
        elif not private and network.prefixlen < WIDEST_PUBLIC_PREFIX:
            yield Problem(key, str(network), f"a public network must be /{WIDEST_PUBLIC_PREFIX} or narrower")

    for network, count in Counter(access.ssh_from.values()).items():
        if count > 1:
            yield Problem("access.ssh_from", str(network), f"named {count} times; each network once")


def _storage(storage: Storage, cloud: Cloud | None) -> Iterator[Problem]:
    if cloud is Cloud.AWS and storage.key_rotation_days != ROTATION_DAYS_AWS:
        allowed = "must be 90 on AWS, whose KMS rotates after 90 days at the soonest"
        yield Problem("storage.key_rotation_days", storage.key_rotation_days, allowed)
    size = storage.scratch_gib
    if cloud is not Cloud.ALICLOUD and size and size != LUSTRE_FIRST_GIB and size % LUSTRE_STEP_GIB:
        allowed = f"Lustre comes as {LUSTRE_FIRST_GIB} or a multiple of {LUSTRE_STEP_GIB} GiB; 0 for none"
        yield Problem("storage.scratch_gib", size, allowed)


def _budget(budget: Budget, cloud: Cloud | None, *, emulated: bool) -> Iterator[Problem]:
    if not budget.recipients and not emulated:
        yield Problem("budget.recipients", [], "needs at least one e-mail address")
    yield from _told(budget, cloud)
    currencies = ("USD",) if cloud is Cloud.AWS else ("CNY", "USD")
    if budget.currency not in currencies:
        yield Problem(
            "budget.currency", budget.currency, f"must be one of {', '.join(currencies)} on {cloud}"
        )
    for kind in {threshold.kind for threshold in budget.thresholds}:
        percents = [threshold.percent for threshold in budget.thresholds if threshold.kind is kind]
        if any(later <= earlier for earlier, later in pairwise(percents)):
            yield Problem("budget.thresholds", percents, f"the percents of kind {kind} must rise")
    actual = [threshold.percent for threshold in budget.thresholds if threshold.kind is ThresholdKind.ACTUAL]
    if budget.on_exceeded is OnExceeded.FREEZE and len(actual) < FREEZE_STAGES:
        allowed = (
            "needs two thresholds of kind actual: pools are capped at the last but one, closed at the last"
        )
        yield Problem("budget.on_exceeded", str(budget.on_exceeded), allowed)


def _told(budget: Budget, cloud: Cloud | None) -> Iterator[Problem]:
    for address, count in Counter(budget.recipients).items():
        if count > 1:
            yield Problem("budget.recipients", address, f"named {count} times; each address once")
    if cloud is Cloud.AWS:
        for key, many, most in (
            ("recipients", len(budget.recipients), MOST_RECIPIENTS_AWS),
            ("thresholds", len(budget.thresholds), MOST_THRESHOLDS_AWS),
        ):
            if many > most:
                yield Problem(f"budget.{key}", f"{many} {key}", f"AWS Budgets takes {most} at most")


@cache
def _time_zones() -> Set[str]:
    """Every IANA name; the library looks through hundreds of files for them."""
    return available_timezones()


def _reaper(reaper: Reaper) -> Iterator[Problem]:
    if reaper.time_zone not in _time_zones():
        yield Problem(
            "reaper.time_zone", reaper.time_zone, "must be an IANA time zone, such as Europe/Berlin"
        )


def _pools(
    stack: str,
    pools: tuple[Pool | None, ...],
    network: Network | None,
    cloud: Cloud | None,
    image: Image | None,
) -> Iterator[Problem]:
    for name, count in Counter(pool.name for pool in pools if pool is not None).items():
        if count > 1:
            yield Problem("pools", name, f"{count} pools of this name; each name once")
    for index, pool in enumerate(pools):
        if pool is None:
            continue
        key = f"pools[{index}]"
        if pool.name in OWN_GROUPS:
            allowed = f"names a security group of the stack itself; any name but {', '.join(OWN_GROUPS)}"
            yield Problem(f"{key}.name", pool.name, allowed)
        role = naming.prefixed(stack, pool.name, "instance")
        room = LONGEST_ROLE_NAME - naming.AUTONAME_SUFFIX_LENGTH
        if len(role) > room:
            allowed = f"too long once prefixed: role {role} has {len(role)} characters, {room} allowed"
            yield Problem(f"{key}.name", pool.name, allowed)
        yield from pool_rules.check(key, pool, network, cloud, image)
