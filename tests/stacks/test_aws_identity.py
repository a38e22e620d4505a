"""What the role of a pool's machines may do to what is not theirs: nothing."""

import json

import pytest

from tests.stacks.examples import pool, stack

ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"


@pytest.fixture
def statements(register):
    """By its name, each statement of the machines of pool ``dev``, which has a neighbour ``dev-large``."""
    rehearsed = register(stack(pools=[pool(), pool(name="dev-large")]))
    (policy,) = [one for one in rehearsed.of_type(ROLE_POLICY) if one.name == "gpu-fleet-test-dev-instance"]
    return {one["Sid"]: one for one in json.loads(policy.inputs["policy"])["Statement"]}


def test_a_machine_reports_the_health_and_the_leaving_of_its_own_pools_machines_alone(statements):
    """The resource's pattern alone would take in the groups of every pool whose name begins alike."""
    assert statements["OwnGroups"]["Condition"] == {
        "StringEquals": {"aws:ResourceTag/gpu-fleet:stack": "test", "aws:ResourceTag/gpu-fleet:pool": "dev"}
    }


def test_the_groups_of_a_pool_carry_the_tags_that_its_machines_are_let_in_by(register):
    rehearsed = register(stack(pools=[pool(), pool(name="dev-large")]))

    tags = [
        {tag["key"]: tag["value"] for tag in group.inputs["tags"]}
        for group in rehearsed.of_type("aws:autoscaling/group:Group")
    ]
    assert {(one["gpu-fleet:stack"], one["gpu-fleet:pool"]) for one in tags} == {
        ("test", "dev"),
        ("test", "dev-large"),
    }


def test_a_machine_cannot_write_into_the_record_of_its_own_connections(statements):
    """The flow log is a log group of the stack too, and nothing on a machine writes to any."""
    actions = {action for one in statements.values() for action in one["Action"]}

    assert not any(action.startswith("logs:") for action in actions)
