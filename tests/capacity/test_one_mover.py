"""Nothing but the mover raises a desired capacity, in all that this project runs."""

from pathlib import Path


def test_one_module_raises_a_desired_capacity():
    """`gpu-fleet destroy` empties groups; an acceptance run raises those of its own throw-away stack."""
    calls = ("set_desired_capacity", "ExecuteScalingRule", "ScaleWithAdjustment", "execute_policy")
    root = Path(__file__).parents[2]
    found = {
        path.relative_to(root).as_posix()
        for room in ("image", "stacks", "training")
        for path in (root / room).rglob("*.py")
        if any(call in path.read_text() for call in calls)
    }

    own = {"stacks/acceptance/aws.py", "stacks/acceptance/alicloud.py", "stacks/alicloud/capacity.py"}
    assert found - own == {"image/capacity/aws.py", "image/capacity/alicloud.py"}
