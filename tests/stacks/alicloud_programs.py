"""Alibaba Cloud stacks under the rehearsal's monitor, where everything of this cloud is recorded."""

import json
from typing import Any

from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Stack, stack_files
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.registrations import declared, run
from tests.stacks.shipped import SHIPPED

CLUSTER = pool(
    name="cluster",
    types=["ecs.gn8v-8x.48xlarge"],
    erdma=True,
    market="reservation",
    reservation_id="eap-bp67acfmxazb40000000",
    zones=["cn-shenzhen-d"],
    scratch_gib=1000,
)
LIMITED = pool(name="limited", market="spot", spot_price_limit="5.5", groups="per_zone", scratch_gib=200)
# A stack that uses every key there is.
EVERYTHING = stack(
    protected=True,
    network={
        "cidr": "10.0.0.0/16",
        "zones": ["cn-shenzhen-d", "cn-shenzhen-e"],
        "nat": "per_zone",
        "interface_endpoints": True,
    },
    storage={
        "kms_instance_id": "kst-szh0000000000000000",
        "home": True,
        "scratch_gib": 3600,
        "redundancy": "ZRS",
    },
    access={"ssh_from": {"office": "198.51.100.0/24"}},
    # any two files stand for a payload and a baked disk
    image={
        "id": "m-wz90000000000000000",
        "base_id": "ubuntu_24_04_x64_20G_alibase_20260101.vhd",
        "payload": "image/gpu_fleet_image/recipe/packages.toml",
        "disk": "image/gpu_fleet_image/recipe/versions.toml",
    },
    pools=[pool(), CLUSTER, LIMITED],
)

STACKS = [name for name in SHIPPED if stack_files.settings_of(name).cloud == "alicloud"]


def shipped(name: str) -> Rehearsed:
    """Return the registrations of the project's own program for a shipped stack."""
    return declared(name)


def everything() -> Rehearsed:
    """Return the registrations of a stack that uses every key."""
    return declared(EVERYTHING)


def register(settings: Stack) -> Rehearsed:
    """Run the program for any settings; return its registrations and exports."""
    return run(settings)


def inputs(rehearsed: Rehearsed, token: str, name: str = "") -> list[dict[str, Any]]:
    """Return the inputs of every resource of a type whose name contains `name`; of all by default."""
    return [resource.inputs for resource in rehearsed.of_type(token) if name in resource.name]


def statements(document: str) -> list[dict[str, Any]]:
    """Return the statements of a policy document."""
    content = json.loads(document)
    assert content["Version"] == "1"
    return list(content["Statement"])


def role_statements(rehearsed: Rehearsed, role: str) -> list[dict[str, Any]]:
    """Return the statements of a role's policy."""
    (policy,) = [
        resource
        for resource in rehearsed.of_type("alicloud:ram/policy:Policy")
        if resource.name.endswith(role)
    ]
    return statements(policy.inputs["policyDocument"])


NETWORK = {"cidr": "10.0.0.0/16", "zones": ["cn-shenzhen-d", "cn-shenzhen-e"]}
STORAGE = {"kms_instance_id": "kst-szh0000000000000000"}
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBUYHkd0jd5yF1xIMu2nsW1SxNTgF2mIf8vY0wd1cmtp"
ACCESS = {
    "ssh_from": {"office": "198.51.100.0/24"},
    "people": {"ada": {"uid": 5001, "keys": [PUBLIC_KEY]}},
}
# The shapes that a stack of this cloud takes, each by itself.
VARIANTS = {
    "NAT-less": stack(network=NETWORK | {"nat": "none", "interface_endpoints": True}),
    "eRDMA": stack(pools=[pool(name="cluster", types=["ecs.gn8v-8x.48xlarge"], erdma=True)]),
    "CPFS": stack(storage=STORAGE | {"home": True, "scratch_gib": 3600}),
    "freeze with spot": stack(
        budget={
            "monthly": 40000,
            "currency": "CNY",
            "recipients": ["team@example.com"],
            "allow_overcommit": True,
            "on_exceeded": "freeze",
        },
        pools=[pool(), pool(name="train", market="spot", purpose="training", on_demand_base=1)],
    ),
    "image pipeline": stack(
        image={
            "id": "m-wz90000000000000000",
            "base_id": "ubuntu_24_04_x64_20G_alibase_20260101.vhd",
            "payload": "image/gpu_fleet_image/recipe/packages.toml",
        }
    ),
    "queue": stack(queue="slurm", storage=STORAGE | {"home": True}, access=ACCESS),
}


def programs() -> dict[str, Rehearsed]:
    """Return all programs by name: both shipped stacks, each shape alone, and every key at once."""
    return {
        **{name: shipped(name) for name in STACKS},
        **{name: declared(settings) for name, settings in VARIANTS.items()},
        "everything": everything(),
    }
