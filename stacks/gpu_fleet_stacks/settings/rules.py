"""Rules between the keys of a stack file. Each rule is a pure generator of problems.

A rule reads what it needs from the stack. It ends at a field that did not parse (see ``draft``), because the
missing or malformed key has been reported already. So each rule reads as little as it can.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from ipaddress import IPv4Network
from itertools import pairwise
from zoneinfo import available_timezones

from gpu_fleet_stacks.catalog import Cloud, regions
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import (
    Nat,
    OnExceeded,
    Pool,
    Purpose,
    Stack,
    ThresholdKind,
    alicloud_rules,
    existing_file_rules,
    existing_rules,
    image_rules,
    neighbours,
    people_rules,
    pool_rules,
    price_rules,
    queue_rules,
)
from gpu_fleet_stacks.settings.draft import NotParsedError, problems_of

PRIVATE_RANGES = tuple(IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
WIDEST_PUBLIC_PREFIX = 20

# S3 refuses bucket names over 63 characters; IAM role names end at 64 (docs.aws.amazon.com, "Quotas" pages).
LONGEST_BUCKET_NAME = 63
LONGEST_ROLE_NAME = 64
# AWSServiceRoleForAutoScaling_gpu-fleet-<stack>: the longest name that IAM takes with that beginning.
LONGEST_STACK_NAME_AWS = LONGEST_ROLE_NAME - len("AWSServiceRoleForAutoScaling_gpu-fleet-")

# A rule's description says "SSH from SITE" (docs.aws.amazon.com/AWSEC2/latest/APIReference/API_IpRange.html).
SITE_AWS = re.compile(r"[A-Za-z0-9. _:/()#,@\[\]+=&;{}!$*-]{1,200}")

ACCOUNT_DIGITS = {Cloud.AWS: 12, Cloud.ALICLOUD: 16}
ZONE_SUFFIX_PATTERN = {Cloud.AWS: r"[a-z]", Cloud.ALICLOUD: r"-?[a-z]"}
ROTATION_DAYS_AWS = 90
FREEZE_STAGES = 2
# docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_budgets_NotificationWithSubscribers.html and
# API_budgets_CreateBudget.html
MOST_FILTERS_AWS = 200  # filter policies of a topic (AWS general reference, SNS quotas)
MOST_RECIPIENTS_AWS, MOST_THRESHOLDS_AWS = 10, 10
# The stack's own security groups (firewall.py of either cloud), which have names like a pool's.
OWN_GROUPS = ("endpoints", "home", "scratch", "image-builder")
LUSTRE_FIRST_GIB = 1200
LUSTRE_STEP_GIB = 2400

CURRENCIES = {Cloud.AWS: ("USD",), Cloud.ALICLOUD: ("CNY", "USD")}


def check(stack: Stack) -> list[Problem]:
    """Return the problems of all rules that the parsed fields allow to check."""
    return [
        *problems_of(_OF_STACK, stack),
        *problems_of((_of_pools,), stack),
    ]


def _of_pools(stack: Stack) -> Iterator[Problem]:
    for index, pool in enumerate(stack.pools):
        rules = (*POOL_RULES, *pool_rules.RULES, *alicloud_rules.POOL_RULES, *price_rules.POOL_RULES)
        rules = (*rules, *queue_rules.POOL_RULES)
        yield from problems_of(rules, f"pools[{index}]", pool, stack)


def _name(stack: Stack) -> Iterator[Problem]:
    if not re.fullmatch(naming.NAME_FORM, stack.name):
        allowed = f"must be {naming.NAME_RULE}"
        yield Problem("stack", stack.name, allowed)


def _length_of_name(stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.AWS and len(stack.name) > LONGEST_STACK_NAME_AWS:
        allowed = f"too long for the name of its scaling role: {LONGEST_STACK_NAME_AWS} characters at most"
        yield Problem("stack", stack.name, allowed)


def _region(stack: Stack) -> Iterator[Problem]:
    """Refuse AWS regions in China and isolated regions: their principals and endpoints have other names."""
    known = regions.of_cloud(stack.cloud)
    if stack.region not in known:
        near = ", ".join(get_close_matches(stack.region, known, n=3, cutoff=0))
        none = " (none in China)" if stack.cloud is Cloud.AWS else ""
        yield Problem("region", stack.region, f"must be a region of {stack.cloud}, such as {near}{none}")


def _replica_region(stack: Stack) -> Iterator[Problem]:
    """Refuse a region of copies that is unknown, the stack's own, or of another partition."""
    region = stack.storage.replica_region
    if region is None:
        return
    known = [each for each in regions.of_cloud(stack.cloud) if each != stack.region]
    if stack.cloud is Cloud.AWS:
        known = [each for each in known if each.startswith("us-gov-") == stack.region.startswith("us-gov-")]
    if region not in known:
        near = ", ".join(get_close_matches(region, known, n=3, cutoff=0))
        allowed = f"must be another region of {stack.cloud} than {stack.region}, such as {near}"
        yield Problem("storage.replica_region", region, allowed)


def _account(stack: Stack) -> Iterator[Problem]:
    digits = ACCOUNT_DIGITS[stack.cloud]
    if not re.fullmatch(rf"[0-9]{{{digits}}}", stack.account_id):
        allowed = f"must be the {digits} digits of an account of {stack.cloud}"
        yield Problem("account_id", stack.account_id, allowed)


def _length_of_buckets(stack: Stack) -> Iterator[Problem]:
    has_copy = stack.storage.replica_region is not None
    bucket = stack.replica_name("checkpoints") if has_copy else stack.bucket_name("checkpoints")
    if len(bucket) > LONGEST_BUCKET_NAME:
        allowed = f"too long: bucket {bucket} has {len(bucket)} characters, {LONGEST_BUCKET_NAME} allowed"
        yield Problem("stack", stack.name, allowed)


def _cidr(stack: Stack) -> Iterator[Problem]:
    cidr = stack.network.cidr
    if cidr is None:
        return
    if not any(cidr.subnet_of(private) for private in PRIVATE_RANGES):
        yield Problem("network.cidr", str(cidr), "not private: must be in 10/8, 172.16/12 or 192.168/16")
    if cidr.prefixlen > naming.LONGEST_NETWORK_PREFIX:
        largest = naming.LONGEST_NETWORK_PREFIX
        allowed = f"too small for the zones: {naming.ZONE_SLOTS} zone slots need /{largest} or larger"
        yield Problem("network.cidr", str(cidr), allowed)
    if cidr.prefixlen < naming.SHORTEST_NETWORK_PREFIX:
        yield Problem("network.cidr", str(cidr), f"too large: /{naming.SHORTEST_NETWORK_PREFIX} at most")


def _peers(stack: Stack) -> Iterator[Problem]:
    cidr = stack.network.cidr
    for index, peer in enumerate(stack.network.peers):
        if cidr is not None and peer.overlaps(cidr):
            yield Problem(
                "network.cidr", str(cidr), f"overlaps network.peers[{index}] {peer}; must be apart from it"
            )


def _way_out(stack: Stack) -> Iterator[Problem]:
    network = stack.network
    if network.nat is Nat.NONE and network.existing is None and not network.interface_endpoints:
        allowed = "must be true where network.nat is none: private instances reach nothing otherwise"
        yield Problem("network.interface_endpoints", False, allowed)


def _each_zone_once(stack: Stack) -> Iterator[Problem]:
    for zone, count in Counter(stack.network.zones).items():
        if count > 1:
            yield Problem("network.zones", zone, f"named {count} times; each zone once")


def _zones(stack: Stack) -> Iterator[Problem]:
    region = stack.region
    if region not in regions.of_cloud(stack.cloud):
        return
    for index, zone in enumerate(stack.network.zones):
        if not re.fullmatch(re.escape(region) + ZONE_SUFFIX_PATTERN[stack.cloud], zone):
            example = f"{region}a" if region.isascii() and region[-1:].isdigit() else f"{region}-a"
            yield Problem(
                f"network.zones[{index}]", zone, f"must be a zone of region {region}, such as {example}"
            )


def _slots(stack: Stack) -> Iterator[Problem]:
    """Require a slot for each zone, an eighth of the network; an unused zone may keep its slot."""
    slots = stack.network.slots
    if slots is None:
        return
    for zone in stack.network.zones:
        if zone not in slots:
            free = min(set(range(naming.ZONE_SLOTS)) - set(slots.values()), default=None)
            allowed = f"required, and missing; the first free slot is {free}"
            yield Problem(f"network.slots.{zone}", None, allowed)
    for slot, count in Counter(slots.values()).items():
        if count > 1:
            yield Problem("network.slots", slot, f"given to {count} zones; each slot to one zone")


def _access(stack: Stack) -> Iterator[Problem]:
    for site, network in stack.access.ssh_from.items():
        key = f"access.ssh_from.{site}"
        private = any(network.subnet_of(private) for private in PRIVATE_RANGES)
        if network.prefixlen == 0:
            allowed = "the whole internet is never let in; name a private or office network"
            yield Problem(key, str(network), allowed)
        elif not private and network.prefixlen < WIDEST_PUBLIC_PREFIX:
            yield Problem(key, str(network), f"a public network must be /{WIDEST_PUBLIC_PREFIX} or narrower")


def _sites(stack: Stack) -> Iterator[Problem]:
    for site in stack.access.ssh_from:
        if stack.cloud is Cloud.AWS and not SITE_AWS.fullmatch(site):
            allowed = "must be up to 200 ASCII letters, digits, spaces and any of ._-:/()#,@[]+=&;{}!$*"
            yield Problem("access.ssh_from", site, allowed)


def _each_network_once(stack: Stack) -> Iterator[Problem]:
    for network, count in Counter(stack.access.ssh_from.values()).items():
        if count > 1:
            yield Problem("access.ssh_from", str(network), f"named {count} times; each network once")


def _key_rotation(stack: Stack) -> Iterator[Problem]:
    days = stack.storage.key_rotation_days
    if days != ROTATION_DAYS_AWS and stack.cloud is Cloud.AWS:
        allowed = "must be 90 on AWS, whose KMS rotates after 90 days at the soonest"
        yield Problem("storage.key_rotation_days", days, allowed)


def _scratch(stack: Stack) -> Iterator[Problem]:
    size = stack.storage.scratch_gib
    if stack.cloud is not Cloud.ALICLOUD and size and size != LUSTRE_FIRST_GIB and size % LUSTRE_STEP_GIB:
        allowed = f"Lustre comes as {LUSTRE_FIRST_GIB} or a multiple of {LUSTRE_STEP_GIB} GiB; 0 for none"
        yield Problem("storage.scratch_gib", size, allowed)


def _recipients(stack: Stack) -> Iterator[Problem]:
    if not stack.budget.recipients and not stack.emulated:
        yield Problem("budget.recipients", [], "needs at least one e-mail address")


def _each_recipient_once(stack: Stack) -> Iterator[Problem]:
    for address, count in Counter(stack.budget.recipients).items():
        if count > 1:
            yield Problem("budget.recipients", address, f"named {count} times; each address once")


def _number_of_recipients(stack: Stack) -> Iterator[Problem]:
    many = len(stack.budget.recipients)
    if many > MOST_RECIPIENTS_AWS and stack.cloud is Cloud.AWS:
        allowed = f"AWS Budgets takes {MOST_RECIPIENTS_AWS} at most"
        yield Problem("budget.recipients", f"{many} recipients", allowed)


def _notify(stack: Stack) -> Iterator[Problem]:
    notify = stack.notify
    if notify.users and notify.sender is None and stack.cloud is Cloud.ALICLOUD:
        allowed = "must be a sender address of DirectMail: notify.users can be reached by no other mail there"
        yield Problem("notify.sender", None, allowed)
    if notify.sender is not None and not notify.users:
        yield Problem("notify.users", {}, "needs at least one user, since notify.sender mails them alone")
    many = len(set(notify.users.values()))
    if many > MOST_FILTERS_AWS and notify.sender is None and stack.cloud is Cloud.AWS:
        allowed = f"a topic filters for {MOST_FILTERS_AWS} addresses at most; name a notify.sender"
        yield Problem("notify.users", f"{many} addresses", allowed)


def _each_webhook_once(stack: Stack) -> Iterator[Problem]:
    for secret, count in Counter(webhook.secret for webhook in stack.notify.webhooks).items():
        if count > 1:
            yield Problem("notify.webhooks", secret, f"named {count} times; each secret once")


def _number_of_thresholds(stack: Stack) -> Iterator[Problem]:
    many = len(stack.budget.thresholds)
    if not many and not stack.emulated:
        yield Problem("budget.thresholds", [], "needs at least one: the recipients get no alarm otherwise")
    if many > MOST_THRESHOLDS_AWS and stack.cloud is Cloud.AWS:
        allowed = f"AWS Budgets takes {MOST_THRESHOLDS_AWS} at most"
        yield Problem("budget.thresholds", f"{many} thresholds", allowed)


def _currency(stack: Stack) -> Iterator[Problem]:
    allowed, currency = CURRENCIES[stack.cloud], stack.budget.currency
    if currency not in allowed:
        why = "prices of instance types there are in no other currency"
        yield Problem("budget.currency", currency, f"must be {' or '.join(allowed)} on {stack.cloud}: {why}")


def _rising_thresholds(stack: Stack) -> Iterator[Problem]:
    thresholds = stack.budget.thresholds
    for kind in sorted({threshold.kind for threshold in thresholds}):
        percents = [threshold.percent for threshold in thresholds if threshold.kind is kind]
        if any(later <= earlier for earlier, later in pairwise(percents)):
            yield Problem("budget.thresholds", percents, f"the percents of kind {kind} must rise")


def _freeze(stack: Stack) -> Iterator[Problem]:
    budget = stack.budget
    actual = [threshold.percent for threshold in budget.thresholds if threshold.kind is ThresholdKind.ACTUAL]
    if budget.on_exceeded is not OnExceeded.FREEZE:
        return
    if len(actual) < FREEZE_STAGES:
        allowed = (
            "needs two thresholds of kind actual: pools are capped at the last but one, closed at the last"
        )
        yield Problem("budget.on_exceeded", str(budget.on_exceeded), allowed)
    if all(pool.purpose is not Purpose.TRAINING for pool in stack.pools):
        allowed = "needs a pool with purpose: training; no other freezes"
        yield Problem("budget.on_exceeded", str(budget.on_exceeded), allowed)


@cache
def _time_zones() -> Set[str]:
    """Return every IANA name; cached, since the library searches hundreds of files."""
    return available_timezones()


def _time_zone(stack: Stack) -> Iterator[Problem]:
    zone = stack.reaper.time_zone
    if zone not in _time_zones():
        near = get_close_matches(zone, sorted(_time_zones()), n=1)
        example = near[0] if near else "Europe/Berlin"
        yield Problem("reaper.time_zone", zone, f"must be an IANA time zone, such as {example}")


def _each_tag_once(stack: Stack) -> Iterator[Problem]:
    """Refuse tags whose keys differ only in capitals: IAM treats them as one key."""
    for key, count in Counter(key.lower() for key in stack.tags).items():
        if count > 1:
            alike = [each for each in stack.tags if each.lower() == key]
            yield Problem("tags", alike, "IAM holds these for one key: name one of them")


def _each_pool_once(stack: Stack) -> Iterator[Problem]:
    for name, count in Counter(_names_of_pools(stack)).items():
        if count > 1:
            yield Problem("pools", name, f"{count} pools of this name; each name once")


def _names_of_pools(stack: Stack) -> Iterator[str]:
    for pool in stack.pools:
        with suppress(NotParsedError):
            yield pool.name


def _each_reservation_once(stack: Stack) -> Iterator[Problem]:
    """Refuse a reservation of two pools: each would count its instances in the month as its own."""
    owners: dict[str, str] = {}
    for pool in stack.pools:
        with suppress(NotParsedError):
            for held in sorted({pool.reservation_id or "", *(each.id for each in pool.reservations)} - {""}):
                other = owners.setdefault(held, pool.name)
                if other != pool.name:
                    yield Problem(
                        "pools", pool.name, f"pool {other} has reservation {held}, too: one pool each"
                    )


def _own_group(key: str, pool: Pool, _: Stack) -> Iterator[Problem]:
    if pool.name in OWN_GROUPS:
        allowed = f"names a security group of the stack itself; any name but {', '.join(OWN_GROUPS)}"
        yield Problem(f"{key}.name", pool.name, allowed)


def _folder_of_all(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    """Refuse the name of a folder that all users write; stack ``local``, an emulator's, has such a pool."""
    if naming.pool_prefix(pool.name) == naming.SHARED_PREFIX and not stack.emulated:
        allowed = "is the folder of all pools in the data bucket, which every user writes; any other name"
        yield Problem(f"{key}.name", pool.name, allowed)


def _length_of_role(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    role = naming.prefixed(stack.name, pool.name, "instance")
    room = LONGEST_ROLE_NAME - naming.AUTONAME_SUFFIX_LENGTH
    if len(role) > room:
        allowed = f"too long once prefixed: role {role} has {len(role)} characters, {room} allowed"
        yield Problem(f"{key}.name", pool.name, allowed)


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (
    *(_name, _length_of_name, _region, _replica_region, _account, _length_of_buckets),
    *(_cidr, _peers, _way_out, _each_zone_once, _zones, _slots),
    *(_access, _sites, _each_network_once, _key_rotation, _scratch),
    *(_recipients, _each_recipient_once, _number_of_recipients, _number_of_thresholds),
    *(_notify, _each_webhook_once),
    *(_currency, _rising_thresholds, _freeze, _time_zone, _each_tag_once, _each_pool_once),
    *(neighbours.one_group_each, _each_reservation_once),
)
POOL_RULES = (_own_group, _folder_of_all, _length_of_role)
_OF_STACK = (
    *(*RULES, *image_rules.RULES, *alicloud_rules.RULES, *price_rules.RULES),
    *(*people_rules.RULES, *existing_rules.RULES, *existing_file_rules.RULES, *queue_rules.RULES),
)
