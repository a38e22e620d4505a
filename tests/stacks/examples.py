"""A valid stack file, to be changed by tests, and a hypothesis strategy for valid ones of any shape."""

from typing import Any

import pytest
from hypothesis import strategies as st

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import SettingsError
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.reader import from_mapping


def stack_file(**changes: Any) -> dict[str, Any]:
    """Return the content of a valid AWS stack file, with some top-level keys replaced."""
    content: dict[str, Any] = {
        "cloud": "aws",
        "region": "us-east-1",
        "account_id": "123456789012",
        "network": {"cidr": "10.0.0.0/16", "zones": ["us-east-1a", "us-east-1b"]},
        "pools": [pool()],
        "budget": {"monthly": 5000, "recipients": ["team@example.com"], "allow_overcommit": True},
        "image": {"id": "ami-0123456789abcdef0"},
    }
    return content | changes


def pool(**changes: Any) -> dict[str, Any]:
    """Return a valid pool, with some keys replaced."""
    return {"name": "dev", "types": ["g5.xlarge"], "size": {"min": 0, "desired": 1, "max": 2}} | changes


def changed(content: Any, values: dict[str, Any]) -> Any:
    """Return a copy of a file with other values at some keys, such as ``pools[0].idle.action``."""
    for key, value in values.items():
        steps = key.replace("[", ".").replace("]", "").split(".")
        content = _put(content, [int(step) if step.isdigit() else step for step in steps], value)
    return content


def _put(place: Any, steps: list[int | str], value: Any) -> Any:
    if not steps:
        return value
    step, *rest = steps
    if isinstance(step, int):
        inner = place[step] if step < len(place) else {}
        return [*place[:step], _put(inner, rest, value), *place[step + 1 :]]
    below = place.get(step, [] if rest and isinstance(rest[0], int) else {})
    return {**place, step: _put(below, rest, value)}


def stack(name: str = "test", **changes: Any) -> Stack:
    """Return a valid stack, with some top-level keys of its file replaced."""
    return from_mapping(name, stack_file(**changes))


def refusal(content: dict[str, Any]) -> str:
    """Return the error of a stack file that must be refused."""
    with pytest.raises(SettingsError) as caught:
        from_mapping("test", content)
    return str(caught.value)


# A stack that builds its own image, and takes SSH from a network; any file stands for the payload.
BUILDING = stack(
    image={
        "parameter": "/imagebuilder/gpu-fleet-test/ami",
        "base_id": "ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
        "payload": "image/gpu_fleet_image/recipe/packages.toml",
    },
    network={
        "cidr": "10.0.0.0/16",
        "zones": ["us-east-1a", "us-east-1b"],
        "interface_endpoints": True,
    },
    access={"ssh_from": {"office": "198.51.100.0/24"}},
)

PRICED = [kind for kind in catalog.load().of_cloud(Cloud.AWS) if kind.price is not None]
EFA_TYPES = [kind.name for kind in PRICED if kind.efa_interfaces]
AWS_TYPES = [kind.name for kind in PRICED]
ZONES = [f"us-east-1{letter}" for letter in "abcdef"]


@st.composite
def networks(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a network of any valid size, number of zones and NAT."""
    prefix = draw(st.integers(naming.SHORTEST_NETWORK_PREFIX, naming.LONGEST_NETWORK_PREFIX))
    nat = draw(st.sampled_from(["none", "one", "per_zone"]))
    return {
        "cidr": f"10.{draw(st.integers(0, 255))}.0.0/{prefix}",
        "zones": draw(st.lists(st.sampled_from(ZONES), min_size=1, max_size=6, unique=True)),
        "nat": nat,
        "interface_endpoints": nat == "none" or draw(st.booleans()),
    }


@st.composite
def pools(draw: st.DrawFn, name: str, zones: list[str]) -> dict[str, Any]:
    """Draw a pool of any market, with or without EFA."""
    efa = draw(st.booleans())
    market = draw(st.sampled_from(["on-demand", "spot", "reservation", "capacity-block"]))
    reserved = market in ("reservation", "capacity-block")
    kinds = st.sampled_from(EFA_TYPES if efa else AWS_TYPES)
    low, middle, high = sorted(draw(st.tuples(*[st.integers(0, 20)] * 3)))
    return {
        "name": name,
        "types": draw(st.lists(kinds, min_size=1, max_size=1 if efa or reserved else 4, unique=True)),
        "market": market,
        "reservation_id": f"cr-{name.encode().hex():0<17.17}" if reserved else None,
        "size": {"min": low, "desired": middle, "max": max(high, 1)},
        "zones": zones[:1] if reserved else [],
        "efa": efa,
        "purpose": draw(st.sampled_from(["interactive", "training", "serving"])),
        "volume_gib": draw(st.integers(100, 16_000)),
    }


@st.composite
def stack_files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a valid stack file of any shape."""
    network = draw(networks())
    names = draw(st.lists(st.sampled_from(["dev", "train", "serve", "spot"]), min_size=1, unique=True))
    sites = draw(st.lists(st.sampled_from(["10.9.0.0/16", "192.168.7.0/24", "198.51.100.0/24"]), unique=True))
    return stack_file(
        network=network,
        protected=draw(st.booleans()),
        pools=[draw(pools(name, network["zones"])) for name in names],
        access={"ssh_from": {f"site{index}": cidr for index, cidr in enumerate(sites)}},
        storage={"home": draw(st.booleans()), "scratch_gib": draw(st.sampled_from([0, 1200, 2400, 4800]))},
    )
