"""Subnets by arithmetic, names and tags."""

from ipaddress import IPv4Network
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_stacks.core import naming

CIDRS = st.builds(
    lambda first, prefix: IPv4Network((first << 16, prefix)),
    st.integers(0x0A00, 0x0AFF),
    st.integers(naming.SHORTEST_NETWORK_PREFIX, naming.LONGEST_NETWORK_PREFIX),
)
ZONES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)
SLOTS = ZONES.flatmap(
    lambda zones: st.permutations(range(8)).map(lambda slots: dict(zip(zones, slots, strict=False)))
)


def all_subnets(cidr, slots):
    return [part for zone in naming.subnets(cidr, slots) for part in (zone.public, zone.private)]


@given(CIDRS, SLOTS)
def test_subnets_never_overlap_fit_into_the_network_and_are_large_enough_for_aws(cidr, slots):
    parts = all_subnets(cidr, slots)

    assert not any(one.overlaps(other) for one, other in combinations(parts, 2))
    assert all(part.subnet_of(cidr) and part.prefixlen <= naming.SMALLEST_SUBNET_PREFIX for part in parts)


@given(CIDRS, SLOTS)
def test_no_zone_moves_another_whether_it_is_added_removed_or_reordered(cidr, slots):
    whole = {part.zone: part for part in naming.subnets(cidr, slots)}
    for zone in slots:
        rest = {zone_name: slot for zone_name, slot in reversed(slots.items()) if zone_name != zone}
        assert {part.zone: part for part in naming.subnets(cidr, rest)} == {
            value: part for value, part in whole.items() if value != zone
        }


def test_a_slot_that_is_none_and_a_network_too_small_are_refused():
    with pytest.raises(ValueError, match=r"slots \[8\]: allowed are 0 to 7"):
        naming.subnets(IPv4Network("10.0.0.0/16"), {"a": 8})
    with pytest.raises(ValueError, match=r"10.0.0.0/24 cannot hold 8 zone slots: needs /23 or larger"):
        naming.subnets(IPv4Network("10.0.0.0/24"), {"a": 0})


def test_tags_carry_the_projects_prefix_and_a_plain_name():
    assert naming.tags("dev", "vision", Name="x", pool="gpu") == {
        "gpu-fleet:stack": "dev",
        "gpu-fleet:owner": "vision",
        "Name": "x",
        "gpu-fleet:pool": "gpu",
    }
