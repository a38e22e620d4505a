"""What the role of a pool's instances may do to what is not theirs: nothing."""

import json
from fnmatch import fnmatch

import pytest

from image.reaper.agent import kept_files
from tests.stacks.examples import pool, stack

ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"


@pytest.fixture
def statements(register):
    """By its name, each statement of the instances of pool ``dev``, which has a neighbour ``dev-large``."""
    rehearsed = register(stack(pools=[pool(), pool(name="dev-large")]))
    (policy,) = [
        resource
        for resource in rehearsed.of_type(ROLE_POLICY)
        if resource.name == "gpu-fleet-test-dev-instance"
    ]
    return {statement["Sid"]: statement for statement in json.loads(policy.inputs["policy"])["Statement"]}


def test_an_instance_speaks_of_the_leaving_of_its_own_pools_instances_alone(statements):
    """The resource's pattern alone would take in the groups of every pool whose name begins alike."""
    assert statements["OwnGroups"]["Condition"] == {
        "StringEquals": {"aws:ResourceTag/gpu-fleet:stack": "test", "aws:ResourceTag/gpu-fleet:pool": "dev"}
    }


def test_the_groups_of_a_pool_carry_the_tags_that_its_instances_are_let_in_by(register):
    rehearsed = register(stack(pools=[pool(), pool(name="dev-large")]))

    tags = [
        {tag["key"]: tag["value"] for tag in group.inputs["tags"]}
        for group in rehearsed.of_type("aws:autoscaling/group:Group")
    ]
    assert {(tag["gpu-fleet:stack"], tag["gpu-fleet:pool"]) for tag in tags} == {
        ("test", "dev"),
        ("test", "dev-large"),
    }


def test_an_instance_cannot_write_into_the_record_of_its_own_connections(statements):
    """The flow log is a log group of the stack too; an instance writes to that of the instances alone."""
    writing = [
        statement["Resource"]
        for statement in statements.values()
        if any(action.startswith("logs:") for action in statement["Action"])
    ]

    group = "arn:aws:logs:us-east-1:123456789012:log-group:/gpu-fleet/test/instances"
    assert writing == [f"{group}:*", f"{group}:log-stream:dev/*"]


def test_an_instance_writes_below_its_pools_own_prefix_only(statements):
    writing = [statement for statement in statements.values() if "s3:PutObject" in statement["Action"]]

    assert [statement["Resource"] for statement in writing] == [
        ["arn:aws:any:::gpu-fleet-test-data/dev/*", "arn:aws:any:::gpu-fleet-test-checkpoints/dev/*"],
        "arn:aws:any:::gpu-fleet-test-records/reaper/handshake/${aws:userid}/*",
    ]


def test_what_the_agent_saves_lies_where_its_role_may_write(statements):
    """The agent's own function and the registered policy: neither knows the other."""
    saved = kept_files.place("s3://gpu-fleet-test-data", "dev", "i-0123456789abcdef0")

    allowed = [arn.partition("/")[2] for arn in statements["WriteOwn"]["Resource"]]
    assert all(fnmatch(f"{saved.prefix}notes.txt", pattern) for pattern in allowed)
