"""The tree of a run, on a terminal and without one."""

import io

import pytest
from rich.console import Console

from gpu_fleet_stacks.rehearsal.registrations import RegistrationOutcome
from gpu_fleet_stacks.rehearsal.tree import FOLD_ABOVE, Tree, counts
from tests.stacks.rehearsal.examples import registered

NETWORK = registered("gpu-fleet:aws:Network", "gpu-fleet-test", outcome=RegistrationOutcome.GROUPED)
VPC = registered("aws:ec2/vpc:Vpc", "gpu-fleet-test-vpc", NETWORK.urn, identifier="vpc-1")
CLOSE = registered(
    "aws:ec2/placementGroup:PlacementGroup", "gpu-fleet-test-close", NETWORK.urn, RegistrationOutcome.RECORDED
)


def shown(*registrations, encoding="utf-8", terminal=False, width=80):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(file=file, force_terminal=terminal, width=width, height=20, color_system=None)
    times = iter(range(1000))
    with Tree(console, "test", clock=lambda: float(next(times))) as tree:
        for registration in registrations:
            tree.listen(registration)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_components_are_branches_resources_leaves_and_why_one_is_only_recorded_stands_at_the_end():
    assert shown(NETWORK, VPC, CLOSE).splitlines() == [
        "stack test stands: ● 1 created in moto, ○ 1 only recorded, 1.0 s",
        "├── Network gpu-fleet-test  2 resources, 0.50 s",
        "│   ├── ● Vpc vpc  vpc-1",
        "│   └── ○ PlacementGroup close",
        "└── ○ 1 only recorded, moto has no CreatePlacementGroup: PlacementGroup",
    ]
    assert counts([NETWORK, VPC, CLOSE]) == (1, 1)


def test_one_reason_is_said_once_however_many_have_it():
    there = [
        registered(f"alicloud:{kind}", f"one-{kind}-{number}", NETWORK.urn, RegistrationOutcome.RECORDED)
        for kind in ("vpc/switch:Switch", "oss/bucket:Bucket", "ram/role:Role", "kms/key:Key", "fc/v3:V3")
        for number in range(FOLD_ABOVE + 1)
    ]

    lines = shown(NETWORK, CLOSE, *there).splitlines()

    assert [line for line in lines if "AWS alone" in line] == [
        "└── ○ 25 only recorded, moto answers for AWS alone"
    ]
    assert "│   └── ○ 5 x V3" in lines
    assert "".join(lines).count("CreatePlacementGroup") == 1


def test_a_branch_counts_what_is_below_its_branches():
    fleet = registered("gpu-fleet:aws:Fleet", "pool", outcome=RegistrationOutcome.GROUPED)
    identity = registered("gpu-fleet:aws:Identity", "pool", fleet.urn, outcome=RegistrationOutcome.GROUPED)
    role = registered("aws:iam/role:Role", "pool-role", identity.urn)
    group = registered("aws:autoscaling/group:Group", "pool-group", fleet.urn)

    text = shown(fleet, identity, role, group)

    assert "Fleet pool  2 resources, 0.50 s" in text
    assert "Identity pool  1 resource, 0.25 s" in text


def test_many_of_one_type_are_one_line():
    rules = [
        registered("aws:ec2/route:Route", f"r{number}", NETWORK.urn, identifier=f"route-{number}")
        for number in range(FOLD_ABOVE + 1)
    ]

    text = shown(NETWORK, *rules)

    assert f"● {FOLD_ABOVE + 1} x Route  route-0 ... route-{FOLD_ABOVE}" in text
    assert len(text.splitlines()) == 3


def test_providers_are_no_leaves_and_a_resource_without_a_component_stands_at_the_root():
    provider = registered("pulumi:providers:aws", "here", outcome=RegistrationOutcome.GROUPED)

    lines = shown(provider, registered("aws:sns/topic:Topic", "alarms")).splitlines()
    assert lines[1:] == ["└── ● Topic alarms  id-1"]


def test_without_a_terminal_lines_are_whole_and_without_unicode_in_ascii():
    long = registered("aws:sns/topic:Topic", "alarms", identifier="arn:" + "x" * 300)
    in_ascii = shown(NETWORK, VPC, CLOSE, encoding="ascii")

    assert "arn:" + "x" * 300 in shown(long, width=40)
    assert "* Vpc vpc" in in_ascii
    assert "o PlacementGroup close" in in_ascii


def test_on_a_terminal_the_whole_tree_stands_at_the_end():
    text = shown(NETWORK, VPC, terminal=True)

    assert "● Vpc vpc  vpc-1" in text
    assert "stack test stands" in text


def test_a_run_that_fails_is_shown_as_far_as_it_came_and_its_seconds_stand_still():
    file, times = io.StringIO(), iter([10.0, 12.5])
    tree = Tree(Console(file=file), "test", clock=lambda: next(times))

    def fail_after_the_first():
        with tree:
            tree.listen(VPC)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_the_first()
    assert "stack test stopped" in file.getvalue()
    assert "Vpc gpu-fleet-test-vpc" in file.getvalue()
    assert tree.seconds == 2.5
