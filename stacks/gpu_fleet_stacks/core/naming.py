"""Names, tags and subnet arithmetic. Pure: no Pulumi, no cloud."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from gpu_fleet_image.core import metrics
from gpu_fleet_image.core.runs import ACCOUNT, JOBS, RUN, RUNS, SHA256

PROJECT = "gpu-fleet"
NAME_FORM = r"[a-z][a-z0-9-]*[a-z0-9]"
NAME_RULE = "lower case letters, digits and dashes: two or more, a letter first and no dash last"

# Eight slots are cut from every network, used or not, so that adding a zone never renumbers a subnet that
# already holds instances. No region of either cloud offers more than six zones to one account.
ZONE_SLOTS = 8
ZONE_SLOT_BITS = 3

# https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html: a subnet is /28 at the smallest.
SMALLEST_SUBNET_PREFIX = 28
PUBLIC_BITS_IN_SLOT = 2
LONGEST_NETWORK_PREFIX = SMALLEST_SUBNET_PREFIX - ZONE_SLOT_BITS - PUBLIC_BITS_IN_SLOT
SHORTEST_NETWORK_PREFIX = 16

# Pulumi appends "-" and seven random digits to a logical name that carries no physical one.
AUTONAME_SUFFIX_LENGTH = 8


@dataclass(frozen=True)
class ZoneSubnets:
    """The two subnets of one zone.

    Attributes:
        zone: the zone's name, say ``us-east-1a``.
        public: holds NAT gateways only; no instance ever starts here.
        private: holds the instances; twice as large as the public one.
    """

    zone: str
    public: IPv4Network
    private: IPv4Network


def subnets(cidr: IPv4Network, slots: Mapping[str, int]) -> tuple[ZoneSubnets, ...]:
    """Cut a network into eight slots, and a zone's slot into a public quarter and a private half.

    The third quarter of a slot stays free for a later use (a second private range, say).

    Args:
        cidr: the network, with a prefix from /16 to /23.
        slots: zone -> its slot, from 0 to 7 and each once.

    Returns:
        The zones in the order of their slots, whatever order they are named in.

    Raises ValueError when the network is too small, or there is no such slot.
    """
    if cidr.prefixlen > LONGEST_NETWORK_PREFIX:
        raise ValueError(
            f"{cidr} cannot hold {ZONE_SLOTS} zone slots: needs /{LONGEST_NETWORK_PREFIX} or larger"
        )
    if not set(slots.values()) <= set(range(ZONE_SLOTS)):
        raise ValueError(f"slots {sorted(slots.values())}: allowed are 0 to {ZONE_SLOTS - 1}")
    cut = list(cidr.subnets(prefixlen_diff=ZONE_SLOT_BITS))
    ordered = sorted(slots, key=lambda zone: slots[zone])
    return tuple(_split(zone, cut[slots[zone]]) for zone in ordered)


def _split(zone: str, slot: IPv4Network) -> ZoneSubnets:
    public = next(slot.subnets(prefixlen_diff=PUBLIC_BITS_IN_SLOT))
    _, private = slot.subnets(prefixlen_diff=1)
    return ZoneSubnets(zone, public, private)


def prefixed(stack: str, *parts: str) -> str:
    """Return the name of a resource of a stack: ``gpu-fleet-<stack>-<part>-<part>``."""
    return "-".join((PROJECT, stack, *parts))


REPLICATED = ("data", "checkpoints")  # buckets that `storage.replica_region` copies
SHARED_PREFIX = "shared/"  # of the data bucket: uploads of `gpu-fleet data put`, for all pools


def pool_prefix(pool: str) -> str:
    """Return the prefix of all objects that a pool's instances write, in the data and checkpoints buckets."""
    return f"{pool}/"


def kept_prefix(pool: str) -> str:
    """Return the prefix of files saved before a termination (instance/agent/kept_files.py): data bucket."""
    return f"{pool_prefix(pool)}keep/"


def words_prefix(account: str, pool: str) -> str:
    """Return the prefix of a pool's reports on an account's submitted runs (core/runs.py): records bucket."""
    return f"{RUNS}/{account}/{pool}/"


def run_prefixes(account: str) -> tuple[str, str]:
    """Return the prefixes of an account's jobs and of instances' reports on them: records bucket."""
    return f"{JOBS}/{account}/", f"{RUNS}/{account}/"


def tags(stack: str, owner: str, **more: str) -> dict[str, str]:
    """Return the tags that every taggable resource of a stack has.

    Args:
        stack: the stack's name, the value of ``gpu-fleet:stack``.
        owner: the user or team responsible for the resource, the value of ``gpu-fleet:owner``.
        more: further tags; ``Name`` stays as it is, any other key gets the ``gpu-fleet:`` prefix.
    """
    common = {f"{PROJECT}:stack": stack, f"{PROJECT}:owner": owner}
    return common | {key if key == "Name" else f"{PROJECT}:{key}": value for key, value in more.items()}


def session_document(stack: str) -> str:
    """Return the name of the session document of a stack that names accounts (Systems Manager)."""
    return prefixed(stack, "session")


def forward_document(stack: str) -> str:
    """Return the name of the port forwarding document (Systems Manager; `gpu-fleet connect`)."""
    return prefixed(stack, "forward")


def run_document(stack: str) -> str:
    """Return the name of the document that starts runs (Systems Manager), or of Cloud Assistant's command."""
    return prefixed(stack, "run")


RUN_PARAMETERS = {"Account": ACCOUNT.pattern, "Run": RUN.pattern, "Sha256": SHA256.pattern}
metric_namespace = metrics.namespace
