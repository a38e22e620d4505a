"""Subnets by arithmetic, names and tags."""

from ipaddress import IPv4Network
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks import naming

CIDRS = st.builds(
    lambda first, prefix: IPv4Network((first << 16, prefix)),
    st.integers(0x0A00, 0x0AFF),
    st.integers(naming.SHORTEST_NETWORK_PREFIX, naming.LONGEST_NETWORK_PREFIX),
)
ZONES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True).map(tuple)


def all_subnets(cidr, zones):
    return [part for zone in naming.subnets(cidr, zones) for part in (zone.public, zone.private)]


@given(CIDRS, ZONES)
def test_subnets_never_overlap(cidr, zones):
    assert not any(one.overlaps(other) for one, other in combinations(all_subnets(cidr, zones), 2))


@given(CIDRS, ZONES)
def test_subnets_always_fit_into_the_network_and_are_large_enough_for_aws(cidr, zones):
    for part in all_subnets(cidr, zones):
        assert part.subnet_of(cidr)
        assert part.prefixlen <= naming.SMALLEST_SUBNET_PREFIX


@given(CIDRS, ZONES)
def test_adding_a_zone_moves_no_subnet(cidr, zones):
    assert naming.subnets(cidr, zones)[:-1] == naming.subnets(cidr, zones[:-1])


def test_a_network_too_small_is_refused():
    with pytest.raises(ValueError, match=r"10.0.0.0/24 cannot hold 8 zone slots: needs /23 or larger"):
        naming.subnets(IPv4Network("10.0.0.0/24"), ("a",))


def test_tags_carry_the_projects_prefix_and_a_plain_name():
    assert naming.tags("dev", "vision", Name="x", pool="gpu") == {
        "gpu-fleet:stack": "dev",
        "gpu-fleet:owner": "vision",
        "Name": "x",
        "gpu-fleet:pool": "gpu",
    }
