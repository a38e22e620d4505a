"""Table of every key of a stack file, with another valid value, and whether the change loses data."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Edit:
    """One change of a stack file.

    Attributes:
        key: its path, with [] for the first of a list; several of one section, or several sections, are
            joined by +, and their values are a tuple.
        value: the new value; for ``pools``, a function from the old list to the new one.
        loses: clouds whose providers replace or delete a resource that holds data.
    """

    key: str
    value: Any
    loses: tuple[str, ...] = ()


BOTH = ("aws", "alicloud")
SLOTS = {"aws": {"us-east-1a": 0, "us-east-1b": 1}, "alicloud": {"cn-shenzhen-d": 0, "cn-shenzhen-e": 1}}
ZONES = {cloud: list(slots) for cloud, slots in SLOTS.items()}
THIRD = {"aws": "us-east-1c", "alicloud": "cn-shenzhen-f"}
EXISTING = {
    "vpc_id": "vpc-0123456789abcdef0",
    "subnets": {"us-east-1a": "subnet-0a123456789abcdef", "us-east-1b": "subnet-0b123456789abcdef"},
}
EXISTING_VSWITCHES = {
    "vpc_id": "vpc-wz9opxu1zkhn00gzv26cn",
    "subnets": {"cn-shenzhen-d": "vsw-wz9d5fnvk4gn2tws03624", "cn-shenzhen-e": "vsw-wz9e5fnvk4gn2tws03624"},
}


PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBUYHkd0jd5yF1xIMu2nsW1SxNTgF2mIf8vY0wd1cmtp"
GROUP_ID = "0123456789-01234567-89ab-cdef-0123-456789abcdef"
BY_SSH = {"ssh_from": {"lab": "10.8.0.0/24"}, "people": {"bob": {"uid": 5002, "keys": [PUBLIC_KEY]}}}


def base(cloud: str) -> dict[str, Any]:
    """Return changes by which the valid stack file has every resource that holds data."""
    own = {"kms_instance_id": "kst-szh0000000000000000", "redundancy": "LRS"} if cloud == "alicloud" else {}
    return {
        "network": {"cidr": "10.0.0.0/16", "zones": ZONES[cloud], "slots": SLOTS[cloud], "nat": "one"},
        "storage": {"home": True, "scratch_gib": {"aws": 4800, "alicloud": 4800}[cloud], **own},
        "access": {"people": {"bob": {"uid": 5002}}} if cloud == "aws" else BY_SSH,
    }


def _held(*places: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"id": name, "zone": zone, "count": 2, "until": "2027-03-31T11:30Z"} for name, zone in places]


def edits(cloud: str) -> tuple[Edit, ...]:
    """Return one edit of each key, on one cloud; keys of the other cloud are left out."""
    of_cloud = _OF_AWS if cloud == "aws" else _OF_ALICLOUD
    zones, third = ZONES[cloud], THIRD[cloud]
    return (
        *_COMMON,
        *of_cloud,
        Edit("network.zones", [*reversed(zones)]),
        Edit("network.zones+slots", ([*zones, third], SLOTS[cloud] | {third: 2})),
        Edit("network.zones+slots", ([third, *zones], SLOTS[cloud] | {third: 2})),
        Edit("network.zones+slots", (zones[:1], SLOTS[cloud]), loses=BOTH),
        Edit("network.slots", dict(zip(zones, (1, 0), strict=True)), loses=BOTH),
        Edit("network.slots", SLOTS[cloud] | {third: 5}),
        Edit("pools[].zones", zones[1:]),
        Edit("pools", lambda pools: [*pools, pools[0] | {"name": "more"}]),
        Edit("pools", lambda pools: [pools[0] | {"name": "more"}, *pools]),
    )


_COMMON = (
    Edit("owner", "vision"),
    Edit("tags", {"CostCentre": "4711"}),
    Edit("network.cidr", "10.1.0.0/16", loses=BOTH),
    Edit("network.nat", "per_zone"),
    Edit("network.interface_endpoints", True),
    Edit("network.peers", ["10.9.0.0/16"]),
    Edit("network.flow_log_retention_days", 365),
    Edit("logs.retention_days", 180),
    Edit("logs.instances", False, loses=BOTH),
    Edit("logs.bucket_access", True),
    Edit("access.ssh_from", {"office": "198.51.100.0/24"}),
    Edit("storage.home", False, loses=BOTH),
    Edit("storage.scratch_gib", 7200),
    Edit("storage.scratch_gib", 0, loses=BOTH),
    Edit("storage.old_versions_days", 60),
    Edit("storage.existing", {"buckets": {"lab-datasets": {}}}),
    Edit("pools[].name", "other"),
    Edit("pools[].size", {"min": 0, "desired": 0, "max": 5}),
    Edit("pools[].purpose", "serving"),
    Edit("pools[].groups", "per_zone"),
    Edit("pools[].volume_gib", 300),
    Edit("pools[].scaling", True),
    Edit("pools[].spare", 1),
    Edit("pools[].idle", {"after_hours": 3}),
    Edit("pools[].max_lifetime_hours", 48),
    Edit("pools[].owner", "vision"),
    Edit("pools[].market", "spot"),
    Edit("pools[].market+on_demand_base", ("spot", 1)),
    Edit("pools[].market+on_demand_fallback", ("spot", True)),
    Edit("pools[].gpu_memory_gib", 16),
    Edit("budget.monthly", 6000),
    Edit("budget.recipients", ["other@example.com"]),
    Edit("budget.thresholds", [{"percent": 90, "kind": "actual"}]),
    Edit("reaper.every_minutes", 5),
    Edit("reaper.dry_run", True),
    Edit("reaper.max_actions", 3),
    Edit("reaper.max_percent", 10),
    Edit("reaper.time_zone", "Asia/Shanghai"),
    Edit("reaper.leftovers", {"remove": True}),
    Edit("reaper.leftovers", {"older_than_days": 30}),
    Edit("reaper.watch_days", 7),
    Edit("reaper.breaker_release", "after-a-day"),
    Edit("notify.users+sender", ({"ada": "ada@example.com"}, "fleet@mail.example.com")),
    Edit("take.max_per_person", 2),
    Edit("notify.webhooks", [{"kind": "slack", "secret": "rooms/vision"}]),
    Edit("budget.on_exceeded", "freeze"),
    Edit("image.size_gib", 50),
)
_OF_AWS = (
    Edit("aws.permissions_boundary", "arn:aws:iam::123456789012:policy/boundary"),
    Edit("access.people", {"ada": {"uid": 5001, "admin": True}}),
    Edit("access.directory", {"identity_store": "d-1234567890", "teams": {"vision": {"group": GROUP_ID}}}),
    Edit("storage.cached_buckets", ["data"]),
    Edit("storage.replica_region", "us-west-2"),
    Edit("logs.bucket_access+data_events", (True, True)),
    Edit("queue", "slurm"),
    Edit("queue+teams", ("slurm", {"no-team": {"share": 2, "max_gpus": 16}})),
    Edit("teams", {"no-team": {"monthly": 900, "on_exceeded": "freeze"}}),
    Edit("protected", True),
    Edit("account_id", "210987654321", loses=("aws",)),
    Edit("storage.scratch_gib", 2400, loses=("aws",)),
    Edit("pools[].types", ["g5.2xlarge"]),
    Edit("budget.scope", "tag"),
    Edit("image.id", "ami-0fedcba9876543210"),
    Edit("image.mode+bundled+lustre_client", ("baked", True, True)),
    Edit("image.parameter+id", ("/aws/service/deeplearning/ami/x86_64/base/ami-id", None)),
    Edit("network.cidr+existing", (None, EXISTING), loses=("aws",)),
    Edit("network.s3_buckets", ["lab-*"]),
    Edit("pools[].types+efa+zones", (["p4d.24xlarge"], True, ["us-east-1a"])),
    Edit("pools[].types+mig_profile", (["p4d.24xlarge"], "1g.5gb")),
    Edit(
        "pools[].types+market+reservation_id+zones",
        (["p5.48xlarge"], "capacity-block", "cr-0123456789abcdef0", ["us-east-1a"]),
    ),
    Edit(
        "pools[].types+market+reservations",
        (
            ["p5.48xlarge"],
            "reservation",
            _held(("cr-0123456789abcdef0", "us-east-1a"), ("cr-0123456789abcdef1", "us-east-1b")),
        ),
    ),
)
_OF_ALICLOUD = (
    Edit(
        "pools[].market+reservations",
        ("reservation", _held(("eap-1a", "cn-shenzhen-d"), ("crp-1b", "cn-shenzhen-e"))),
    ),
    Edit("queue", "slurm"),
    Edit("queue+teams", ("slurm", {"no-team": {"share": 2, "max_gpus": 16}})),
    Edit("teams", {"no-team": {"monthly": 900, "on_exceeded": "freeze"}}),
    Edit("protected", True),
    Edit("account_id", "6543210987654321", loses=("alicloud",)),
    Edit("storage.key_rotation_days", 30),
    Edit("storage.kms_instance_id", "kst-szh1111111111111111", loses=("alicloud",)),
    Edit("storage.redundancy", "ZRS", loses=("alicloud",)),
    Edit("storage.replica_region+replica_kms_instance_id", ("cn-hangzhou", "kst-hzz1111111111111111")),
    Edit("storage.home_gib", 200),
    Edit("network.cidr+existing", (None, EXISTING_VSWITCHES), loses=("alicloud",)),
    Edit("pools[].types", ["ecs.gn7i-c16g1.4xlarge"]),
    Edit("pools[].scratch_gib", 300),
    Edit("image.id", "m-wz91111111111111111"),
    Edit("image.mode+bundled", ("baked", True)),
    Edit("budget.cny_per_usd", "7.1"),
    Edit("access.people+ssh_from", ({"ada": {"uid": 5001, "keys": [PUBLIC_KEY]}}, {"office": "10.9.0.0/24"})),
    Edit("pools[].market+spot_price_limit", ("spot", "5.5")),
    Edit("pools[].types+erdma", (["ecs.gn8v-8x.48xlarge"], True)),
    Edit(
        "pools[].market+reservation_id+zones",
        ("reservation", "eap-bp67acfmxazb40000000", ["cn-shenzhen-d"]),
    ),
)


def applied(content: dict[str, Any], chosen: tuple[Edit, ...]) -> dict[str, Any]:
    """Return a copy of a stack file with some edits."""
    made: dict[str, Any] = {**content}
    for edit in chosen:
        section, _, joined = edit.key.partition(".")
        keys = joined.split("+")
        values = dict(zip(keys, edit.value if len(keys) > 1 else (edit.value,), strict=True))
        if section == "pools":
            made["pools"] = edit.value(made["pools"])
        elif section == "pools[]":
            made["pools"] = [made["pools"][0] | values, *made["pools"][1:]]
        elif joined:
            made[section] = made.get(section, {}) | values
        else:
            names = section.split("+")
            made |= dict(zip(names, edit.value if len(names) > 1 else (edit.value,), strict=True))
    return made
